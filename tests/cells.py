"""One cell of a made-up engine: a small program of the test's own that the real runner starts."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

from kvpeak.base.files import sha256_of

RUN_CELL = Path(__file__).parents[1] / "workflow/scripts/run_cell.py"
NAMES = {
    "commit": "made-up",
    "model": "m",
    "prompt": "p",
    "kv_cache": "cat",
    "cap": "none",
    "variant": "default",
}
CELL = "made-up/m/p/cat/none/default/r1"
# The shapes of a model so small that its bytes can be counted by hand.
CONFIG = {
    "model_type": "qwen2",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}
ENGINE = """#!{python}
import json, os, signal, subprocess, sys, time

request = json.load(open(sys.argv[2]))
MIB = 1 << 20

def say(event, **keys):
    print(json.dumps({{"event": event, **keys}}), flush=True)

def load():
    say("started", versions={{"made-up": "1"}}, device={{"name": "cpu"}}, cap_bytes=None)
    say("loaded", load_s=0.25, loaded_mib=5.0, weights_mapped=False, dtype="float32")

def begin(number):
    say("run_started", run=number, warmup=number < request["protocol"]["warmup"])

def finish(number):
    say("prefilled", run=number)
    say("run", run=number, warmup=number < request["protocol"]["warmup"], prompt_tokens=64,
        generated_tokens=9, prefill_s=0.5, ttft_s=0.75, decode_s=2.0, tokens_sha256="ab" * 32,
        peak_active_mib=3.0 + number, peak_pool_mib=4.0)

def done():
    say("done", peak_active_mib=7.0, peak_pool_mib=8.0, peak_rss_mib=None)

def answer():
    load()
    for number in range(request["protocol"]["warmup"] + request["protocol"]["recorded"]):
        begin(number)
        finish(number)
    done()

"""


def measured_with(folder: Path, config: dict) -> dict:
    """Put a config into a model's folder; the `inputs` of a record that was measured with it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return {"model_sha256": "0", "shapes_sha256": sha256_of(folder / "config.json")}


class Cell:
    """A folder in which the runner runs one cell: `python` of the request is the made-up engine."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.out = folder / "results/cells" / CELL
        self.environment = os.environ | {"TMPDIR": str(folder)}  # a lock of its own
        self.environment.pop("CUDA_VISIBLE_DEVICES", None)

    def engine(self, body: str) -> None:
        """Make the engine: ENGINE followed by `body`."""
        file = self.folder / "engine"
        file.write_text(ENGINE.format(python=sys.executable) + body)
        file.chmod(0o755)

    def request(self, **changes) -> dict:
        return {
            "cell": NAMES | {"round": 1},
            "engine": "mlx",
            "python": str(self.folder / "engine"),
            "model": {"name": "m", "folder": "models/m", "weights": "random"},
            "prompt": {"name": "p", "tokens": 64, "path": "prompts/m/p.json"},
            "kv_cache": "cat",
            "cap": "none",
            "options": {},
            "protocol": {"warmup": 1, "recorded": 2},
        } | changes

    def command(self, **changes) -> list[str]:
        request = json.dumps(self.request(**changes))
        out = str(self.out.relative_to(self.folder))
        arguments = [out, "--request", request, "--position", "3/24"]
        return [sys.executable, str(RUN_CELL), *arguments]

    def run(self, **changes) -> subprocess.CompletedProcess:
        """Run the cell and wait for it."""
        return subprocess.run(
            self.command(**changes),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def start(self, **changes) -> subprocess.Popen:
        """Start the runner; its progress lines can be read from `stderr`."""
        return subprocess.Popen(
            self.command(**changes),
            cwd=self.folder,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def old_results(self) -> dict[str, str]:
        """Put results of an earlier run there."""
        self.out.mkdir(parents=True)
        for name in ("runs.csv", "cell.json", "memory.csv"):
            (self.out / name).write_text("old")
        return self.results()

    def results(self) -> dict[str, str]:
        """The files of the cell's folder; what a test put there to fail (a link to /dev/full) is
        not read.
        """
        return {
            file.name: "a link" if file.is_symlink() else file.read_text()
            for file in self.out.iterdir()
        }

    def record(self) -> dict:
        return json.loads((self.out / "cell.json").read_text())

    def rows(self, name: str = "runs.csv") -> list[dict]:
        with (self.out / name).open(newline="") as file:
            return list(csv.DictReader(file))

    def attempts(self) -> list[Path]:
        """The folders of every start, oldest first."""
        return sorted((self.folder / "results/logs" / CELL).iterdir())
