"""What can be wrong with the weight files of a model's folder, found before anything is loaded."""

import json
from collections.abc import Iterable
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.numbers import MIB
from kvpeak.base.text import plain
from kvpeak.base.untrusted import once, open_regular, read_object
from kvpeak.inputs import gguf
from kvpeak.inputs.model_folder import INDEX

LARGEST_HEADER = 16 * MIB  # bytes; 100,000 tensors fit


def check_weights(folder: Path) -> None:
    """Raise UserError, one line that names the file, for the first thing that is wrong.

    A link whose target is gone; a shard that the index names and nobody put there; a file of
    weights that the index does not name, which would be loaded in its place; a tensor in two files;
    a file shorter or longer than its own header says, or with a header that no format has.
    """
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and not path.exists():
            raise UserError(f"{path}: a link whose target is gone; copy the file itself")
    files = sorted(folder.glob("model*.safetensors"))
    if (index := folder / INDEX).exists():
        _check_index(index, {path.name for path in files})
    whose = {}
    for path in files:
        for name in _tensors(path):
            if (other := whose.setdefault(name, path)) != path:
                raise UserError(
                    f"{path}: {plain(name, 80)}: is in {other.name}, too; take one of the two away"
                )
    ggufs = sorted(folder.glob("[!.]*.gguf"))
    if files and ggufs:
        raise UserError(
            f"{folder}: holds {files[0].name} and {ggufs[0].name}; MLX would load the one and "
            "mistral.rs the other; take one of the two away"
        )
    for path in ggufs:
        gguf.check_header(path)


def _check_index(index: Path, found: set[str]) -> None:
    named = read_object(index).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named.values()):
        raise UserError(f"{index}: weight_map: expected an object of file names")
    for name in sorted(set(named.values()) - found):
        raise UserError(f"{index.with_name(name)}: missing, and {INDEX} names it; add the file")
    for name in sorted(found - set(named.values())):
        raise UserError(
            f"{index.with_name(name)}: {INDEX} does not name it; take one of the two away"
        )


def _tensors(path: Path) -> Iterable[str]:
    """The names in a safetensors file, which is compared with its header: 8 bytes of length, JSON,
    the tensors' bytes.
    """
    size = path.stat().st_size
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= size - 8:
            raise UserError(f"{path}: {size} bytes, not a safetensors file; get it again")
        if length > LARGEST_HEADER:
            raise UserError(
                f"{path}: its header has {length} bytes; expected at most {LARGEST_HEADER:,}; "
                "divide the tensors among several files"
            )
        try:
            tensors = json.loads(file.read(length), object_pairs_hook=once)
            said = tensors.pop("__metadata__", None) or {}  # MLX writes null for none
            if not all(isinstance(each, str) for each in said.values()):
                raise ValueError
            whole = 8 + length + max(map(_end, tensors.values()), default=0)
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise UserError(f"{path}: its header is damaged; get the file again") from None
    if whole != size:
        raise UserError(f"{path}: {size} bytes, and its header says {whole}; get the file again")
    return tensors.keys()


def _end(tensor: dict) -> int:
    """The byte after a tensor's last one. Raises ValueError if it is described in another way than
    safetensors have it.
    """
    if tensor.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError
    start, end = tensor["data_offsets"]
    numbers = [*tensor["shape"], start, end]
    if not isinstance(tensor["dtype"], str) or not all(type(each) is int for each in numbers):
        raise ValueError
    if not 0 <= start <= end:
        raise ValueError
    return end
