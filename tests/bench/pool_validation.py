"""Hold the replay of MLX's requests against MLX live under the same policies.

    snakemake --cores 1 models/smollm2-135m-instruct/model.json
    python tests/bench/pool_validation.py --models models/smollm2-135m-instruct

Records cells under MLX's own allocator: models, two caches, two lengths. Replays each recording
under every policy, runs the same cell live under it, and prints a Markdown table of both peaks.

On a CPU a second thread runs the operations and frees memory, sooner or later. So each is done
twice: with `wait`, where the order is always the same, and as MLX is. The exit code is 1 if with
`wait` a prediction is off by more than a hundredth, if `pool: mlx` then has not MLX's own
counters to the byte, or if a token differs.
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
WAITS = (True, False)
COUNTERS = ("peak_active_mib", "peak_pool_mib")


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
    """A row for each policy: predicted and live peaks in MiB, with `wait` and as MLX is."""
    prompt = {"tokens": [(11 * i * i + 7) % 4096 for i in range(tokens)]}
    (folder / "prompt.json").write_text(json.dumps(prompt))

    def cell(**options):
        events = run(folder, request_of(model, cache, tokens, options))
        return events, trace.read(folder / f"trace{trace.SUFFIX}")

    plain = {wait: cell(record=True, wait=wait) for wait in WAITS}
    for policy in policies():
        row = {"cell": f"{name} {cache} {tokens}", "policy": policy, "tokens": True}
        for wait, (own, recording) in plain.items():
            live, _ = cell(pool=policy, record=True, wait=wait)
            setting = Setting.parse(live["started"]["pool"]["setting"])
            measured = live["done"]["peak_pool_mib"]
            predicted = replay(recording, setting).reserved_peak / MIB
            row[wait] = (predicted, measured, predicted / measured - 1)
            row["tokens"] &= live["run"]["tokens"] == own["run"]["tokens"]
            if wait:
                row["counters"] = all(live["done"][key] == own["done"][key] for key in COUNTERS)
        yield row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--models", type=Path, nargs="*", default=[], help="folders of real weights"
    )
    given = parser.parse_args()
    print(
        "| cell | policy | predicted MiB, waiting | live | off | as MLX is | live | off | tokens |"
    )
    print("|---|---|--:|--:|--:|--:|--:|--:|---|")
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
        return summed_up(
            [
                printed(row)
                for model, cache, tokens in cells
                for row in rows_of(model, models[model], cache, tokens, folder)
            ]
        )


def printed(row: dict) -> dict:
    both = " | ".join(
        f"{p:,.1f} | {live:,.1f} | {off:+.2%}" for p, live, off in map(row.get, WAITS)
    )
    same = "equal" if row["tokens"] else "DIFFERENT"
    print(f"| {row['cell']} | {row['policy']} | {both} | {same} |", flush=True)
    return row


def summed_up(rows: list[dict]) -> int:
    worst = {}
    for row in rows:
        for wait in WAITS:
            known = worst.setdefault(row["policy"], dict.fromkeys(WAITS, 0.0))
            known[wait] = max(known[wait], abs(row[wait][2]))
    print("\noff at most: with wait, and as MLX is")
    for policy, off in worst.items():
        print(f"  {policy:10} {off[True]:7.2%} {off[False]:7.2%}")
    mlx = [row["counters"] for row in rows if row["policy"] == "mlx"]
    different = sum(not row["tokens"] for row in rows)
    print(f"pool: mlx has MLX's own counters to the byte in {sum(mlx)} of {len(mlx)} cells")
    print(f"{different} cells with other tokens")
    failed = max(off[True] for off in worst.values()) > 0.01
    return int(failed or not all(mlx) or different > 0)


if __name__ == "__main__":
    sys.exit(main())
