"""Hostile input: whatever a file says, it is data. It gets one line, reaches no shell and no path
outside the project.
"""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import TINY_MATRIX, TINY_MODEL
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from test_matrix import BASE

from kvpeak.experiment.config_file import ConfigError, load_yaml
from kvpeak.experiment.matrix import Matrix, load_matrix

ROOT = Path(__file__).parents[2]
NASTY = [
    "../x",
    "/etc/passwd",
    "a\nb",
    "a\x00b",
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned",
    "{x}",
    "%s",
    "",
    ".",
    "-n",
    "é" * 300,
    "x" * 5000,
    10**400,
    -1,
    1e308,
    float("nan"),
    float("inf"),
    None,
    True,
    [],
    {},
    [[[[]]]],
    b"\xff",
]
PLACES = [
    ("commits", "mlx-a", "engine"),
    ("commits", "mlx-a", "packages"),
    ("commits", "mlx-a"),
    ("commits",),
    ("models", "tiny", "config"),
    ("models", "tiny", "kind"),
    ("models", "tiny", "dtype"),
    ("models",),
    ("prompts", "short", "tokens"),
    ("prompts", "short", "corpus"),
    ("prompts", "short"),
    ("prompts",),
    ("kv_caches",),
    ("caps",),
    ("variants", "fused", "attention"),
    ("variants",),
    ("compare",),
    ("exclude",),
    ("include",),
    ("protocol",),
]


def refused_or_read(make) -> Matrix | None:
    """The matrix that `make` gives, None if it is refused, which has to take one line."""
    try:
        return make()
    except ConfigError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1100
        return None


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("as_key", [True, False])
@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_a_matrix_with_a_nasty_value_or_name_is_refused_in_one_line_or_keeps_to_the_project(
    place, as_key
):
    for value in NASTY:
        refused_or_kept_inside(place, value, as_key)


def refused_or_kept_inside(place, value, as_key):
    data = copy.deepcopy(BASE)
    *path, last = place
    holder = data
    for key in path:
        holder = holder[key]
    if as_key and isinstance(holder.get(last), dict) and isinstance(value, str):
        holder[last][value] = next(iter(holder[last].values()), {})
    else:
        holder[last] = value
    if matrix := refused_or_read(lambda: Matrix(data, "matrix.yaml")):
        root = Path("results/cells").resolve()
        assert all((root / cell.path).resolve().is_relative_to(root) for cell in matrix.cells_here)
        for prompt in matrix.prompts.values():
            assert Path(prompt["corpus"]).resolve().is_relative_to(ROOT)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_matrix_file_is_refused_in_one_line_or_read(tmp_path_factory, data):
    text = yaml.safe_dump(BASE)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        piece = data.draw(
            st.text(max_size=5)
            | st.sampled_from(["&a ", "*a", "<<: ", "!!x ", "\t", "? ", "{", "["])
        )
        text = text[:at] + piece + text[at + data.draw(st.integers(0, 5)) :]
    file = tmp_path_factory.getbasetemp() / "damaged.yaml"
    file.write_bytes(text.encode(errors="replace"))
    refused_or_read(lambda: load_matrix(file))


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


FILES = {
    "aliases that multiply": (bomb(30), "has more than 1000000 entries"),
    "a list in itself": ("caps: &a [*a]\n", "has more than 1000000 entries"),
    "very deep": ("caps: " + "[" * 100_000, ""),
    "a number of 6,000 digits": ("caps: " + "9" * 6000, "is not YAML"),
    "a hexadecimal number of 6,000 digits": (
        "caps: 0x" + "f" * 6000,
        "a whole number beyond 64 bits",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_would_take_for_ever_is_refused(tmp_path, case):
    text, line = FILES[case]
    (tmp_path / "matrix.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_yaml(tmp_path / "matrix.yaml")
    assert line in str(error.value) and "\n" not in str(error.value)


def test_file_names_reach_no_shell(project):
    """Names of files may hold anything but leave the project; the rules quote them."""
    corpus = "prompts/a $(touch pwned) `touch pwned` '; touch pwned; \".txt"
    config = "config/models/$(touch pwned) & tiny';touch pwned;'.json"
    (project.folder / "prompts/alice.txt").rename(project.folder / corpus)
    (project.folder / "prompts/alice.txt").write_text("x" * 100)
    project.write(config, TINY_MODEL)
    models = {"tiny": TINY_MATRIX["models"]["tiny"] | {"config": config}}
    prompts = {"alice-16": {"tokens": 17, "corpus": corpus}}
    hostile = TINY_MATRIX | {"models": models, "prompts": prompts}
    matrix = "config/$(touch pwned);touch pwned.yaml"
    project.write(matrix, yaml.safe_dump(hostile))
    done = project.snakemake(
        "prompts/tiny/alice-16.json", "results/plan.csv", "--config", f"matrix={matrix}"
    )
    assert done.returncode == 0, done.stdout
    assert json.loads(project.read("prompts/tiny/alice-16.json"))["tokens"]
    assert not list(project.folder.rglob("pwned*"))


# The only HTML of a finding: what folds a table.
FOLD = re.compile(r"<details>\n<summary>[^<]*</summary>|</details>")
EVIL = (
    "| x | <script>alert(1)</script>\n\n# Owned {{ 7 * 7 }} {% raw %} "
    "[a](javascript:alert(1)) ![i](http://x/y) `code"
)


def test_what_engines_and_machines_say_is_text_in_the_finding(measured):
    def shape() -> list[str]:
        return [kind for name in ("finding", "details") for kind in document(name)]

    def document(name: str) -> list[str]:
        text = measured.read(f"report/{name}.md")
        tokens = MarkdownIt("commonmark").enable("table").parse(text)
        inline = [child for token in tokens for child in token.children or []]
        html = [token for token in [*tokens, *inline] if token.type.startswith("html")]
        assert not [token for token in html if not FOLD.fullmatch(token.content.strip())]
        links = [token.attrs.get("href", token.attrs.get("src", "")) for token in inline]
        assert not [link for link in links if "javascript" in str(link) or "//x/" in str(link)]
        return [token.type for token in tokens if token.type in ("heading_open", "th_open")]

    def finding_with(text: str) -> list[str]:
        for file in measured.folder.glob("results/cells/**/cell.json"):
            record = json.loads(file.read_text())
            record["detail"], record["flags"] = text, [text]
            record["engine"]["versions"] = {text: text}
            record["machine"]["before"]["name"] = record["machine"]["before"]["cpu"] = text
            record["harness"]["revision"] = text
            file.write_text(json.dumps(record, indent=1))
        for name in ("aggregate", "render"):
            command = [sys.executable, f"workflow/scripts/{name}.py"]
            subprocess.run(command, cwd=measured.folder, check=True)
        return shape()

    assert finding_with(EVIL) == finding_with("plain words")
