"""How close to the limit: speeds as shares of what the machine reached in its calibration."""

from kvpeak.base.fields import split_texts
from kvpeak.base.numbers import MIB, percent
from kvpeak.report.markdown import number
from kvpeak.report.tables import SHOWN, cell_table


def limits_section(summary: list[dict], calibrations: dict[str, dict], dtypes: dict) -> dict | None:
    """Prefill as a share of the calibrated FLOP/s, decode of the bandwidth; None where nothing was
    calibrated here.

    `dtypes`: (commit, model) → the type that the cell computed in. A cell of another machine, or
    computed by another BLAS or number of threads, is `foreign` to the calibration.
    """
    rows, foreign = [], 0
    for row in summary:
        calibration = calibrations.get(row["commit"])
        dtype = dtypes.get((row["commit"], row["model"]))
        if not calibration or row["prefill_flops"] is None or row["prefill_tok_s"] is None:
            continue
        # unknown is not other
        other_blas = row["blas"] and split_texts(row["blas"]) != [calibration.get("blas")]
        if calibration["machine"] != row["machine"] or other_blas:
            foreign += 1
            continue
        peak = calibration["dtypes"].get(dtype)
        if peak:
            rows.append(row | _limits(row, peak))
    if not rows and not foreign:
        return None
    table = cell_table(
        rows,
        [
            *("prefill, GFLOP", "GFLOP/s", "of peak"),
            *("decode, MiB a token", "GB/s", "of peak"),
        ],
        lambda row: [
            number(row["prefill_flops"] / 1e9, 1),
            number(row["flop_s"] / 1e9, 1),
            percent(row["flop_share"], 0, sign=False),
            number(row["decode_bytes"] / MIB, 1),
            number(row["byte_s"] / 1e9, 2),
            percent(row["byte_share"], 0, sign=False),
        ],
    )
    return {
        "table": table,
        "left_out": len(rows[SHOWN:]),
        "foreign": foreign,
        "peaks": [
            {"commit": commit, "dtype": dtype, **_peak(calibrations[commit]["dtypes"][dtype])}
            for commit, dtype in dict.fromkeys(
                (row["commit"], dtypes[row["commit"], row["model"]]) for row in rows
            )
        ],
    }


def _peak(peak: dict) -> dict:
    return {"gflop_s": peak["flops"] / 1e9, "gb_s": max(peak["copy"], peak["matvec"]) / 1e9}


def _limits(row: dict, peak: dict) -> dict:
    """FLOP/s and bytes/s of the mean speeds, and their shares of the peaks."""
    flop_s = row["prefill_flops"] * row["prefill_tok_s"] / row["prompt_tokens"]
    byte_s = None if row["decode_tok_s"] is None else row["decode_bytes"] * row["decode_tok_s"]
    best = _peak(peak)
    return {
        "flop_s": flop_s,
        "flop_share": flop_s / 1e9 / best["gflop_s"],
        "byte_s": byte_s or 0,
        "byte_share": None if byte_s is None else byte_s / 1e9 / best["gb_s"],
    }
