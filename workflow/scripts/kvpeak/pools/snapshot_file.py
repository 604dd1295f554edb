"""The file of a PyTorch memory snapshot: a pickle, read as one from a stranger.

A pickle can run any code, or ask for any amount of memory or time. This reader admits plain
containers, numbers and texts (native/pickle.cpp) and refuses everything else.
"""

import ctypes
import gc
import io
import pickle

from kvpeak.base.errors import UserError
from kvpeak.base.numbers import GIB, MIB
from kvpeak.pools import library
from kvpeak.pools.trace import MOST_EVENTS

MOST_BYTES = GIB  # unpacked
MOST_MEMORY = 8 * GIB  # of what Python makes of it, counted generously: 10 million events
MOST_DEVICES = 64
_NUMBERS = (
    "addr",
    "address",
    "size",
    "requested_size",
    "total_size",
    "stream",
    "device",
    "time_us",
)
_TEXTS = ("action", "state", "stage", "name")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(
            f"it asks for {module}.{name}, and a snapshot needs no code: refused, nothing was run"
        )

    def persistent_load(self, pid):
        raise pickle.UnpicklingError("it refers to other objects: refused")


def _content(file, name: str, progress) -> io.BytesIO:
    """All of an open file, once. Raises UserError if it is larger than MOST_BYTES."""
    content = io.BytesIO()
    while piece := file.read(MIB):
        content.write(piece)
        if content.tell() > MOST_BYTES:
            raise UserError(f"{name}: a snapshot of more than {MOST_BYTES // MIB:,} MiB")
        progress(content.tell())
    content.seek(0)
    return content


def _check_pickle(content: io.BytesIO) -> None:
    """Raise UnpicklingError if it does what no snapshot does, or takes more than MOST_MEMORY."""
    message = ctypes.create_string_buffer(200)
    with content.getbuffer() as whole:
        start = (ctypes.c_char * len(whole)).from_buffer(whole)
        refused = library.load().kvpeak_check_pickle(
            ctypes.addressof(start), len(whole), MOST_MEMORY, message, len(message)
        )
        del start
    if refused:
        raise pickle.UnpicklingError(f"it {message.value.decode()}")


def load(file, name: str, progress=lambda done: None) -> dict:
    """The snapshot in an open file. Raises UserError if it is not one, or wants code run."""
    collecting = gc.isenabled()
    gc.disable()  # millions of new objects, none of them garbage
    try:
        content = _content(file, name, progress)
        _check_pickle(content)
        snapshot = _Unpickler(content).load()
    except UserError:
        raise
    except MemoryError:
        raise UserError(f"{name}: the snapshot needs more memory than there is") from None
    except Exception as error:  # a damaged pickle raises anything; nothing of it was run
        raise UserError(f"{name}: not a snapshot of PyTorch's memory: {error}") from None
    finally:
        if collecting:
            gc.enable()
    return _checked(snapshot, name)


def _checked(snapshot, name: str) -> dict:
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("device_traces"), list):
        raise UserError(
            f"{name}: a pickle, but not a snapshot of PyTorch's memory; expected a dictionary with "
            "device_traces, as torch.cuda.memory._dump_snapshot writes it"
        )
    segments, annotations = (
        snapshot.setdefault(key, []) or [] for key in ("segments", "external_annotations")
    )
    devices = snapshot["device_traces"]
    if len(devices) > MOST_DEVICES:
        raise UserError(f"{name}: device_traces: expected at most {MOST_DEVICES} devices")
    _check_lists(devices, f"{name}: device_traces")
    _check_lists([annotations], f"{name}: external_annotations")
    _check_lists([segments], f"{name}: segments")
    _check_lists([segment.get("blocks") for segment in segments], f"{name}: blocks")
    return snapshot | {"segments": segments}


def _check_lists(lists: list, where: str) -> None:
    """Raise UserError unless each is such a list as _check_entries wants, and all have at most
    MOST_EVENTS entries. One list may stand in many places: it is looked at once, counted in each.
    """
    for entries in {id(each): each for each in lists}.values():
        _check_entries(entries, where)
    if sum(map(len, lists)) > MOST_EVENTS:
        raise UserError(f"{where}: expected at most {MOST_EVENTS:,} entries")


def _check_entries(entries, where: str) -> None:
    """Raise UserError unless it is a list of dictionaries whose numbers and texts are such: a
    nest of lists in their place could take for ever to compare or to spell.
    """
    if not isinstance(entries, list) or not all(type(each) is dict for each in entries):
        raise UserError(f"{where}: expected a list of dictionaries")
    for entry in entries:
        for key in _NUMBERS:
            if type(value := entry.get(key, 0)) is not int or not -1 < value < 2**63:
                raise UserError(f"{where}: {key}: expected a number from 0 to 2^63")
        for key in _TEXTS:
            if type(entry.get(key, "")) is not str:
                raise UserError(f"{where}: {key}: expected text")
