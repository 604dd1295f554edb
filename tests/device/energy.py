"""On a machine with an NVIDIA GPU: hold a cell's joules against the card's own counter and its
power sensor.

Measures one cell with this project's workflow, while a second reader samples the card every few
milliseconds. Printed are, for the whole process: what cell.json says, what the second reader's
counter rose by in the same time, the integral of the power sensor, and the sum of the phases; then
joules a token, with the idle power that was taken off. The exit code is 1 if a counter or the sum
of the phases is more than 3 % off.

    python tests/device/energy.py OUT
"""

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
SENSOR = "power sensor, integrated"  # a running mean of about a second: shown, not judged
CELL = "mlx/qwen2.5-0.5b/alice-4096/prealloc/none/fused"
MATRIX = {
    "commits": {"mlx": {"engine": "mlx"}},
    "models": {
        "qwen2.5-0.5b": {
            "kind": "random",
            "config": "config/models/qwen2.5-0.5b-instruct.json",
            "dtype": "bfloat16",
        }
    },
    "prompts": {"alice-4096": {"tokens": 4097}},
    "kv_caches": ["prealloc"],
    "caps": ["none"],
    "variants": {"fused": {"attention": "fused"}},
    "protocol": {"generate": 2048, "recorded": 3},
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


def measure(out: Path) -> tuple[dict, Reader]:
    matrix = out / "matrix.yaml"
    matrix.write_text(yaml.safe_dump(MATRIX, sort_keys=False), encoding="utf-8")
    (out / "expected.yaml").write_text("claims: []\n", encoding="utf-8")
    folder = ROOT / "results/cells" / CELL / "r1"
    reader = Reader()
    reader.start()
    try:
        target = f"{folder.relative_to(ROOT)}/runs.csv"
        command = [sys.executable, "-m", "snakemake", "--cores", "all", "--force", "--config"]
        subprocess.run([*command, f"matrix={matrix}", "--", target], cwd=ROOT, check=True)
    finally:
        reader.stop()
    return json.loads((folder / "cell.json").read_text(encoding="utf-8")), reader


def main(out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    cell, reader = measure(out.resolve())
    energy, phases = cell["energy"], cell["phases"]
    samples = reader.window(phases[0]["start_j"], phases[-1]["end_j"])
    whole = energy["process_j"]
    idle_w = energy["idle_w"]
    print(json.dumps({key: value for key, value in energy.items() if key != "runs"}, indent=1))
    seconds = samples[-1][0] - samples[0][0]
    print(f"{'cell.json, whole process':<42}{whole:>10.1f} J {energy['process_s']:>7.2f} s")
    net = sum(value or 0.0 for run in energy["runs"] for value in run.values())
    timed = [phase for phase in phases if phase["phase"][:3] in ("pre", "dec")]
    rest = [phase for phase in phases if phase not in timed]
    summed = net + idle_w * sum(phase["end_s"] - phase["start_s"] for phase in timed)
    summed += sum(phase["end_j"] - phase["start_j"] for phase in rest)
    others = {
        "second reader's counter": samples[-1][1] - samples[0][1],
        SENSOR: integral(samples),
        "phases, idle power put back": summed,
    }
    worst = 0.0
    for name, joules in others.items():
        off = joules / whole - 1
        worst = worst if name == SENSOR else max(worst, abs(off))
        print(f"{name:<42}{joules:>10.1f} J {seconds:>7.2f} s {100 * off:>+7.2f} %")
    tokens = (cell["request"]["prompt"]["tokens"], cell["request"]["protocol"]["generate"] - 1)
    for run, found in enumerate(energy["runs"]):
        for part, count in zip(("prefill", "decode"), tokens, strict=True):
            joules = found[f"{part}_j"]
            shown = "too short" if joules is None else f"{1000 * joules / count:.3f} mJ a token"
            print(f"run {run} {part:<8} {shown}, {idle_w:.1f} W idle taken off")
    memory = cell["memory"]
    print({key: memory[key] for key in ("peak_device_mib", "peak_reserved_mib", "peak_pool_mib")})
    (out / "energy.json").write_text(json.dumps({"cell": cell, "samples": len(samples), **others}))
    return 1 if worst > ALLOWED else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(Path(sys.argv[1])))
