"""Run the policies, and one live cell with a pool in MLX's place, under the compilers' sanitizers.

    make sanitize

Address and undefined together, then thread. The cell is a tiny model's; MLX itself is not
instrumented. Needs g++ or clang, as the library does.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "workflow/scripts"), str(ROOT / "tests")]

from kvpeak.pools import library  # noqa: E402

KINDS = {"address,undefined": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}


def policies(kind: str, folder: Path, programs: int) -> None:
    """Random programs against every policy."""
    library.write_index(folder)
    program = folder / "policies"
    flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", f"-fsanitize={kind}", "-pthread"]
    flags += ["-fno-sanitize-recover=all", f"-I{folder}", f"-I{library.NATIVE}"]
    sources = [ROOT / "tests/native/policies.cpp", library.NATIVE / "parameters.cpp"]
    subprocess.run([library.compiler(), *flags, *sources, "-o", program], check=True)
    subprocess.run([program, str(programs)], check=True)


def live(kind: str, runtimes: tuple[str, ...], folder: Path) -> None:
    """One cell of the tiny model with PyTorch's rule, expandable segments and a recording."""
    from test_mlx_engine import Engine

    engine = Engine(folder)
    request = {"options": {"pool": "torch,expandable_segments:True", "record": True}}
    engine.start(**request)  # writes the request; its own run is of no interest here
    paths = [
        subprocess.run(
            [library.compiler(), f"-print-file-name={name}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for name in runtimes
    ]
    environment = os.environ | {
        "LD_PRELOAD": ":".join(paths),
        "KVPEAK_SANITIZE": kind,
        "KVPEAK_CACHE": str(folder),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1",
    }
    done = subprocess.run(
        [sys.executable, ROOT / "workflow/scripts/mlx_engine.py", "request.json"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    if done.returncode or events[-1:] != ["done"] or "Sanitizer" in done.stderr:
        sys.exit(f"{kind}: the live cell: {done.stdout[-500:]}\n{done.stderr[-4000:]}")
    print(f"{kind}: the live cell held")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=int, default=100, help="for each setting and thread")
    given = parser.parse_args()
    for kind, runtimes in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            policies(kind, Path(folder), given.programs)
            print(f"{kind}: the policies held")
            live(kind, runtimes, Path(folder))


if __name__ == "__main__":
    main()
