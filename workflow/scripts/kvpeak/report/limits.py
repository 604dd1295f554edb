"""How close to the limit: speeds as shares of what the machine reached in its calibration."""

from kvpeak.analysis.roof import is_foreign, roofs, shares_of
from kvpeak.base.axes import AXES
from kvpeak.base.numbers import MIB, percent
from kvpeak.report.markdown import Markdown, number
from kvpeak.report.tables import SHOWN, cell_table

HEADER = (
    *("prefill, GFLOP", "GFLOP/s", "of the roof"),
    *("decode, MiB a token", "GB/s", "of the roof"),
)


def limits_section(summary: list[dict], calibrations: dict[str, dict], dtypes: dict) -> dict | None:
    """Prefill as a share of the calibrated FLOP/s, decode of the bandwidth; None where nothing was
    calibrated here. `dtypes`: a cell's names on the axes → the type it computed in.
    """
    found, foreign, machines = [], 0, roofs(calibrations)
    for row in summary:
        calibration = calibrations.get(row["commit"])
        if not calibration or row["prefill_flops"] is None:
            continue
        roof = machines.get(row["machine"])
        if roof is None or is_foreign(row, calibration):
            foreign += 1
            continue
        shares = shares_of(row, dtypes.get(tuple(row[axis] for axis in AXES)), roof)
        if shares.flop_s or shares.byte_s:
            found.append(shares)
    if not found and not foreign:
        return None
    by_row = {id(shares.row): shares for shares in found}
    table = cell_table([shares.row for shares in found], HEADER, lambda row: _row(by_row[id(row)]))
    used = dict.fromkeys(shares.row["machine"] for shares in found)
    return {
        "table": table,
        "left_out": len(found[SHOWN:]),
        "foreign": foreign,
        "roofs": [(machine, machines[machine]) for machine in used],
        "in_cache": sum(shares.in_cache for shares in found),
    }


def _row(shares) -> list:
    row = shares.row
    return [
        number(row["prefill_flops"] / 1e9, 2),
        number(shares.flop_s and shares.flop_s / 1e9, 0),
        percent(shares.flop_share, 0, sign=False),
        number(row["decode_bytes"] / MIB, 1),
        number(shares.byte_s and shares.byte_s / 1e9, 1),
        Markdown("in cache" if shares.in_cache else percent(shares.byte_share, 0, sign=False)),
    ]
