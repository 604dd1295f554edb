"""On a machine with an NVIDIA GPU: batches and their energy, the counters, and the longest prompt.

    python tests/device/workloads.py OUT [--seconds 540]

Small cells of this project's workflow, one after another. Each result is in OUT as soon as it is
there, and what is in OUT is not measured again: a second start goes on where the first one stopped.
No cell is started after so many seconds. OUT gets

    cells.jsonl   a line for each cell: its joules held against a second reader of the card's
                  counter over the whole process, joules a token, speeds, peaks, tokens that differ
    doctor.json   what every counter read of processes whose memory is known
    longest.md    each longest prompt predicted from the shorter ones, and measured

The exit code is 1 if joules are more than 3 % off or a counter is wrong, 2 if a cell has no result
yet.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from bisect import bisect_left, bisect_right
from itertools import pairwise
from pathlib import Path

import pynvml
import yaml

ROOT = Path(__file__).parents[2]
ALLOWED = 0.03
SENSOR = "sensor_off"  # a running mean of about a second: shown, not judged
BATCHES = (1, 2, 4, 8, 16, 32)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
MATRIX = {
    "commits": {"mlx": {"engine": "mlx"}},
    "models": {
        "qwen2.5-0.5b": {
            "kind": "random",
            "config": "config/models/qwen2.5-0.5b-instruct.json",
            "dtype": "bfloat16",
        }
    },
    "prompts": {f"batch-{size}": {"tokens": 513, "batch": size} for size in BATCHES}
    | {f"alice-{length}": {"tokens": length + 1} for length in LENGTHS},
    "kv_caches": ["mlx-lm"],
    "caps": ["default"],
    "variants": {"stock": {"loop": "mlx-lm", "repeat_penalty": 1}},
    "protocol": {"generate": 512, "warmup": 1, "recorded": 1},
}


class Reader(threading.Thread):
    """Samples of (s, J, W) of the card, until it is stopped."""

    def __init__(self):
        super().__init__()
        pynvml.nvmlInit()
        self._card = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._over = threading.Event()
        self.samples: list[tuple[float, float, float]] = []

    def run(self):
        while not self._over.wait(0.004):
            joules = pynvml.nvmlDeviceGetTotalEnergyConsumption(self._card) / 1000
            watts = pynvml.nvmlDeviceGetPowerUsage(self._card) / 1000
            self.samples.append((time.monotonic(), joules, watts))

    def stop(self):
        self._over.set()
        self.join()

    def window(self, start_j: float, end_j: float) -> list[tuple[float, float, float]]:
        """The samples between two values of the counter."""
        joules = [sample[1] for sample in self.samples]
        return self.samples[bisect_left(joules, start_j) : bisect_right(joules, end_j)]


def integral(samples: list[tuple[float, float, float]]) -> float:
    """Joules by the power sensor, trapezoids."""
    return sum(
        (later[0] - earlier[0]) * (earlier[2] + later[2]) / 2
        for earlier, later in pairwise(samples)
    )


def snakemake(matrix: Path, *options: str) -> None:
    """Run the workflow on the matrix; options: more of `--config`, and what comes after it."""
    command = [sys.executable, "-m", "snakemake", "--cores", "all", "--config", f"matrix={matrix}"]
    subprocess.run([*command, *options], cwd=ROOT, check=False)


def folder_of(prompt: str) -> Path:
    return ROOT / f"results/cells/mlx/qwen2.5-0.5b/{prompt}/mlx-lm/default/stock/r1"


def measure(matrix: Path, prompt: str) -> dict:
    """The line of one cell, which is measured now."""
    result = folder_of(prompt) / "runs.csv"
    reader = Reader()
    reader.start()
    try:
        snakemake(matrix, "--force", "--", str(result.relative_to(ROOT)))
    finally:
        reader.stop()
    record = result.with_name("cell.json")
    if not record.exists():
        return {"prompt": prompt, "outcome": "no result"}
    cell = json.loads(record.read_text(encoding="utf-8"))
    return {"prompt": prompt, **figures(cell), **compared(cell, reader)}


def figures(cell: dict) -> dict:
    """What the cell says of its recorded run; a batch's is the whole batch's."""
    run = next((e for e in cell["events"] if e["event"] == "run" and not e["warmup"]), None)
    found = {"outcome": cell["outcome"], "detail": cell["detail"], "memory": cell["memory"]}
    if run is None:
        return found
    done = next((event for event in cell["events"] if event["event"] == "done"), {})
    steps = run.get("decode_steps", run["generated_tokens"] - 1)
    energy = (cell["energy"] or {}).get("runs", [{}])[-1]
    return found | {
        "prompt_tokens": run["prompt_tokens"],
        "ttft_s": run["ttft_s"],
        "decode_tok_s": steps / run["decode_s"],
        "prefill_j_per_token": per_token(energy.get("prefill_j"), run["prompt_tokens"]),
        "decode_j_per_token": per_token(energy.get("decode_j"), steps),
        "first_differences": done.get("first_differences"),
    }


def per_token(joules: float | None, tokens: int) -> float | None:
    return None if joules is None else joules / tokens


def compared(cell: dict, reader: Reader) -> dict:
    """How far the second reader, and the sum of the phases, are off the joules of the process."""
    energy, phases = cell["energy"], cell["phases"]
    if not energy or not energy["process_j"]:
        return {"energy": None}
    whole, idle_w = energy["process_j"], energy["idle_w"]
    samples = reader.window(phases[0]["start_j"], phases[-1]["end_j"])
    if len(samples) < 2:
        return {"energy": None}
    net = sum(value or 0.0 for run in energy["runs"] for value in run.values())
    counted = {
        f"{part}-{number}"
        for number, run in enumerate(energy["runs"])
        for part in ("prefill", "decode")
        if run[f"{part}_j"] is not None
    }
    timed = [phase for phase in phases if phase["phase"] in counted]
    rest = [phase for phase in phases if phase["phase"] not in counted]
    summed = net + idle_w * sum(phase["end_s"] - phase["start_s"] for phase in timed)
    summed += sum(phase["end_j"] - phase["start_j"] for phase in rest)
    return {
        "energy": {key: value for key, value in energy.items() if key != "runs"},
        "samples": len(samples),
        "reader_off": (samples[-1][1] - samples[0][1]) / whole - 1,
        "phases_off": summed / whole - 1,
        SENSOR: integral(samples) / whole - 1,
    }


def known(out: Path) -> dict[str, dict]:
    """Prompt → the line of each cell that is in OUT with a result."""
    file = out / "cells.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    found = {line["prompt"]: line for line in map(json.loads, lines)}
    return {name: line for name, line in found.items() if line["outcome"] == "ok"}


def measure_cells(out: Path, matrix: Path, until: float) -> None:
    """Measure what OUT does not have, the smallest first, and write each line at once."""
    for prompt in MATRIX["prompts"]:
        if prompt in known(out) and not needed_here(out, prompt):
            continue
        if time.monotonic() > until:
            return
        line = measure(matrix, prompt)
        with (out / "cells.jsonl").open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file, flush=True)
        shown = ("reader_off", "phases_off", "prefill_j_per_token", "decode_j_per_token")
        print(prompt, line["outcome"], {name: line.get(name) for name in shown}, flush=True)


def needed_here(out: Path, prompt: str) -> bool:
    """Whether the longest prompt is still to be predicted from this one, whose result is not on
    this machine.
    """
    predicted = prompt.startswith("batch") or (out / "longest.md").exists()
    return not predicted and not folder_of(prompt).exists()


def check_counters(out: Path) -> None:
    """kvpeak doctor, its record in OUT."""
    command = [sys.executable, "workflow/scripts/doctor.py", "--out", str(out / "doctor.json")]
    subprocess.run(command, cwd=ROOT, check=False)


def predict_longest(out: Path, matrix: Path) -> None:
    """The table of tests/bench/longest_prompt.py over the lengths whose results are here."""
    snakemake(matrix, "partial=true", "--", "results/plan.csv", "results/summary.csv")
    command = [sys.executable, "tests/bench/longest_prompt.py"]
    done = subprocess.run(command, cwd=ROOT, check=False, text=True, stdout=subprocess.PIPE)
    (out / "longest.md").write_text(done.stdout, encoding="utf-8")
    print(done.stdout, flush=True)


def verdict(out: Path) -> int:
    """See the module's text."""
    lines, counters = known(out), out / "doctor.json"
    if set(lines) != set(MATRIX["prompts"]) or not counters.exists():
        return 2
    shown = subprocess.run(
        [sys.executable, "workflow/scripts/doctor.py", "--read", str(counters)],
        cwd=ROOT,
        check=False,
    )
    off = [line.get(name) for line in lines.values() for name in ("reader_off", "phases_off")]
    wrong = any(value is None or abs(value) > ALLOWED for value in off)
    return 1 if wrong or shown.returncode else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=540.0)
    given = parser.parse_args()
    until, out = time.monotonic() + given.seconds, given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    matrix = out / "matrix.yaml"
    matrix.write_text(yaml.safe_dump(MATRIX, sort_keys=False), encoding="utf-8")
    (out / "expected.yaml").write_text("claims: []\n", encoding="utf-8")
    os.chdir(ROOT)
    if not (out / "doctor.json").exists():
        check_counters(out)
    measure_cells(out, matrix, until)
    if time.monotonic() <= until and not (out / "longest.md").exists():
        predict_longest(out, matrix)
    return verdict(out)


if __name__ == "__main__":
    sys.exit(main())
