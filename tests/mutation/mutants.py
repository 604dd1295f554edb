"""Do the tests notice a wrong figure? Cosmic Ray changes one place of a module at a time and runs
its tests.

    make mutants                                  # 100 places of each module, drawn with seed 0
    python tests/mutation/mutants.py --sample 20 analysis/statistics

A mutant that no test notices is a survivor: a test is missing, or the change is none
(equivalent.txt says why). Everything happens in clones of the last commit, one for each core: each
tests one module at a time.
"""

import argparse
import compileall
import contextlib
import difflib
import gc
import importlib
import multiprocessing
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

import _pytest.config
import pytest
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code, use_mutation
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parents[2]
SOURCES = "workflow/scripts"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
FOREVER = 10  # times as long as without a change: some mutants never end
LEAST_S = 20.0
FORK = multiprocessing.get_context("fork")
WANTED = 0.85
# Imported once, here, and not again for every mutant; none of ours, and none with threads.
SLOW_IMPORTS = ("hypothesis", "jinja2", "jsonschema", "pandas", "scipy.stats", "yaml")
PLUGINS = ("_hypothesis_pytestplugin",)
# Nothing but what decides whether a test fails, so that a mutant costs little.
PYTEST = (
    *("-x", "-q", "-m", "not slow", "--assert=plain", "--hypothesis-profile=ci"),
    *("-p", "no:cacheprovider", "-p", "no:unraisableexception"),
    *(word for name in PLUGINS for word in ("-p", name)),
)
# The modules whose errors would be wrong numbers, each with the tests that hold it, less those that
# take long and see nothing that the others do not: what pytest is called with, in tests/.
MODULES = {
    "analysis/aggregate": "test_aggregate.py",
    "analysis/claims": "test_claim_groups.py",
    "analysis/comparisons": "test_comparisons.py",
    "analysis/fits": "test_fits.py -k 'not command and not mistake'",
    "analysis/growth": "test_growth.py",
    "analysis/judging": "test_claims.py",
    "analysis/least_work": "test_least_work.py",
    "analysis/pooled": "test_pooled.py -k 'not 2000_trials and not processes_have_an_interval'",
    "analysis/processes": "test_processes.py",
    "analysis/record_rows": "test_processes.py",
    "analysis/results": "test_results.py",
    "analysis/roof": "test_roof.py",
    "analysis/statistics": "test_statistics.py -k 'not trials and not would_not_cover'",
    "analysis/variance": "test_shares.py",
    "inputs/gguf": "test_gguf.py",
    "live/generation": "test_generation.py -k 'llama or not any_model and not one_pass'",
    "replay/family": "test_traces.py",
    "replay/llama": "test_traces.py",
    "replay/longest": "test_longest.py",
    "replay/pools": "test_pools.py",
    "replay/quantized_qwen2": "test_traces.py",
    "replay/qwen2": "test_traces.py",
    "replay/trace": "test_traces.py",
    "report/limits": "test_roof.py",
    "runner/outcome": "test_conclude.py",
    "runner/watch": "test_watch.py",
    "system/machine": "test_machine.py",
    "system/process_memory": "test_process_memory.py",
}


def main() -> int:
    """Test the mutants of the modules that are asked for; 1 if one scores too low."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="default: every one")
    parser.add_argument("--sample", type=int, default=100, help="mutants a module; default: 100")
    parser.add_argument("--seed", type=int, default=0, help="of the sample; default: 0")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="modules at a time; default: the cores"
    )
    given = parser.parse_args()
    for name in given.modules:
        if name not in MODULES:
            parser.error(f"{name}: expected one of {', '.join(MODULES)}")
    modules = given.modules or list(MODULES)
    import_once()
    scores = []
    with (
        tempfile.TemporaryDirectory() as temporary,
        ProcessPoolExecutor(min(given.jobs, len(modules)), FORK, clone, (temporary,)) as pool,
    ):
        print("module | drawn | of | detected | equivalent | left | % detected", flush=True)
        found = pool.map(tested, modules, repeat(given.sample), repeat(given.seed))
        for score, said in found:
            scores.append(score)
            print(said, flush=True)
    return int(min(scores) < WANTED)


def clone(folder: str) -> None:
    """Clone the last commit into a folder, and go there."""
    os.chdir(tempfile.mkdtemp(dir=folder))
    subprocess.run(["git", "clone", "--quiet", str(ROOT), "."], check=True)
    compile_all()


def import_once() -> None:
    """Import what takes long and is not ours: every fork has it then."""
    plugins = [f"_pytest.{name}" for name in _pytest.config.default_plugins]
    for name in (*SLOW_IMPORTS, *plugins, *PLUGINS):
        importlib.import_module(name)
    gc.freeze()


def compile_all() -> None:
    """Compile the clone, once: a fork writes nothing."""
    for folder in (SOURCES, "tests"):
        compileall.compile_dir(folder, quiet=2)


def tested(module: str, sample: int, seed: int) -> tuple[float, str]:
    """The share of a module's mutants that its tests detect, equivalent ones left out; and its row
    with the survivors.
    """
    for compiled in file_of(module).parent.glob(f"__pycache__/{file_of(module).stem}.*"):
        compiled.unlink()  # else two changes within a second would be the same to Python
    began = time.monotonic()
    if not pass_tests(module, None):  # which costs the others nothing
        return 0.0, f"{module} | its tests fail without a change"
    limit_s = max(LEAST_S, FOREVER * (time.monotonic() - began))
    places = all_places(module)
    drawn = random.Random(seed).sample(places, min(sample, len(places)))
    drawn = [place for place in drawn if compiles(module, *place)]
    survivors = [change for place in drawn if (change := survivor(module, *place, limit_s))]
    known = equivalent()
    left = [change for change in survivors if (module, change) not in known]
    same = len(survivors) - len(left)
    detected = len(drawn) - len(survivors)
    score = detected / (len(drawn) - same)
    row = (module, len(drawn), len(places), detected, same, len(left), f"{100 * score:.0f}")
    shown = ["    " + change.replace("\n", "\n    ") for change in left]
    return score, "\n".join([" | ".join(map(str, row)), *shown])


def all_places(module: str) -> list[tuple[str, int]]:
    """Every change that Cosmic Ray knows for a module: an operator's name, and at which of its
    places. An annotation is no such place: nothing would import it.
    """
    nodes = list(ast_nodes(get_ast_from_path(file_of(module))))
    found = []
    for name in sorted(operator_names()):
        operator = get_operator(name)
        if not operator.arguments():
            places = (node for node in nodes for _ in operator().mutation_positions(node))
            found += [(name, number) for number, node in enumerate(places) if not annotates(node)]
    return found


def compiles(module: str, operator: str, place: int) -> bool:
    """Whether a mutant is a program at all; every test would notice one that is not."""
    code = mutate_code(file_of(module).read_text(), get_operator(operator)(), place)
    try:
        with warnings.catch_warnings(action="ignore"):  # of `is` beside a literal
            compile(code, str(file_of(module)), "exec")
    except SyntaxError:
        return False
    return True


def annotates(node) -> bool:
    """Whether a node of the module's tree is in an annotation: `x: here`, `def f() -> here`."""
    while parent := node.parent:
        before = parent.children[parent.children.index(node) - 1]
        if parent.type in ("tfpdef", "annassign") and before == ":":
            return True
        if parent.type == "funcdef" and before == "->":
            return True
        node = parent
    return False


def survivor(module: str, operator: str, place: int, limit_s: float) -> str | None:
    """The lines that a mutant takes away and puts in, if no test notices it."""
    with use_mutation(file_of(module), get_operator(operator)(), place) as (before, after):
        if not pass_tests(module, limit_s):
            return None
    diff = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0))[2:]
    return "\n".join(f"{line[0]} {line[1:].strip()}" for line in diff if line[0] in "-+")


def file_of(module: str) -> Path:
    return Path(SOURCES, "kvpeak", f"{module}.py")


def pass_tests(module: str, limit_s: float | None) -> bool:
    """Whether a module's tests pass within a time, in a fork of this process."""
    fork = FORK.Process(target=run_tests, args=(module,))
    fork.start()
    fork.join(limit_s)
    ended = fork.exitcode
    with contextlib.suppress(ProcessLookupError):
        os.killpg(fork.pid, signal.SIGKILL)  # with all that the tests started
    fork.join()
    return ended == 0


def run_tests(module: str) -> None:
    os.setsid()
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.environ |= {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(Path(SOURCES).resolve()),
    }
    sys.dont_write_bytecode = True
    sys.exit(pytest.main([*PYTEST, *shlex.split(f"tests/{MODULES[module]}")]))


def equivalent() -> set[tuple[str, str]]:
    """The mutants that change nothing: equivalent.txt has module, changed lines and reason, an
    empty line between two.
    """
    found = set()
    for entry in EQUIVALENT.read_text().split("\n\n") if EQUIVALENT.exists() else ():
        lines = [line for line in entry.strip().splitlines() if not line.startswith("#")]
        if lines:
            found.add((lines[0], "\n".join(line for line in lines[1:] if line[0] in "-+")))
    return found


if __name__ == "__main__":
    sys.exit(main())
