"""What a finding does not prove, the weightiest first."""

from kvpeak.analysis.comparisons import PRACTICAL
from kvpeak.analysis.headline import MISSED_MIB, is_lower_bound
from kvpeak.analysis.results import repeats
from kvpeak.analysis.setting import is_stock
from kvpeak.analysis.statistics import FAR, MIN_OUTLIER_GROUP, OUTLIER_ALPHA
from kvpeak.base.axes import AXES
from kvpeak.base.fields import split_texts
from kvpeak.report.markdown import Markdown, code, escape, number

DAMAGED_SHOWN = 12
NEVER = "not applicable"  # a reason why nothing could be measured anywhere
MOST_REASONS = 3  # for cells that do not run here, which finding.md names
NARROW = ("commit", "model", "prompt")  # axes of which one name says nothing of others
FREE_SHOWN = 6  # cells without a flag, where most have one
FAR_OFF_SHOWN = 12  # cells with a far-off run; the others are only counted
MODELS_SHOWN = 6  # models, or their configs; more are only counted
MOST_FLAGGED = (
    0.5  # a larger share of flagged cells says something of the machine, not of the cells
)


def cell_path(row: dict) -> str:
    """A cell's path below results/cells/."""
    return "/".join(row[axis] for axis in AXES)


def mostly_flagged(summary: list[dict]) -> bool:
    """Whether flags are the rule, so that a mark on each cell would tell nothing."""
    return bool(summary) and sum(bool(row["flags"]) for row in summary) > MOST_FLAGGED * len(
        summary
    )


def doubts(found: dict) -> list[Markdown]:
    """Every reservation as a Markdown line without its bullet; `found` is the context."""
    instruments = found["instruments"] or {"doubts": []}
    return [
        *instruments["doubts"],
        *_of_the_models(found),
        *_of_the_method(found),
        *_of_first_runs(found),
        *_of_repetition(found),
        *_of_the_machine(found),
        *_of_the_setting(found),
        *_of_what_is_missing(found),
        *_of_other_configs(found["configs_left_out"]),
        *_of_single_runs(found),
    ]


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _of_the_models(found: dict) -> list[Markdown]:
    models = found["models"]
    by_hand = [model for model in models if model["by_hand"]]
    if not by_hand:
        return []
    return [
        Markdown(
            f"The files of {_named(by_hand, models)} were put there by hand: nothing shows that "
            "they are what the matrix names."
        )
    ]


def _named(some: list[dict], models: list[dict]) -> str:
    """Models by name if they are few, else how many of all."""
    if len(some) > MODELS_SHOWN:
        return f"{len(some)} of {len(models)} models"
    return ", ".join(code(model["name"]) for model in some)


def _of_the_method(found: dict) -> list[Markdown]:
    lines = []
    for method in found["methods"]:
        if method == "replayed: counted":
            lines.append(
                f"Cells with the method {code(method)} computed nothing: their speed is not known, "
                "and with no memory behind the pool their footprint says nothing. Their peak is "
                "the bytes of the pool and the weights in the books."
            )
        elif method != "live":
            lines.append(
                f"Cells with the method {code(method)} computed nothing: their speed is not known, "
                "and their footprint is not the engine's. It is the replayed pool and the weights "
                "in a process of its own, without the engine's runtime and the host's mask."
            )
    ended = [row for row in found["summary"] if row["outcome"] == "ok"]
    sampled = [row for row in ended if is_lower_bound(row)]
    if sampled:
        lines.append(
            f"The peaks of {number(len(sampled))} of {number(len(ended))} cells were "
            "sampled: each is a lower bound, and a short peak can be missed."
        )
    missed = [row for row in found["summary"] if row.get("missed_mib", 0) >= MISSED_MIB]
    if missed:
        worst = max(missed, key=lambda row: row["missed_mib"])
        lines.append(
            f"Of {number(len(missed))} it is known that the samples missed a short peak: "
            "what the device holds beside the driver's pool, whose reserve is counted exactly, "
            f"differs between a cell's processes by up to {number(worst['missed_mib'])} MiB "
            f"({code(cell_path(worst))})."
        )
    return [Markdown(line) for line in lines]


def _of_first_runs(found: dict) -> list[Markdown]:
    rising = found["rising"]
    if not rising:
        return []
    most = max(rising, key=lambda each: each["later"] / each["first"])
    cells = f"{number(len(rising))} of {number(len(found['summary']))} cells"
    return [
        Markdown(
            f"In {cells} the live peak of later runs, in the median of the processes, is more than "
            f"{number(100 * PRACTICAL)} % above that of the first (most: "
            f"{number(most['first'])} → {number(most['later'])} MiB, "
            f"{code(cell_path(most['row']))}): a process that answers once has fewer live bytes."
        )
    ]


def _of_repetition(found: dict) -> list[Markdown]:
    protocol, summary = found["protocol"], found["summary"]
    unstable = sum(not repeats(row) for row in summary)
    lines = [_unstable(unstable)] if unstable else []
    if protocol["processes"] == 1:
        share = number(100 * PRACTICAL)
        lines.append(
            Markdown(
                "One process a cell: how far peaks and speeds repeat is not known from these data. "
                f"Peaks count as different when they are more than {share} % apart."
            )
        )
    unequal = [row for row in summary if row["rounds"] < protocol["processes"]]
    if unequal:
        fewest = min(row["rounds"] for row in unequal)
        lines.append(
            Markdown(
                f"{number(len(unequal))} of {number(len(summary))} measured cells have fewer than "
                f"the planned {protocol['processes']} processes, the least {fewest}, for example "
                f"{code(cell_path(unequal[0]))}: medians of unequal numbers are compared there."
            )
        )
    return lines


def _unstable(count: int) -> Markdown:
    if count == 1:
        said = "One cell does not repeat: what is said of its tokens is about one of its answers."
        return Markdown(said)
    return Markdown(
        f"{number(count)} cells do not repeat: what is said of the tokens of such a cell is about "
        "one of its answers."
    )


def _of_the_machine(found: dict) -> list[Markdown]:
    machines, period, lines = found["machines"], found["period"], []
    if mostly_flagged(found["summary"]):
        kinds = ", ".join(entry["kind"] for entry in found["flagged"]["kinds"])
        count = f"{number(found['flagged']['cells'])} of {number(len(found['summary']))}"
        lines.append(
            f"The machine was not quiet: {count} cells carry a flag ({escape(kinds)}"
            f"{_without_flag(found['summary'])}). Their speeds may be those of a busy machine."
        )
    if len(machines) == 1:
        day = ", on one day" if period and period["first"] == period["last"] else ""
        units, more = _units(found)
        lines.append(f"{units}{day}: other chips, systems and memory sizes may differ.{more}")
    elif machines:
        names = "; ".join(map(escape, machines))
        lines.append(f"The tables hold results of {len(machines)} machines: {names}.")
    return [Markdown(line) for line in lines]


def _without_flag(summary: list[dict]) -> str:
    """Which cells carry no flag, as far as they are few."""
    free = [row for row in summary if not row["flags"]]
    names = ", ".join(code(cell_path(row)) for row in free)
    return f"; none: {names}" if 0 < len(free) <= FREE_SHOWN else ""


def _units(found: dict) -> tuple[str, str]:
    """How many machines, or GPUs, of the one kind there were, and what follows from several."""
    count = len(found["hardware"])
    if count < 2:
        return "One machine", ""
    mixed = sum(len(split_texts(row["hardware"])) > 1 for row in found["summary"])
    cuda = any(row["accelerator"] == "cuda" for row in found["summary"])
    named = "GPUs of one kind, told apart by UUID" if cuda else "machines of one kind"
    more = f" The processes of {number(mixed)} cells come from more than one." if mixed else ""
    return f"{count} {named}", more


def _of_the_setting(found: dict) -> list[Markdown]:
    lines = []
    live_mlx = [row for row in found["summary"] if (row["versions"] or "").startswith("mlx ")]
    if live_mlx and not any(map(is_stock, live_mlx)):
        lines.append(
            "No cell ran as mlx-lm runs (its loop, its cache, MLX's own cap): what was measured "
            "is a laboratory setting."
        )
    if text := random_weights(found["models"]):
        lines.append(text)
    for axis, name in found["single"].items():
        lines.append(
            f"One {axis.replace('_', ' ')} was measured, {code(name)}: nothing is said about "
            "others."
        )
    neighbours = found["neighbours"]
    pairs, beside = (sum(each[name] for each in neighbours) for name in ("pairs", "beside"))
    if beside < pairs:
        told = "; ".join(
            f"{escape(each['heading'])}: {each['beside']} of {each['pairs']}"
            for each in neighbours
            if each["beside"]
        )
        changed = "differ by what changed on the machine in between."
        lines.append(
            f"Only {number(beside)} of the {number(pairs)} pairs of cells whose speeds are "
            f"compared were measured right after each other in every round ({told}): the speeds of "
            f"the others also {changed}"
            if beside
            else "No two cells whose speeds are compared were measured right after each other in "
            f"every round: their speeds also {changed}"
        )
    return [Markdown(line) for line in lines]


def not_measured(found: dict) -> str:
    """What a reader could take for measured and was not, in a sentence; '' if there is nothing."""
    names = [
        f"any {axis} but {found['single'][axis]}" for axis in NARROW if axis in found["single"]
    ]
    missing = [each for each in found["not_here"] if not each["reason"].startswith(NEVER)]
    never = sum(each["cells"] for each in found["not_here"]) - sum(
        each["cells"] for each in missing
    )
    reasons = [f"{number(each['cells'])}: {each['reason']}" for each in missing[:MOST_REASONS]]
    reasons += [f"{number(never)}: {NEVER}"] * bool(never)
    count = f"{number(sum(each['cells'] for each in found['not_here']))} of {found['planned']:,}"
    cells = [f"{count} planned cells ({'; '.join(reasons)})"] * bool(missing)
    machines = ["other machines"] if len(found["machines"]) == 1 else []
    text = "; ".join([*machines, *names, *cells])
    return f"Here: {text}." if text else ""


def random_weights(models: list[dict]) -> str:
    """Which models have random weights, by name if they are few; '' if none has."""
    random = [model for model in models if model["weights"] == "random"]
    if not random:
        return ""
    has = "has" if len(random) == 1 else "have"
    return (
        f"{_named(random, models)} {has} random weights in the model's shapes: memory and speed "
        "are those of the shapes, the text means nothing."
    )


def _of_what_is_missing(found: dict) -> list[Markdown]:
    planned, lines = number(found["planned"]), []
    for entry in found["not_here"]:
        lines.append(
            f"{number(entry['cells'])} of {planned} planned cells do not run here: "
            f"{escape(entry['reason'])}."
        )
    if found["unmeasured"]:
        lines.append(
            f"{number(found['unmeasured'])} of {planned} planned cells run here and have no result "
            "yet."
        )
    untestable = found["claims"]["counts"]["not testable"]
    if untestable:
        lines.append(
            f"{untestable} claim{_s(untestable)} could not be tested with this many processes or "
            "lengths; the table of claims says how many at least, or what else is missing."
        )
    if damaged := found["damaged"]:
        shown = "".join(f"\n  - {escape(line)}" for line in damaged[:DAMAGED_SHOWN])
        lines.append(f"{number(len(damaged))} files could not be read and are left out:{shown}")
    return [Markdown(line) for line in lines]


def _of_other_configs(paths: list[str]) -> list[Markdown]:
    """That figures are left out, because a model's config is not the one that was measured."""
    if not paths:
        return []
    shown = ", ".join(map(code, paths[:MODELS_SHOWN]))
    more = f" and {number(len(paths) - MODELS_SHOWN)} more" * (len(paths) > MODELS_SHOWN)
    return [
        Markdown(
            f"Of {shown}{more} the records do not say that this is what was measured: what follows "
            "from the shapes of such a model is left out, or follows from the config that the "
            "matrix names."
        )
    ]


def _of_single_runs(found: dict) -> list[Markdown]:
    lines, summary = [], found["summary"]
    if found["flagged"]["cells"] and not mostly_flagged(summary):
        kinds = "".join(
            f"\n  - {escape(entry['kind'])}: {number(len(entry['rows']))} "
            f"cell{_s(len(entry['rows']))}, for example {code(cell_path(entry['rows'][0]))}: "
            f"{escape('; '.join(split_texts(entry['rows'][0]['flags'])))}"
            for entry in found["flagged"]["kinds"]
        )
        lines.append(
            f"{number(found['flagged']['cells'])} of {number(len(summary))} cells were measured "
            f"under conditions that make them doubtful:{kinds}"
        )
    if summary and found["runs_too_few"]:
        lines.append(
            f"A run that is far off cannot be told among fewer than {MIN_OUTLIER_GROUP} recorded "
            "runs of a cell."
        )
    if far := found["far_off"]:
        shown = "".join(
            f"\n  - {code(cell_path(entry['row']))}: {escape('; '.join(entry['runs']))}"
            for entry in far[:FAR_OFF_SHOWN]
        )
        rest = len(far) - FAR_OFF_SHOWN
        shown += f"\n  - and {number(rest)} more" if rest > 0 else ""
        lines.append(
            f"{number(len(far))} of {number(len(summary))} cells have a run whose speed is far "
            f"from that of the cell's other runs (Grubbs' test at {number(100 * OUTLIER_ALPHA)} %, "
            f"from {MIN_OUTLIER_GROUP} runs on, and more than {number(100 * FAR)} % off their "
            "median); "
            f"it counts all the same:{shown}"
        )
    if len(found["harness"]) > 1:
        lines.append(
            f"The tables hold results of {len(found['harness'])} versions of the harness, listed "
            "under What was measured."
        )
    if found["dirty"]:
        lines.append(
            "The harness had uncommitted changes in workflow/ for at least one cell: no revision "
            "is exactly what measured it."
        )
    return [Markdown(line) for line in lines]
