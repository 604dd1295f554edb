"""How well the longest prompt is predicted: each series fitted without its longest lengths, and
held against them.

Reads results/ of the folder that it is started in, after make finding
MATRIX=config/fits/matrix.yaml.
"""

import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow/scripts"))

from kvpeak.analysis.fits import growth_of  # noqa: E402
from kvpeak.analysis.results import read_results  # noqa: E402
from kvpeak.analysis.series import read_series  # noqa: E402

RESULTS = Path("results")


def main() -> None:
    results = read_results(*(RESULTS / f"{name}.csv" for name in ("plan", "summary", "runs")))
    print("| model | KV cache | cap | fitted up to | asked for | peak | predicted | off by |")
    print("|---|---|---|--:|--:|--:|--:|--:|")
    for series in read_series(results, RESULTS):
        for number in range(3, len(series.points)):
            known, asked = series.points[:number], series.points[number]
            growth = growth_of(replace(series, points=known))
            names = " | ".join(series.names[axis] for axis in ("model", "kv_cache", "cap"))
            lengths = f"{known[-1].tokens:,} | {asked.tokens:,} | {asked.peak:,.0f}"
            if isinstance(growth, str):
                print(f"| {names} | {lengths} | – | {growth} |")
                continue
            predicted = growth.peak(asked.tokens)[0]
            print(f"| {names} | {lengths} | {predicted:,.0f} | {predicted / asked.peak - 1:+.1%} |")


if __name__ == "__main__":
    main()
