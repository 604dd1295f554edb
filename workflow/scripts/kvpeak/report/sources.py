"""What the records of the cells say of where the results come from: engines, models, prompts."""

from collections.abc import Iterable
from pathlib import Path

from kvpeak.analysis.configs import configs_of
from kvpeak.base.fields import split_texts
from kvpeak.base.made import BY_HAND
from kvpeak.experiment.matrix import Matrix

REPLAY = "candle-replay"
MOST_APART = 8  # models with a row each
MOST_SAID = 3  # different hashes, sources or the like of one model or prompt


def engines(summary: list[dict]) -> list[dict]:
    """What each commit ran in any of its cells: packages with their versions, and the BLAS where a
    CPU computed.
    """
    found: dict[str, dict[str, dict]] = {}
    for row in summary:
        said = found.setdefault(row["commit"], {"versions": {}, "blas": {}})
        for column, texts in said.items():
            texts |= dict.fromkeys(split_texts(row[column]))
    return [{"commit": commit, "versions": _spelled(**said)} for commit, said in found.items()]


def _spelled(versions: dict, blas: dict) -> str:
    packages, served = (" / ".join(filter(None, texts)) for texts in (versions, blas))
    return "; ".join(filter(None, [packages, served and f"BLAS: {served}"])) or (
        "says nothing of itself"
    )


def computed(records: list[dict]) -> list[dict]:
    """The records of engines that computed something; a replay knows shapes alone."""
    return [record for record in records if record["request"]["engine"] != REPLAY]


def models(records: list[dict]) -> list[dict]:
    """Each measured model: source, weights, dtypes, generated tokens, and the hash of its
    model.json.
    """
    found: dict[str, dict] = {}
    for record in records:
        entry, inputs = record["request"]["model"], record["inputs"]
        dtype = record["engine"].get("dtype")
        model = found.setdefault(
            entry["name"],
            {
                "name": entry["name"],
                "weights": entry["weights"],
                "by_hand": False,
                "generate": record["request"]["protocol"]["generate"],
                **{key: {} for key in ("source", "quantized", "dtypes", "widened", "sha256")},
            },
        )
        model["by_hand"] |= inputs.get("model_source") == BY_HAND
        model["source"][model_source(entry)] = None
        model["quantized"][quantized(entry) or stored_quantized(entry, inputs)] = None
        model["dtypes"][dtype] = None
        if dtype and record["request"]["engine"] == "mlx":
            model["widened"][widened(entry, dtype)] = None
        model["sha256"][inputs["model_sha256"]] = None
    return [_with_words(model) for model in found.values()]


def _with_words(model: dict) -> dict:
    said = {key: either(value) for key, value in model.items() if isinstance(value, dict)}
    if model["by_hand"]:
        said["source"] += f", {BY_HAND}"
    return model | said


def either(texts: Iterable[str | None]) -> str:
    """What records say, as one text where they differ; of many the first."""
    said = [text for text in texts if text]
    more = f" and {len(said) - MOST_SAID:,} more" if len(said) > MOST_SAID else ""
    return " / ".join(said[:MOST_SAID]) + more


def configs_left_out(records: list[dict]) -> list[str]:
    """The configs that are here, but are not what was measured, of models that were."""
    measured = [record for record in records if record["engine"]]
    return sorted({path for record in measured for path in configs_of(record).left_out})


def alike(models: list[dict]) -> list[list[dict]]:
    """The models, those of which the same is said together if there are many."""
    if len(models) <= MOST_APART:
        return [[model] for model in models]
    found: dict[tuple, list[dict]] = {}
    for model in models:
        said = *map(model.get, ("weights", "quantized", "dtypes", "widened")), model["generate"]
        found.setdefault(said, []).append(model)
    return list(found.values())


def model_source(entry: dict) -> str:
    """Where the weights come from, with the revision or version."""
    if entry["weights"] == "none":
        return f"the shapes of {entry.get('config', 'its config.json')}"
    if entry["weights"] == "random":
        return f"{entry.get('config', 'its config.json')}, seed {entry['seed']}"
    if entry["kind"] == "package":
        return f"{entry['package']} {entry['version']}, {entry['file']}"
    return f"{entry['repository']} at {entry['revision']}"


def widened(entry: dict, dtype: str) -> str:
    """That MLX gets weights in more bits than they are stored in; '' where it does not."""
    file = entry.get("file") or ""
    if entry["weights"] != "real" or not file.endswith(".gguf") or entry.get("quantize"):
        return ""
    return f"for MLX the weights of {Path(file).name} were expanded to {dtype}"


def quantized(entry: dict) -> str:
    """How a model's weights were quantised, in words; '' where they were not."""
    how = entry.get("quantize")
    if not isinstance(how, dict):
        return "quantised as stored" if how else ""
    return f"quantised to {how.get('bits')} bits"


def stored_quantized(entry: dict, inputs: dict) -> str:
    """How the model's own files say that they are quantised, where the entry says nothing; '' where
    they do not, or the record is older.
    """
    how = inputs.get("model_quantization")
    if entry["weights"] == "none" or not isinstance(how, dict):
        return ""
    bits = how.get("bits")
    return f"quantised to {bits} bits" if type(bits) is int else "quantised"


def prompts(records: list[dict]) -> list[dict]:
    """Each prompt of each model: tokens and the hash of the file that holds them."""
    found: dict[tuple, dict] = {}
    for record in records:
        prompt, model = record["request"]["prompt"], record["request"]["model"]["name"]
        known = {"name": prompt["name"], "model": model, "tokens": prompt["tokens"], "sha256": {}}
        each = found.setdefault((prompt["name"], model), known)
        each["sha256"][record["inputs"]["prompt_sha256"]] = None
    return [each | {"sha256": either(each["sha256"])} for each in found.values()]


def dtypes(records: list[dict]) -> dict[tuple[str, ...], str | None]:
    """A cell's names on the axes → the type that its engine computed in; None where its processes
    differ.
    """
    found: dict[tuple[str, ...], set] = {}
    for record in records:
        for cell in record["cells"]:
            found.setdefault(cell, set()).add(record["engine"].get("dtype"))
    return {cell: types.pop() if len(types) == 1 else None for cell, types in found.items()}


def replayed(matrix: Matrix) -> bool:
    """Whether Candle's pool is part of the experiment."""
    return any(entry["engine"] == REPLAY for entry in matrix.commits.values())
