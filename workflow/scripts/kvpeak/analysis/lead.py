"""What a comparison comes to in one sentence: the largest change of a peak that the data
support.
"""

from dataclasses import dataclass

from kvpeak.analysis.comparisons import PRACTICAL, Change, Comparison, Pair, peak_range
from kvpeak.analysis.headline import (
    MISSED_MIB,
    counter_of,
    is_lower_bound,
    outside_runs,
)
from kvpeak.analysis.instruments import DOUBTED
from kvpeak.analysis.results import repeats
from kvpeak.analysis.setting import differences, laboratory, packages_apart
from kvpeak.analysis.verdicts import Verdict
from kvpeak.analysis.workloads import is_plain, spell_length, spell_prompt
from kvpeak.base.columns import SPEEDS
from kvpeak.base.numbers import percent

TITLES = {
    "commit": "From {before} to {after}",
    "model": "With {after} instead of {before}",
    "prompt": "With {after} instead of {before}",
    "kv_cache": "With the {after} cache instead of {before}",
    "cap": "With a cap of {after} on the buffer pool",
    "variant": "With the variant {after} instead of {before}",
    "results": "From {before} to {after}",
}

# Of a pair whose compared sides are both this project's own.
NEITHER = {
    "kv_cache": "neither cache is mlx-lm's own",
    "cap": "neither cap is the engine's own",
    "variant": "neither loop is mlx-lm's own",
}


@dataclass(frozen=True)
class Lead:
    """What a comparison comes to: plain text, not yet escaped for Markdown. `pair` is None if
    nothing was found.
    """

    title: str
    sentence: str
    pair: Pair | None
    speeds: str = ""  # what happened to the pair's speeds


def lead(comparison: Comparison) -> Lead:
    """The largest change of a peak that the data support, in one sentence, or the honest opposite.

    Measured pairs come before replayed ones, and a setting that the engine has by itself on one
    side at least before one that only this project makes; among these the largest in MiB leads. The
    sentence begins with a setting of the other kind.
    """
    subject = _subject(comparison)
    found = [pair for pair in comparison.pairs if pair.above_noise]
    if not found:
        return _no_lead(comparison, subject)
    pair = max(found, key=_order)
    subject = _of_rules(subject, pair)
    before, after = pair.before["peak_mib"], pair.after["peak_mib"]
    change = "falls" if after < before else "rises"
    preface = _preface(pair)
    begin = f"In a laboratory setting: {_lower(subject)}" if preface else subject
    title = (
        f"{begin} the peak of {_what(pair)} {change} "
        f"from {before:,.0f} to {after:,.0f} MiB{' (sampled)' * _sampled(pair)}"
    )
    factor = max(before, after) / min(before, after)
    sentence = (
        f"{preface}{_lower(subject) if preface else subject}, {_where(pair)} peaks at "
        f"{_with_range(pair.after)} instead of {_with_range(pair.before)} "
        f"({factor:.2f}× {'less' if after < before else 'more'}{_processes(pair)}){_method(pair)}."
    )
    differ = {"variant": differences, "commit": packages_apart}.get(comparison.axis)
    if differ and (more := differ(pair.before, pair.after)):
        others = " and the packages that come with them" * (comparison.axis == "commit")
        sentence += f" What differs: {more}{others}."
    sentence += "".join(f" {_upper(text)}." for text in beside_runs(pair))
    return Lead(title, sentence, pair, f"{spell_speeds(pair)}.")


def beside_runs(pair: Pair) -> list[str]:
    """Of each of two peaks that it was reached in loading, or after the last run."""
    return [
        f"{row['peak_mib']:,.0f} MiB {when}, the runs' largest sample {row['sampled_run_mib']:,.0f}"
        for row in (pair.before, pair.after)
        if (when := outside_runs(row))
    ]


def order(pair: Pair) -> tuple:
    """By which the largest change is found: measured before replayed, then by MiB."""
    return pair.live, abs(pair.peak_change_mib)


def spell_change_of(axis: str, pair: Pair) -> str:
    """A change of a peak, the axis, the names and the two figures first, the rest in brackets."""
    before, after = pair.before, pair.after
    names = " → ".join(spell_name(axis, row[axis]) for row in (before, after))
    peaks = " → ".join(f"{row['peak_mib']:,.0f}" for row in (before, after))
    words = shared_laboratory(pair)
    brackets = [
        f"{after['peak_mib'] / before['peak_mib']:.2f} times",
        ", ".join(_names(pair)),
        *([f"a laboratory setting: {', '.join(words.values())}"] if words else []),
        *([differences(before, after)] if axis == "variant" else []),
        *([_method(pair).strip()] if not pair.live else []),
        *(["sampled"] if _sampled(pair) else []),
        *beside_runs(pair),
    ]
    what = "KV cache" if axis == "kv_cache" else axis.capitalize()
    return f"{what}, {names}: {peaks} MiB{of_what(before)} ({'; '.join(filter(None, brackets))})."


def leading(comparisons: list[Comparison]) -> Lead | None:
    """The lead of all comparisons, in the order of lead(); None without comparisons."""
    leads = [lead(comparison) for comparison in comparisons]
    found = [each for each in leads if each.pair]
    if not found:
        return next(iter(leads), None)
    return max(found, key=lambda each: _order(each.pair))


def shared_laboratory(pair: Pair) -> dict[str, str]:
    """What of the setting is this project's own on both sides: axis → words."""
    before, after = map(laboratory, (pair.before, pair.after))
    shared = {axis: words for axis, words in after.items() if axis in before}
    return {axis: words if axis in pair.names else NEITHER[axis] for axis, words in shared.items()}


def _order(pair: Pair) -> tuple:
    return pair.live, not shared_laboratory(pair), abs(pair.peak_change_mib)


def _sampled(pair: Pair) -> bool:
    return is_lower_bound(pair.before) or is_lower_bound(pair.after)


def _preface(pair: Pair) -> str:
    words = shared_laboratory(pair)
    if not words:
        return ""
    return f"In a laboratory setting, not as mlx-lm runs ({', '.join(words.values())}): "


def _lower(subject: str) -> str:
    return subject[0].lower() + subject[1:]


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _of_rules(subject: str, pair: Pair) -> str:
    """The subject with the rules of the pool by name, where they are not MLX's own."""
    before, after = (side.get("pool_rule") or "" for side in (pair.before, pair.after))
    if "variant" not in pair.names and before != after:
        one, other = (rule or "MLX's own" for rule in (before, after))
        return f"With the pool's rule {other} instead of {one}"
    if "cap" in pair.names or not after:
        return subject
    return f"Under the pool's rule {after.split(',')[0]}, {_lower(subject)}"


def _subject(comparison: Comparison) -> str:
    axis, before, after = comparison.axis, comparison.before, comparison.after
    if axis == "cap" and after == "default":
        return "With the engine's own cap on the buffer pool"
    if axis == "cap" and after == "none":
        own = "the engine's own cap" if before == "default" else f"the cap of {before}"
        return f"Without {own} on the buffer pool"
    if axis == "cap" and before == "default":
        return f"With a cap of {after} on the buffer pool instead of the engine's own"
    if axis == "cap" and before != "none":
        return f"With a cap of {after} on the buffer pool instead of {before}"
    return TITLES[axis].format(before=before, after=after)


def _no_lead(comparison: Comparison, subject: str) -> Lead:
    complete = [pair for pair in comparison.pairs if pair.complete]
    if not complete:
        return Lead(
            f"{subject}: nothing to compare",
            f"{subject}: no pair of cells was measured to the end here, so nothing can be said.",
            None,
        )
    ratios = [pair.peak_ratio for pair in complete]
    share = percent(PRACTICAL, 0, sign=False)
    noise = [pair for pair in complete if pair.within_noise]
    missed = any(row.get("missed_mib") for pair in noise for row in (pair.before, pair.after))
    above = "above the noise" if noise else f"by more than {share}"
    meet = ", or the ranges of its processes meet" if noise else ""
    meet += ", or may by what samples missed" * missed
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    if len(ratios) == 1:
        each, spread = "the one pair", f"{ratios[0]:.2f}"
    else:
        each = f"each of {len(ratios)} pairs"
    return Lead(
        f"{subject} no peak changes {above}",
        f"{subject}, no difference of the peak {above} was found: {each} of cells differs by at "
        f"most {share}{meet} (ratio{'s' * (len(ratios) > 1)} {spread}).{_of_pools(complete)}",
        None,
    )


def _of_pools(pairs: list[Pair]) -> str:
    """What is said of the pool's peak, an exact count, where that differs although the peak of the
    process does not.
    """
    live = [(pair.before, pair.after) for pair in pairs if pair.live]
    sizes = [tuple(row.get("peak_pool_mib") for row in sides) for sides in live]
    apart = [(a, b) for a, b in sizes if a and b and abs(b / a - 1) > PRACTICAL]
    if not apart:
        return ""
    before, after = max(apart, key=lambda each: abs(each[1] / each[0] - 1))
    where, most = (f" in {len(apart)} of them", "most: ") if len(pairs) > 1 else ("", "")
    return (
        f" The pool's own peak differs by more than {percent(PRACTICAL, 0, sign=False)}{where} "
        f"({most}{before:,.0f} → {after:,.0f} MiB)."
    )


def spell_peak(row: dict) -> str:
    """E.g. `660 MiB`, or `660 MiB or more` where that was sampled."""
    return f"{row['peak_mib']:,.0f} MiB{' or more' * is_lower_bound(row)}"


def of_what(row: dict) -> str:
    """Where a peak is not of the process's memory, what it is of."""
    return " of GPU memory" if counter_of(row) == "device" else ""


def caution(pair: Pair) -> list[str]:
    """What makes the two peaks less sure than their figures look, a sentence each."""
    sides = (pair.before, pair.after)
    found = []
    if _sampled(pair):
        found.append("Both peaks were sampled: either may be higher, and the ratio off.")
    worst = max(sides, key=lambda row: row.get("missed_mib", 0))
    if (missed := worst.get("missed_mib", 0)) >= MISSED_MIB:
        where = f"in {worst['missed_in']} of {int(worst['rounds'])} processes"
        most = ", in one of them" if worst["missed_in"] > 1 else ""
        found.append(
            f"Samples are known to miss peaks here: {where} of the cell with "
            f"{worst['peak_mib']:,.0f} MiB{most} by {missed:,.0f} MiB or more."
        )
    answers = [
        f"{int(row['outputs'])} different ones in {int(row['runs'])} runs of the cell with "
        f"{row['peak_mib']:,.0f} MiB"
        for row in sides
        if not repeats(row) and row.get("outputs")
    ]
    if answers:
        found.append(f"The greedy answers do not repeat: {', '.join(answers)}.")
    return found


def _with_range(row: dict) -> str:
    """As spell_peak, with the range where processes differ: `660 MiB (657 to 664)`."""
    low, high = (f"{value:,.0f}" for value in peak_range(row))
    spread = "" if low == high else f" ({low} to {high})"
    doubted = f"peak_{counter_of(row)}_mib" in row.get(DOUBTED, ())
    return f"{spell_peak(row)}{spread}{' †' * doubted}"


def _processes(pair: Pair) -> str:
    """How many processes each side has, in the order in which the sentence names them; '' for
    one.
    """
    before, after = pair.rounds
    if before == after:
        return "" if before == 1 else f"; medians of {before} processes a side"
    return f"; medians of {after} and {before} processes"


def _what(pair: Pair) -> str:
    """E.g. `tiny with cat and no cap at 513 tokens`, without the name on the compared axis."""
    names, row = pair.names, pair.before
    cache = f" with {names['kv_cache']}" if "kv_cache" in names else ""
    if names.get("cap", "default") != "default":
        cache += f"{' and' if cache else ' with'} {spell_name('cap', names['cap'])}"
    prompt = f" {'at' if is_plain(row) else 'on'} {spell_length(row)}" if "prompt" in names else ""
    return f"{names.get('model', 'each model')}{cache}{prompt}"


def _where(pair: Pair) -> str:
    names = pair.names
    cache = f" with the {names['kv_cache']} cache" if "kv_cache" in names else ""
    prompt = spell_prompt(pair.before) if "prompt" in names else ""
    others = [names["commit"]] if "commit" in names else []
    if "cap" in names:
        others.append(spell_name("cap", names["cap"]))
    if names.get("variant", "default") != "default":
        others.append(f"variant {names['variant']}")
    on = f" on {prompt}" if prompt else ""
    what = f"{names['model']}{cache}{on}" if "model" in names else f"{prompt}{cache}"
    return f"{what} ({', '.join(others)})" if others else what


def _names(pair: Pair) -> list[str]:
    """What a pair's cells share, one name after the other."""
    names = pair.names
    found = [names[axis] for axis in ("model", "commit") if axis in names]
    found += [spell_prompt(pair.before).removeprefix("a prompt of ")] if "prompt" in names else []
    found += [f"the {names['kv_cache']} cache"] if "kv_cache" in names else []
    found += [spell_name("cap", names["cap"])] if "cap" in names else []
    if names.get("variant", "default") != "default":
        found.append(f"variant {names['variant']}")
    return found


def _method(pair: Pair) -> str:
    if pair.live:
        return ""
    methods = dict.fromkeys(side["method"] for side in (pair.before, pair.after))
    where = "books" if "replayed: counted" in methods else "process that holds them"
    return f" for the replayed pool and the weights, in the {where} ({' and '.join(methods)})"


def spell_name(axis: str, name: str) -> str:
    """A name on an axis, clear without its axis: the cap `none` is `no cap`."""
    if axis != "cap":
        return name
    return {"none": "no cap", "default": "the engine's own cap"}.get(name, f"cap {name}")


def spell_speeds(pair: Pair) -> str:
    """What happened to the speeds of prefill and decode, in words and plain numbers."""
    columns = [column for column in ("prefill_tok_s", "decode_tok_s") if column in pair.speeds]
    if not columns:
        return "Speed was not measured"
    changes = [pair.speeds[column] for column in columns]
    if all(change.verdict == Verdict.NOT_TESTABLE for change in changes):
        needs = max((change.needs for change in changes if change.needs), default=None)
        more = f": it takes {needs} a side at least" if needs else ""
        return f"There are too few processes to compare this pair's speeds{more}"
    spoken = ", ".join(map(spell_change, columns, changes))
    return spoken[0].upper() + spoken[1:]


def spell_change(column: str, change: Change) -> str:
    """E.g. `decode is the same within 5 % (ratio 1.002 (0.991 to 1.013), n = 5 and 5)`."""
    ratio, (name, unit) = change.ratio, SPEEDS[column]
    numbers = f"{change.spelled} {unit}"
    shown = f"ratio {ratio.spelled()}"
    more = f"; needs at least {change.needs} a side" if change.needs else ""
    if change.verdict == Verdict.SAME:
        return f"{name} is the {Verdict.SAME} ({shown})"
    if change.verdict in (Verdict.FASTER, Verdict.SLOWER):
        return f"{name} is {change.verdict}, {numbers} ({shown}, p = {change.p:.3g})"
    return f"{name} {numbers} is {change.verdict} ({shown}{more})"
