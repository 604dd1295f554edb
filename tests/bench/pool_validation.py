"""Hold the replay of MLX's requests against MLX live under the same policies.

    python tests/bench/pool_validation.py [--models FOLDER …]

Records cells under MLX's own allocator: models, two caches, two lengths. Replays each recording
under every policy, runs the same cell live under it, and prints a Markdown table of both peaks.

MLX frees memory in two threads on a CPU. So two processes differ by a few buffers, whatever the
policy. The live process is recorded too: the replay of its own recording shows what is left if the
order is the same. The exit code is 1 if that is off by more than a hundredth, or a token differs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow/scripts"))

from kvpeak.base.numbers import MIB  # noqa: E402
from kvpeak.pools import trace  # noqa: E402
from kvpeak.pools.replay import Setting, policies, replay  # noqa: E402

CACHES, LENGTHS, GENERATE = ("cat", "mlx-lm"), (129, 513), 24
RANDOM = ("qwen2-tiny", "qwen2-small")  # configs of config/models


def run(folder: Path, request: dict) -> dict[str, dict]:
    """The events of one process by name."""
    (folder / "request.json").write_text(json.dumps(request))
    done = subprocess.run(
        [sys.executable, ROOT / "workflow/scripts/mlx_engine.py", "request.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return {event["event"]: event for event in map(json.loads, done.stdout.splitlines())}


def request_of(model: dict, cache: str, tokens: int, options: dict) -> dict:
    return {
        "engine": "mlx",
        "model": model,
        "prompt": {"name": "squares", "tokens": tokens, "path": "prompt.json"},
        "kv_cache": cache,
        "cap": "none",
        "options": {"attention": "naive", "prefill_chunk": "whole"} | options,
        "protocol": {
            "warmup": 0,
            "recorded": 1,
            "generate": GENERATE,
            "ignore_eos": True,
            "repeat_penalty": 1.1,
            "repeat_window": 64,
            "seed": 0,
        },
    }


def random_model(name: str, folder: Path) -> dict:
    target = folder / name / "config.json"
    target.parent.mkdir()
    target.write_text((ROOT / f"config/models/{name}.json").read_text())
    return {"folder": str(target.parent), "weights": "random", "dtype": "float32"}


def rows_of(name: str, model: dict, cache: str, tokens: int, folder: Path):
    """A row for each policy: predicted and live peaks in MiB."""
    prompt = {"tokens": [(11 * i * i + 7) % 4096 for i in range(tokens)]}
    (folder / "prompt.json").write_text(json.dumps(prompt))
    plain = run(folder, request_of(model, cache, tokens, {"record": True}))
    recording = trace.read(folder / f"trace{trace.SUFFIX}")
    for policy in policies():
        live = run(folder, request_of(model, cache, tokens, {"pool": policy, "record": True}))
        setting = Setting.parse(live["started"]["pool"]["setting"])
        predicted = replay(recording, setting).reserved_peak / MIB
        own = replay(trace.read(folder / f"trace{trace.SUFFIX}"), setting).reserved_peak / MIB
        measured = live["done"]["peak_pool_mib"]
        yield {
            "cell": f"{name} {cache} {tokens}",
            "policy": policy,
            "predicted": predicted,
            "live": measured,
            "off": predicted / measured - 1,
            "own": own / measured - 1,
            "tokens": live["run"]["tokens"] == plain["run"]["tokens"],
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--models", type=Path, nargs="*", default=[], help="folders of real weights"
    )
    given = parser.parse_args()
    worst, own, different = 0.0, 0.0, 0
    print("| cell | policy | predicted MiB | live MiB | off | own recording off | tokens |")
    print("|---|---|--:|--:|--:|--:|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = {each: random_model(each, folder) for each in RANDOM}
        for path in given.models:
            models[path.name] = {
                "folder": str(path.resolve()),
                "weights": "real",
                "dtype": "float32",
            }
        cells = [(m, c, n) for m in models for c in CACHES for n in LENGTHS]
        for model, cache, tokens in cells:
            for row in rows_of(model, models[model], cache, tokens, folder):
                worst, own = max(worst, abs(row["off"])), max(own, abs(row["own"]))
                different += not row["tokens"]
                print(
                    f"| {row['cell']} | {row['policy']} | {row['predicted']:,.1f} | "
                    f"{row['live']:,.1f} | {row['off']:+.2%} | {row['own']:+.2%} | "
                    f"{'equal' if row['tokens'] else 'DIFFERENT'} |",
                    flush=True,
                )
    print(
        f"\nthe worst is off by {worst:.2%}, from its own recording by {own:.2%}; "
        f"{different} cells with other tokens"
    )
    return int(own > 0.01 or different > 0)


if __name__ == "__main__":
    sys.exit(main())
