"""The folders under models/: what model.json records, and whether the files still match it.

Imports no MLX, so that the runner can use it.
"""

from pathlib import Path

from kvpeak.base import untrusted
from kvpeak.base.errors import UserError
from kvpeak.base.made import hash_here, hashed_here
from kvpeak.base.numbers import MIB

RECORD = "model.json"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
SMALL = 16 * MIB  # bytes of a file whose hash costs nothing
INDEX = "model.safetensors.index.json"
# What MLX and mlx-lm read of a folder.
SMALL_FILES = [CONFIG, TOKENIZER, "generation_config.json", "hf_quant_config.json"]
WEIGHTS = ["model*.safetensors", "*.gguf"]


def describe_files(folder: Path, names: list[str]) -> dict[str, dict]:
    """name → bytes and sha256."""
    return {
        name: {"bytes": (folder / name).stat().st_size, "sha256": hash_here(folder / name)}
        for name in sorted(names)
    }


def matches(folder: Path, patterns: list[str]) -> list[str]:
    """The files that match a pattern, without hidden ones: on other disks macOS makes a ._NAME for
    each NAME.
    """
    found = (path.name for pattern in patterns for path in folder.glob(pattern))
    return sorted(name for name in found if not name.startswith("."))


def read_record(folder: Path) -> dict:
    """model.json of a model folder. Raises UserError when there is none."""
    path = Path(folder) / RECORD
    try:
        found = untrusted.read_object(path)
    except FileNotFoundError:
        raise UserError(f"{path}: not found; make the model: snakemake --cores 1 {path}") from None
    except UserError as error:
        raise UserError(f"{error}; delete it and make the model again") from None
    if not described(found.get("files")):
        raise UserError(f"{path}: files: expected the bytes and sha256 of each file; delete it")
    return found


def described(files: object) -> bool:
    """Whether a record's `files` is what describe_files gives: of files in the folder itself."""
    return isinstance(files, dict) and all(
        Path(name).name == name
        and isinstance(said, dict)
        and isinstance(said.get("bytes"), int)
        and isinstance(said.get("sha256"), str)
        for name, said in files.items()
    )


def verify_model(folder: Path, *, hashes: bool = False, weights: bool = False) -> dict:
    """The record of a model folder whose files are what it says.

    Sizes are always compared, and the SHA-256 of config.json and the like; that of a larger file
    on request, and if the file has changed since it was hashed here. `weights` says that they are
    read, so that there may be no other ones. Raises UserError (one line) for the first file that
    is missing or differs, or that would be read although the record does not name it.
    """
    record = read_record(folder)
    check_files(folder, record["files"], hashes=hashes, weights=weights)
    return record


def check_files(folder: Path, files: dict[str, dict], *, hashes: bool, weights: bool) -> None:
    """Compare the folder with what describe_files said of it. Raises UserError."""
    folder, again = Path(folder), f"delete {folder} and make the model again"
    for name in matches(folder, SMALL_FILES + WEIGHTS * weights):
        if name not in files:
            raise UserError(
                f"{folder / name}: {RECORD} does not name it; take the file away, or {again}"
            )
    remedy = f"put the file back, or {again}"
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path}: missing; {remedy}")
        if (size := path.stat().st_size) != expected["bytes"]:
            raise UserError(f"{path}: {size} bytes, expected {expected['bytes']}; {remedy}")
        small = path.suffix == ".json" and size <= SMALL
        if not (hashes or small) and hashed_here(path, expected["sha256"]):
            continue
        if (found := hash_here(path)) != expected["sha256"]:
            raise UserError(f"{path}: sha256 {found}, expected {expected['sha256']}; {remedy}")


def read_config(folder: Path) -> dict:
    """config.json of a model folder. Raises UserError when it is missing or not a JSON object."""
    return read_object(Path(folder) / CONFIG)


def read_object(path: Path) -> dict:
    """The JSON object in a file. Raises UserError when there is none."""
    try:
        return untrusted.read_object(path)
    except FileNotFoundError:
        raise UserError(f"{path}: not found; make the model again") from None
