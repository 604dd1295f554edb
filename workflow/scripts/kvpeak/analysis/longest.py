"""The table of the longest prompts that fit: a row for each series and memory, and one sentence."""

from pathlib import Path

from kvpeak.analysis.fits import TERMS, Growth, Law, Series, growth_of, longest
from kvpeak.analysis.results import Results
from kvpeak.analysis.series import OTHER_AXES, read_series
from kvpeak.base.columns import FITS
from kvpeak.base.numbers import GIB, MIB

MEMORIES_MIB = tuple(gib * GIB // MIB for gib in (8, 16, 24, 32, 64))


def fits_rows(
    results: Results, folder: Path, memories_mib: tuple[float, ...] = MEMORIES_MIB
) -> list[dict]:
    """Rows of FITS (base/columns.py): each series with the memory of its machine and
    `memories_mib`.

    A series whose data support no law has one row with the reason.
    """
    rows = []
    for series in read_series(results, folder):
        growth = growth_of(series)
        if isinstance(growth, str):
            rows.append(_row(series, reason=growth))
            continue
        if series.machine_mib:
            rows.append(_predicted(growth, series.machine_mib, own=True))
        rows += [_predicted(growth, memory, own=False) for memory in memories_mib]
    return rows


def _predicted(growth: Growth, memory_mib: float, own: bool) -> dict:
    found = longest(growth, memory_mib)
    series = growth.series
    return _row(
        series,
        memory_mib=memory_mib,
        machine="yes" if own else "no",
        longest_tokens=found.tokens,
        longest_low=found.low,
        longest_high=found.high,
        all_positions="yes" if found.all_positions else "no",
        positions=series.positions,
        times_measured=found.tokens / series.points[-1].tokens,
        peak_mib=growth.peak(found.tokens)[0] if found.tokens else None,
        law=spell_law(growth.law),
        weights_mib=growth.fixed.weights,
        process_mib=growth.fixed.process[0],
        kept_mib=growth.fixed.kept[0],
        left_out_error_pct=100 * growth.error,
    )


def spell_law(law: Law) -> str:
    """The law with each of its terms, e.g. `0.435 × the tokens, of 2,048 at most + 0.0117 × the
    tokens beyond these`: with weights, process and kept MiB it gives the predicted peak.
    """
    chunk, cached = law.prefill.chunk, law.prefill.cached
    words = dict(TERMS)
    if chunk:
        words["scores"] += f" of the largest chunk of {chunk:,}"
    divided = chunk is not None and cached is not None
    if divided:
        words["tokens"] += f", {chunk:,} at most"
    terms = [
        f"{value:.3g} × {words[term]}"
        for term, value in zip(law.terms, law.coefficients, strict=True)
        if value
    ]
    if divided:
        terms.append(f"{cached:.3g} × the tokens beyond {chunk:,}")
    return " + ".join(terms)


def _row(series: Series, **known) -> dict:
    lengths = [point.tokens for point in series.points]
    row = {
        **series.names,
        "lengths": len(lengths),
        "longest_measured": lengths[-1],
    }
    return dict.fromkeys(FITS.names) | row | known


def sentence(rows: list[dict], sampled: bool = False) -> str | None:
    """What the rows of the measuring machine say in one sentence; None if no series has a law.

    `sampled`: the peaks that were fitted are lower bounds.
    """
    own = [row for row in rows if row["machine"] == "yes"]
    if not own:
        return None
    memory = f"{own[0]['memory_mib'] * MIB / GIB:,.0f} GiB"
    series = len({tuple(row[axis] for axis in OTHER_AXES) for row in rows})
    most = max(own, key=lambda row: row["longest_tokens"])
    least = min(own, key=lambda row: row["longest_tokens"])
    if all(row["all_positions"] == "yes" for row in own):
        fits = (
            "every prompt fits that the model has positions for (up to "
            f"{most['longest_tokens']:,} tokens)"
        )
    elif most["longest_tokens"] == least["longest_tokens"]:
        fits = f"{_spelled(most)} fit"
    else:
        fits = (
            f"{_spelled(most)} fit with {_named(most)}, and {_spelled(least)} with {_named(least)}"
        )
    of = f" ({len(own)} of {series} settings; no prediction for the others)"
    if series > len(own):
        fits += of
    text = f"Predicted for the measuring machine's {memory}: {fits}."
    return text + " Fitted to sampled peaks: less may fit." * sampled


def _named(row: dict) -> str:
    return (
        f"{row['model']}, {row['kv_cache']}, cap {row['cap']} ({row['commit']}, {row['variant']})"
    )


def _spelled(row: dict) -> str:
    """E.g. `12,300 tokens (11,000 to 13,900)`, or that the model takes no more."""
    if row["all_positions"] == "yes":
        return f"all {row['longest_tokens']:,} tokens that the model has positions for"
    return f"{row['longest_tokens']:,} tokens ({row['longest_low']:,} to {row['longest_high']:,})"
