"""What another engine's processes counted of their memory, beside the replay of its recordings.

A folder of recordings holds peaks.json, a row for each process, and snapshots.zip, one snapshot of
PyTorch's memory for each workload (tests/device/torch_pools.py writes both). Every process is
predicted from its workload's one snapshot.
"""

import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.numbers import MIB
from kvpeak.base.untrusted import Unpacked, open_archive, read_json
from kvpeak.pools import snapshot
from kvpeak.pools.replay import Outcome, Setting, replay
from kvpeak.pools.trace import Trace

PEAKS_FILE, SNAPSHOTS_FILE = "peaks.json", "snapshots.zip"
MOST_SNAPSHOTS, MOST_SNAPSHOT = 100, 64 * MIB  # how many in an archive, and bytes of each
_NEEDED = {
    "workload": str,
    "snapshot": str,
    "setting": str,
    "error": str,
    "torch": str,
    "device": str,
    "reserved_peak": int,
    "active_peak": int,
    "num_alloc_retries": int,
}


# What zipfile and lzma raise for a damaged archive, or one that is locked or packed otherwise.
_DAMAGED = (zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError, RuntimeError)


def compared(folder: Path) -> Iterator[tuple[dict, Outcome]]:
    """For each process its row of peaks.json, and its workload replayed under its setting.

    Raises UserError if a file is missing, damaged or not what it should be.
    """
    rows, traces = _rows(folder / PEAKS_FILE), _traces(folder / SNAPSHOTS_FILE)
    for row in rows:
        if row["snapshot"] not in traces:
            raise UserError(
                f"{folder / SNAPSHOTS_FILE}: has no snapshot {row['snapshot']}, which "
                f"{PEAKS_FILE} names; found {', '.join(traces)}"
            )
        setting = Setting("torch", row["setting"])
        yield row, replay(traces[row["snapshot"]], setting, row.get("limit"))


def table(folder: Path) -> list[dict]:
    """The rows of results/pools/pytorch.csv. Raises UserError."""
    return [
        {
            "workload": row["workload"],
            "setting": row["setting"] or "default",
            "counted_bytes": row["reserved_peak"],
            "replayed_bytes": outcome.reserved_peak,
            "counted_active_bytes": row["active_peak"],
            "replayed_active_bytes": outcome.active_peak,
            "counted_retries": row["num_alloc_retries"],
            "replayed_retries": outcome.retries,
            "counted_end": _end(bool(row["error"])),
            "replayed_end": _end(not outcome.fits),
            "engine": f"PyTorch {row['torch']}",
            "device": row["device"],
        }
        for row, outcome in compared(folder)
    ]


def _end(failed: bool) -> str:
    return "out of memory" if failed else "ran"


def _rows(file: Path) -> list[dict]:
    try:
        rows = read_json(file)
    except FileNotFoundError:
        raise UserError(f"{file}: no such file; tests/device/torch_pools.py writes it") from None
    if not isinstance(rows, list) or not rows:
        raise UserError(f"{file}: expected a list of processes")
    for number, row in enumerate(rows):
        for key, kind in _NEEDED.items():
            if not isinstance(row, dict) or not isinstance(row.get(key), kind):
                what = "a whole number" if kind is int else "a text"
                raise UserError(f"{file}: process {number + 1}: {key}: expected {what}")
            if kind is int:
                _check_count(row[key], 0, f"{file}: process {number + 1}: {key}")
        if row.get("limit") is not None:
            _check_count(row["limit"], 1, f"{file}: process {number + 1}: limit")
    return rows


def _check_count(value: object, least: int, where: str) -> None:
    if type(value) is not int or not least <= value < 1 << 63:
        raise UserError(f"{where}: {str(value)[:80]}: expected a whole number from {least} to 2^63")


def _traces(file: Path) -> dict[str, Trace]:
    """workload → what it asked for, of its first device."""
    found = {}
    try:
        with open_archive(file) as archive:
            members, bytes_there = archive.infolist(), file.stat().st_size
            if len(members) > MOST_SNAPSHOTS or any(m.file_size > MOST_SNAPSHOT for m in members):
                raise UserError(
                    f"{file}: expected at most {MOST_SNAPSHOTS} snapshots of at most "
                    f"{MOST_SNAPSHOT // MIB} MiB each"
                )
            for member in members:
                where = file / member.filename
                with archive.open(member) as packed, lzma.open(packed) as opened:
                    whole = Unpacked(opened, min(member.compress_size, bytes_there), where)
                    content = io.BufferedReader(whole, MIB)
                    traces = snapshot.open_snapshot(where, content)
                found[member.filename.split(".")[0]] = traces[0]
    except FileNotFoundError:
        raise UserError(f"{file}: no such file; tests/device/torch_pools.py writes it") from None
    except _DAMAGED as error:
        raise UserError(f"{file}: a damaged archive ({error})") from None
    return found
