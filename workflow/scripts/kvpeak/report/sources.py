"""Where the results come from, as their records say: engines, models, prompts, harness,
environments, commands.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kvpeak.analysis.answers import question_of, tokens_of
from kvpeak.analysis.configs import configs_of
from kvpeak.base.axes import AXES
from kvpeak.base.errors import UserError
from kvpeak.base.fields import split_texts
from kvpeak.base.layout import cell_folder
from kvpeak.base.made import BY_HAND, FAILED, UNAVAILABLE, is_imported, why_not_made
from kvpeak.base.text import brief
from kvpeak.base.untrusted import MOST_JSON, MOST_RECORD, read_object
from kvpeak.experiment.matrix import Matrix
from kvpeak.experiment.status import outcome_in

REPLAY = "candle-replay"
MOST_APART = 8  # models with a row each


class Reader:
    """Reads records, and keeps a line for each that cannot be read: one bad file stops no
    finding.
    """

    def __init__(self):
        self.problems: list[str] = []

    def each(
        self, paths: Iterable[Path], take: Callable, most: int = MOST_RECORD
    ) -> Iterator[tuple[Path, object]]:
        """(path, what `take` makes of its JSON object) of every file that was made and can be
        read, and has at most so many bytes. Its texts are cut.
        """
        for path in paths:
            if why_not_made(path):
                continue
            try:
                yield path, take(brief(read_object(path, most)))
            except UserError as error:
                self.problems.append(str(error))
            except FileNotFoundError:
                continue
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                self.problems.append(f"{path}: {type(error).__name__} at {error}")


def read_records(
    plan: list[dict], cells: Path, reader: Reader, refused: frozenset[tuple] = frozenset()
) -> list[dict]:
    """One cell.json of each measured combination of commit, model and prompt, in the plan's order.

    refused: the names and the round of each process whose record aggregate did not take.
    Not of every cell: what may differ between the cells of one combination (caches, caps, rounds)
    is in the tables. One that lacks what the finding shows of it is left out.
    """
    records: dict[tuple, dict] = {}
    for row in plan:
        key = row["commit"], row["model"], row["prompt"]
        own = (*(row[axis] for axis in AXES), row["round"])
        if key in records or row["runs_here"] != "yes" or own in refused:
            continue
        try:
            folder = cell_folder(cells, row, row["round"])
        except UserError as error:
            reader.problems.append(str(error))
            continue
        if outcome_in(folder) in (FAILED, UNAVAILABLE):
            continue
        for _, record in reader.each([folder / "cell.json"], _complete, MOST_JSON):
            records[key] = record
    return list(records.values())


def _complete(record: dict) -> dict:
    """What the finding shows of a record, if it is all there; else KeyError or the like.

    The rest is let go: there may be 10,000 of them.
    """
    models([record]), prompts([record]), dtypes([record]), hash(question_of(record))
    dict.items(record["engine"].get("versions", {}))
    answer = {"events": [{"tokens": tokens_of(record)}]}
    return {key: record[key] for key in ("cell", "request", "inputs", "engine")} | answer


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
    found = {}
    for record in records:
        entry = record["request"]["model"]
        model = found.setdefault(
            entry["name"],
            {
                "name": entry["name"],
                "weights": entry["weights"],
                "source": model_source(entry),
                "by_hand": False,
                "widened": "",
                "quantized": quantized(entry) or stored_quantized(entry, record["inputs"]),
                "dtypes": {},
                "generate": record["request"]["protocol"]["generate"],
                "sha256": record["inputs"]["model_sha256"],
            },
        )
        if record["inputs"].get("model_source") == BY_HAND and not model["by_hand"]:
            model |= {"source": f"{model['source']}, {BY_HAND}", "by_hand": True}
        if dtype := record["engine"].get("dtype"):
            model["dtypes"][dtype] = None
            if record["request"]["engine"] == "mlx":
                model["widened"] = widened(entry, dtype)
    return [model | {"dtypes": ", ".join(model["dtypes"])} for model in found.values()]


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
    found = {}
    for record in records:
        prompt, model = record["request"]["prompt"], record["request"]["model"]["name"]
        found.setdefault(
            (prompt["name"], model),
            {
                "name": prompt["name"],
                "model": model,
                "tokens": prompt["tokens"],
                "sha256": record["inputs"]["prompt_sha256"],
            },
        )
    return list(found.values())


def dtypes(records: list[dict]) -> dict[tuple[str, str], str | None]:
    """(commit, model) → the type that its engine computed in."""
    return {
        (record["cell"]["commit"], record["cell"]["model"]): record["engine"].get("dtype")
        for record in records
    }


def environments(folder: Path, reader: Reader) -> list[dict]:
    """What each engine ran in: its own packages, and how many are installed under which hash."""
    paths = sorted((folder / "envs").glob("*/environment.json"))
    return [found | {"path": path.as_posix()} for path, found in reader.each(paths, _environment)]


def _environment(record: dict) -> dict:
    freeze = record["freeze"]
    shown = ("mlx", "mlx-lm", "numpy", "snakemake")
    return {
        "commit": record["commit"],
        "packages": len(freeze),
        "sha256": hashlib.sha256("\n".join(freeze).encode()).hexdigest(),
        "named": [line for line in freeze if line.split("==")[0] in shown],
    }


def calibrations(folder: Path, reader: Reader) -> dict[str, dict]:
    """Commit → what calibrate.py measured for it. One that was imported is left out where its
    machine has the name of one that was calibrated here: they need not be the same.
    """
    paths = sorted((folder / "calibration").glob("*.json"))
    found = dict(reader.each(paths, lambda record: record))
    imported = {path for path in found if is_imported(path)}
    here = [found[path].get("machine") for path in found.keys() - imported]
    return {
        path.stem: record
        for path, record in found.items()
        if path not in imported or record.get("machine") not in here
    }


def builds(folder: Path, reader: Reader) -> list[dict]:
    """What was built for external engines."""
    paths = sorted((folder / "engines").glob("*/engine.json"))
    return [found for _, found in reader.each(paths, _build)]


def _build(record: dict) -> dict:
    names = ("commit", "repository", "revision", "build", "toolchain")
    dict.items(record["toolchain"])
    return {name: record[name] for name in names} | {"verify": record.get("verify")}


def replayed(matrix: Matrix) -> bool:
    """Whether Candle's pool is part of the experiment."""
    return any(entry["engine"] == REPLAY for entry in matrix.commits.values())
