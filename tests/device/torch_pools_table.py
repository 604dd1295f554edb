"""Set the peaks that PyTorch counted beside those replayed from one snapshot of each workload.

    python tests/device/torch_pools_table.py FOLDER

FOLDER holds what torch_pools.py wrote. Prints a Markdown table; the exit code is 1 if a prediction
is off by more than 1 %. A workload that ran out of memory has a recording that ends there: its
requests are those of the same program without a limit.
"""

import io
import json
import lzma
import sys
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "workflow" / "scripts"))

from kvpeak.pools import snapshot
from kvpeak.pools.replay import Setting, replay

SAME_PROGRAM = {"training_limited": "training"}
KEYS = ("reserved", "active", "allocated")


def compared(folder: Path):
    """For each process what it counted, and its workload replayed under its setting."""
    traces = {}
    with zipfile.ZipFile(folder / "snapshots.zip") as archive:
        for name in archive.namelist():
            with lzma.open(io.BytesIO(archive.read(name))) as file:
                traces[name.split(".")[0]] = snapshot.open_snapshot(Path(name), file)[0]
    for row in json.loads((folder / "peaks.json").read_text()):
        trace = traces[SAME_PROGRAM.get(row["workload"], row["workload"])]
        yield row, replay(trace, Setting("torch", row["setting"]), row["limit"])


def main(folder: Path) -> int:
    print("| workload | setting | reserved, counted | replayed | off | active off | end |")
    print("|---|---|--:|--:|--:|--:|---|")
    worst = 0.0
    for row, outcome in compared(folder):
        off = [outcome.numbers[f"{key}_peak"] / row[f"{key}_peak"] - 1 for key in KEYS]
        worst = max(worst, *map(abs, off[:1]))
        end = " / ".join(
            "out of memory" if failed else "ran" for failed in (row["error"], not outcome.fits)
        )
        retries = f"{row['num_alloc_retries']} / {outcome.retries}"
        print(
            f"| {row['workload']} | {row['setting'] or 'default'} | {row['reserved_peak']:,} | "
            f"{outcome.reserved_peak:,} | {off[0]:+.3%} | {off[1]:+.3%} | {end}, retries {retries} "
            "|"
        )
    return int(worst > 0.01)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
