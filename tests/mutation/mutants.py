"""Do the tests notice a wrong figure? Cosmic Ray changes one place of a module at a time and runs
its tests.

    make mutants                                  # 100 places of each module, drawn with seed 0
    python tests/mutation/mutants.py --sample 20 analysis/statistics

A mutant that no test notices is a survivor: a test is missing, or the change is none
(equivalent.txt says why). Everything happens in a clone of the last commit.
"""

import argparse
import json
import random
import shlex
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "workflow/scripts/kvpeak"
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
TIMEOUT_S = 120.0  # of a module's tests under one mutant: some mutants never end
# The modules whose errors would be wrong numbers, each with the tests that hold it.
MODULES = {
    "analysis/statistics": ["test_statistics.py"],
    "analysis/judging": ["test_claims.py"],
    "analysis/claims": ["test_claims.py"],
    "analysis/comparisons": ["test_comparisons.py"],
    "analysis/least_work": ["test_least_work.py"],
    "analysis/fits": ["test_fits.py"],
    "analysis/results": ["test_results.py", "test_comparisons.py", "test_claims.py"],
    "replay/pools": ["test_pools.py", "test_prediction.py"],
    "replay/family": ["test_traces.py", "test_prediction.py"],
    "replay/qwen2": ["test_traces.py", "test_prediction.py"],
    "replay/quantized_qwen2": ["test_traces.py", "test_prediction.py"],
    "replay/llama": ["test_traces.py", "test_prediction.py"],
    "system/process_memory": ["test_process_memory.py"],
    "runner/watch": ["test_watch.py", "test_run_cell.py"],
}


def main() -> int:
    """Test the mutants of the modules that are asked for; 1 if one scores below 85 %."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="default: every one")
    parser.add_argument("--sample", type=int, default=100, help="mutants a module; default: 100")
    parser.add_argument("--seed", type=int, default=0, help="of the sample; default: 0")
    given = parser.parse_args()
    for name in given.modules:
        if name not in MODULES:
            parser.error(f"{name}: expected one of {', '.join(MODULES)}")
    scores = [tested(name, given.sample, given.seed) for name in given.modules or MODULES]
    return int(min(scores) < 0.85)


def tested(module: str, sample: int, seed: int) -> float:
    """The share of a module's mutants that its tests detect, equivalent ones left out; prints it
    and the survivors.
    """
    with tempfile.TemporaryDirectory() as temporary:
        clone, session = Path(temporary, "clone"), Path(temporary, "session.sqlite")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        config = clone / "mutants.toml"
        config.write_text(configuration(module))
        cosmic_ray("baseline", config, cwd=clone)
        cosmic_ray("init", config, session, cwd=clone)
        total = keep_sample(session, sample, seed)
        cosmic_ray("exec", config, session, cwd=clone)
        results = [json.loads(line) for line in cosmic_ray("dump", session, cwd=clone).splitlines()]
    known = equivalent()
    survivors = [
        diff_of(result) for item, result in results if result["test_outcome"] == "survived"
    ]
    left = [diff for diff in survivors if (module, changed(diff)) not in known]
    counted = len(results) - (len(survivors) - len(left))
    score = 1 - len(left) / counted
    print(f"{module}: {counted - len(left)} of {counted} detected ({100 * score:.0f} %), ", end="")
    print(f"{len(survivors) - len(left)} equivalent, drawn from {total}", flush=True)
    for diff in left:
        print("    " + changed(diff).replace("\n", "\n    "))
    return score


def configuration(module: str) -> str:
    """Cosmic Ray's configuration for one module."""
    tests = " ".join(f"tests/{name}" for name in MODULES[module])
    command = f"{shlex.quote(sys.executable)} -m pytest -x -q -p no:cacheprovider {tests}"
    return (
        "[cosmic-ray]\n"
        f'module-path = "{PACKAGE}/{module}.py"\n'
        f"timeout = {TIMEOUT_S}\n"
        "excluded-modules = []\n"
        f"test-command = {json.dumps(command)}\n"
        '[cosmic-ray.distributor]\nname = "local"\n'
    )


def keep_sample(session: Path, sample: int, seed: int) -> int:
    """Leave a drawn sample of the session's mutants in it; returns how many there were."""
    with sqlite3.connect(session) as database:
        places = "SELECT job_id FROM mutation_specs ORDER BY module_path, operator_name, occurrence"
        jobs = [row[0] for row in database.execute(places)]
        kept = set(random.Random(seed).sample(jobs, min(sample, len(jobs))))
        for table in ("mutation_specs", "work_items"):
            rows = [(job,) for job in jobs if job not in kept]
            database.executemany(f"DELETE FROM {table} WHERE job_id = ?", rows)
    database.close()
    return len(jobs)


def cosmic_ray(*arguments, cwd: Path) -> str:
    """Run the program; its standard output."""
    program = Path(sys.executable).with_name("cosmic-ray")
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, check=True, text=True, stdout=subprocess.PIPE).stdout


def diff_of(result: dict) -> str:
    """The mutant as a unified diff."""
    return result["diff"] or ""


def changed(diff: str) -> str:
    """The lines that a mutant takes away and puts in."""
    lines = [
        line for line in diff.splitlines() if line[:1] in "-+" and line[:3] not in ("---", "+++")
    ]
    return "\n".join(f"{line[0]} {line[1:].strip()}" for line in lines)


def equivalent() -> set[tuple[str, str]]:
    """The mutants that change nothing: equivalent.txt has module, changed lines and reason, an
    empty line between two.
    """
    if not EQUIVALENT.exists():
        return set()
    found = set()
    for entry in EQUIVALENT.read_text().split("\n\n"):
        lines = [line for line in entry.strip().splitlines() if not line.startswith("#")]
        if lines:
            found.add((lines[0], "\n".join(line for line in lines[1:] if line[0] in "-+")))
    return found


if __name__ == "__main__":
    sys.exit(main())
