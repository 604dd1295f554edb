"""The rules of docs/architecture.md, held against every module: who may import whom, and how long
code may be.
"""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvpeak.base.axes import AXES
from kvpeak.base.columns import TABLES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "workflow/scripts/kvpeak"
MODULES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES, MOST_LINES_OF_A_FUNCTION = 400, 50
DATA_TABLES = {"base/columns.py"}
FEWER_FORMATTER_OFF = 20
# What is still above a limit; to be empty.
TOO_LONG: set[str] = set()
FUNCTIONS_TOO_LONG: set[str] = set()


def rules() -> dict[str, tuple[set[str], set[str]]]:
    """The table of docs/architecture.md: package → (packages, third-party packages) that it may
    import.
    """
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    found = {name: (words(own), words(others)) for name, own, others in rows if name != "package"}
    return {
        name: (set(found) if own == {"any"} else own, others)
        for name, (own, others) in found.items()
    }


def words(cell: str) -> set[str]:
    return set(re.findall(r"\w+", cell))


def package_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def nodes(file: Path) -> list[ast.AST]:
    """Every node of a file's syntax tree."""
    return [*ast.walk(ast.parse(file.read_text(encoding="utf-8")))]


def imports(module: Path) -> Iterator[tuple[int, str, bool]]:
    """(line, dotted name, whether it is at module level) of every import."""
    inside = {
        id(node)
        for function in nodes(module)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    for node in nodes(module):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name, id(node) not in inside
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno}: expected the full name"
            whole = node.module == "kvpeak"
            for name in node.names if whole else node.names[:1]:
                dotted = f"kvpeak.{name.name}" if whole else node.module
                yield node.lineno, dotted, id(node) not in inside


def breaches(module: Path, package: str) -> Iterator[str]:
    """A line for each import that the package's row of the table does not allow."""
    own, others = rules()[package]
    for line, dotted, at_top in imports(module):
        first, *rest = dotted.split(".")
        if first == "kvpeak":
            target = rest[0]
            if target not in own | {package}:
                allowed = ", ".join(sorted(own)) or "nothing"
                yield f"{module}:{line}: {package} imports {target}; it may import {allowed}"
        elif at_top and first not in sys.stdlib_module_names and first not in others:
            allowed = ", ".join(sorted(others)) or "nothing"
            yield f"{module}:{line}: {package} imports {first} at module level; it may {allowed}"


def test_the_table_names_every_package_and_nothing_else():
    packages = {package_of(module) for module in MODULES} - {"__init__"}
    assert packages - set(rules()) == set()
    assert {name for own, _ in rules().values() for name in own} <= set(rules())


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_what_its_package_may(module):
    if module != PACKAGE / "__init__.py":
        assert not [*breaches(module, package_of(module))]


def test_a_module_in_the_wrong_package_breaks_a_rule():
    assert [*breaches(PACKAGE / "report/figures.py", "runner")]
    assert [*breaches(PACKAGE / "live/session.py", "replay")]
    assert [*breaches(PACKAGE / "experiment/matrix.py", "base")]


def test_the_packages_have_no_circle():
    left = {name: own - {name} for name, (own, _) in rules().items()}
    while free := {name for name, own in left.items() if not own}:
        left = {name: own - free for name, own in left.items() if name not in free}
    assert not left


@functools.cache
def sources(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).exists()]


def test_no_module_and_no_function_is_too_long():
    modules, functions = set(), set()
    for file in sources("workflow/*.py"):
        name = str(file.relative_to(PACKAGE)) if file.is_relative_to(PACKAGE) else file.name
        text = file.read_text(encoding="utf-8")
        if text.count("\n") > MOST_LINES and name not in DATA_TABLES:
            modules.add(name)
        functions |= {
            f"{name}:{node.name}"
            for node in nodes(file)
            if isinstance(node, ast.FunctionDef)
            and node.end_lineno - node.lineno >= MOST_LINES_OF_A_FUNCTION
        }
    assert modules == TOO_LONG
    assert functions == FUNCTIONS_TOO_LONG


def test_the_formatter_is_seldom_switched_off():
    texts = [file.read_text(encoding="utf-8") for file in sources("*.py", "*.smk", "Snakefile")]
    count = sum(len(re.findall(r"#\s*fmt:\s*(?:skip|off)", text)) for text in texts)
    assert count < FEWER_FORMATTER_OFF


def test_packages_are_empty_and_no_module_only_passes_on():
    for module in MODULES:
        text = module.read_text(encoding="utf-8")
        if module.name == "__init__.py":
            assert text == "", module
        else:
            passed_on = (ast.Import, ast.ImportFrom, ast.Expr)
            assert not all(isinstance(node, passed_on) for node in ast.parse(text).body), module


def definitions(name: str) -> list[str]:
    """Where a name is assigned, in any Python file but those that a machine runs without kvpeak."""
    return [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in sources("workflow/*.py", "tests/*.py", ":!tests/device")
        for node in nodes(file)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
    ]


@pytest.mark.parametrize("name", ["AXES", "NAME", "ROUND", "KIB", "MIB", "GIB", "SPEEDS"])
def test_a_shared_constant_is_defined_once(name):
    assert len(definitions(name)) == 1, definitions(name)


def test_no_list_of_axes_or_columns_is_written_down_a_second_time():
    """Five axes, or eight columns of a table, that follow each other in a literal are a copy."""
    lists = [(AXES, 5), *((table.names, 8) for table in TABLES)]
    known = {names[k : k + n] for names, n in lists for k in range(len(names) - n + 1)}
    copies = []
    for file in sources("workflow/*.py"):
        if file in {PACKAGE / "base/axes.py", PACKAGE / "base/columns.py"}:
            continue
        for node in nodes(file):
            if isinstance(node, ast.Tuple | ast.List):
                texts = tuple(getattr(each, "value", None) for each in node.elts)
                found = {texts[k : k + n] for n in (5, 8) for k in range(len(texts) - n + 1)}
                copies += [f"{file}:{node.lineno}"] * bool(found & known)
    assert not copies


def test_tables_are_written_in_one_place():
    """Whoever writes CSV beside csv_text forgets that a text may be a formula."""
    for file in sources("workflow/*.py"):
        if file == PACKAGE / "base/tables.py":
            continue
        found = {
            node.attr if isinstance(node, ast.Attribute) else node.name
            for node in nodes(file)
            if isinstance(node, ast.Attribute | ast.alias)
        }
        assert not found & {"writer", "DictWriter", "to_csv"}, f"{file}: use csv_text"
