"""Reading what others wrote: results, tables, records and models that may come from a stranger.

Whatever such a file is, reading it ends: it is a regular file, not larger than a limit, and what is
wrong with it is one UserError that names it. Texts are lines in which every character can be seen.
"""

import contextlib
import csv
import io
import json
import os
import re
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from kvpeak.base.errors import UserError
from kvpeak.base.numbers import KIB, MIB
from kvpeak.base.text import is_seen, plain, seen

MOST_BYTES = 256 * MIB
# Of a JSON file: its values take up to 30 times as much memory. The index of a model with 150,000
# tensors fits, and so does a prompt of 1,500,000 tokens.
MOST_JSON = 16 * MIB
MOST_PARTS = 1_000_000  # lists and objects of a JSON file: each takes up to 232 bytes
# Of the record of an environment, a calibration or the like, which the finding shows; one of a
# thousand packages fits.
MOST_RECORD = 256 * KIB
MOST_DOCUMENT = 4 * MIB  # of Markdown: parsing takes 100 times as much memory
LONGEST_FIELD = MIB  # bytes of one CSV field
MOST_COLUMNS = 200  # of a table; the widest of kvpeak's has fewer than half
MOST_WIDE = 64 * MIB  # characters of a table of which one is not ASCII: each takes eight bytes
MOST_FIELDS = 12_000_000  # of a table: they take about 1 GiB
# Of a compressed file: what every one may unpack to, and how much more for each of its bytes;
# recordings of real programs unpack to 9 to 23 times their size.
UNPACKED, MOST_A_BYTE = 64 * MIB, 256
# Of a file that is hashed: what takes a moment, and the part of a larger one that has to be on the
# disk.
LARGE, LEAST_THERE = 1024 * MIB, 100
MOST_ROWS = 1_000_000  # of a table: twenty of each of 50,000 cells; more fill the memory
# Of JSON: beyond it computing ends in errors. Configs hold numbers such as 10^30 for "no limit".
LARGEST_NUMBER = 1e300
_LONG = re.compile(r"\d{200}|[eE]\+?0*\d{2}")  # where a larger one may be: both together, too


class Root(NamedTuple):
    """A folder that may be somebody else's, opened once, whatever lies under its name by now."""

    path: Path
    descriptor: int


def open_regular(path: Path, root: Root | Path | None = None) -> BinaryIO:
    """A regular file, open for reading. root: a folder above it that may be somebody else's. It and
    what is below it may be no link, not even one that was put there a moment ago.

    Raises FileNotFoundError if there is none, and UserError if it is something else (a pipe, a
    device, a folder) or cannot be opened.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        if root is None:
            descriptor = os.open(path, flags)
        else:
            with contextlib.ExitStack() as opened:
                folder = _folder_of(path, root, opened)
                descriptor = os.open(path.name, flags | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # a zero byte in its name
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path}: expected a regular file")
    return os.fdopen(descriptor, "rb")


def _folder_of(path: Path, root: Root | Path, opened: contextlib.ExitStack) -> int:
    """The folder of a file, open until `opened` is left. Raises ValueError if `path` is not below
    `root`.
    """
    if isinstance(root, Path):
        root = opened.enter_context(open_root(root))
    *above, _ = path.relative_to(root.path).parts
    if ".." in above:
        raise ValueError(f"leads out of {root.path}")
    at, folder = root.path, root.descriptor
    for each in above:
        at /= each
        folder = opened.enter_context(_open_folder(at, folder))
    return folder


def open_recording(path: Path) -> BinaryIO:
    """A regular file whose size says how much there may be to read, open for reading.

    Raises what open_regular does, and UserError for a file with holes: it may be as large as it
    likes and take nothing on the disk.
    """
    file = open_regular(path)
    if _has_holes(file):
        file.close()
        raise UserError(f"{path}: has holes; expected a recording, copied as it was written")
    file.seek(0)
    return file


def check_filled(path: Path) -> None:
    """Raise UserError for a large file of which next to nothing is on the disk: reading it would
    take hours, and it comes in an archive of some kilobytes. Raises what open_regular does.

    A file system that compresses may have holes for zeros and few blocks, but not for weights.
    """
    with open_regular(path) as file:
        found = os.fstat(file.fileno())
        there = found.st_blocks * 512
        if found.st_size > LARGE and there < found.st_size // LEAST_THERE and _has_holes(file):
            raise UserError(
                f"{path}: {found.st_size:,} bytes, of which {there:,} are on the disk: it is next "
                "to empty; get the file again, or copy it to another disk if it is whole"
            )


def _has_holes(file: BinaryIO) -> bool:
    """Whether a file has holes; False on a system that knows of none."""
    try:
        first = os.lseek(file.fileno(), 0, os.SEEK_HOLE)
    except (OSError, AttributeError):
        return False
    return first < os.fstat(file.fileno()).st_size


class Limited(io.RawIOBase):
    """A file of which so many bytes may be read; `refusal` is the UserError of one more."""

    def __init__(self, file: BinaryIO, left: int, refusal: str):
        super().__init__()
        self._file, self._left, self._refusal = file, left, refusal

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def readinto(self, buffer) -> int:
        """Read into a buffer; how many bytes."""
        count = self._file.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise UserError(self._refusal)
        return count


class Unpacked(Limited):
    """What a compressed file holds, read to its end only if that is in proportion to the file.

    `packed` is the file's bytes; `name` is for the UserError that reading raises.
    """

    def __init__(self, file: BinaryIO, packed: int, name: object):
        super().__init__(
            file,
            UNPACKED + MOST_A_BYTE * packed,
            f"{name}: unpacks to more than {MOST_A_BYTE} times its size; expected a recording, "
            "not one byte again and again",
        )


def open_archive(path: Path) -> zipfile.ZipFile:
    """A ZIP archive, open for reading, whose members come in pieces of the size that is asked for.

    Raises what open_regular does, UserError for a member that is packed as bzip2 or LZMA, of which
    zipfile makes gigabytes out of a piece of 4 KiB, and BadZipFile.
    """
    file = open_regular(path)
    try:
        archive = zipfile.ZipFile(file)
        for member in archive.infolist():
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise UserError(
                    f"{path}: {member.filename}: packed in another way than ZIP's usual one; "
                    "expected it stored or deflated"
                )
    except BaseException:
        file.close()
        raise
    return archive


@contextlib.contextmanager
def open_root(path: Path) -> Iterator[Root]:
    """A folder that is no link, open. Raises FileNotFoundError, and UserError if it is something
    else.
    """
    with _open_folder(path) as descriptor:
        yield Root(path, descriptor)


@contextlib.contextmanager
def _open_folder(path: Path, folder: int | None = None) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path if folder is None else path.name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; expected a folder that is no link") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_bytes(path: Path, most: int = MOST_BYTES, root: Root | Path | None = None) -> bytes:
    """What a regular file holds; `root` as open_regular has it. Raises what that does, and
    UserError if it is larger than `most` bytes.
    """
    with open_regular(path, root) as file:
        content = file.read(most + 1)
    if len(content) > most:
        size = f"{most // MIB:,} MiB" if most >= MIB else f"{most // KIB} KiB"
        raise UserError(f"{path}: larger than {size}")
    return content


def holds(folder: Path, contents: dict[str, bytes]) -> bool:
    """Whether each file of `contents` (name → bytes) lies in a folder with that content."""
    try:
        return all(read_bytes(folder / name) == content for name, content in contents.items())
    except (OSError, UserError):
        return False


def read_text(path: Path, most: int = MOST_BYTES, root: Root | Path | None = None) -> str:
    """The UTF-8 text of a regular file, without a byte-order mark.

    Raises what read_bytes does, and UserError if it is not UTF-8.
    """
    content = read_bytes(path, most, root)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8") from None


def read_json(path: Path, most: int = MOST_JSON, root: Root | Path | None = None):
    """The value of a JSON file, its texts as `seen` has them. Raises what read_text does, and
    UserError for anything that is not JSON.
    """
    text = read_text(path, most, root)
    if text.count("[") + text.count("{") > MOST_PARTS:
        raise UserError(f"{path}: more than {MOST_PARTS:,} lists and objects")
    try:
        found = json_value(text)
        return found if _visible(text) and "\\" not in text else seen(found)
    except RecursionError:
        raise UserError(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise UserError(f"{path}: expected JSON: {error}") from None


def json_value(text: str):
    """The value of a JSON text. Raises RecursionError, and ValueError for what no record of kvpeak
    holds: no number, one that is too large, and what `once` refuses.
    """
    hooks = {"parse_int": _bounded, "parse_float": _bounded} if _LONG.search(text) else {}
    return json.loads(text, parse_constant=_no_number, object_pairs_hook=once, **hooks)


def read_object(path: Path, most: int = MOST_JSON, root: Root | Path | None = None) -> dict:
    """The object of a JSON file. Raises what read_json does."""
    found = read_json(path, most, root)
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected a JSON object")
    return found


def read_csv(
    path: Path,
    needed: tuple[str, ...] = (),
    most: int = MOST_BYTES,
    only: tuple[str, ...] | None = None,
    root: Root | Path | None = None,
) -> list[dict]:
    """The rows of a CSV file (comma-separated, one header line), each as column → text; with
    `only` no other columns than these are kept.

    Raises what read_text does, and UserError if a column of `needed` is missing or the file is not
    such a table.
    """
    rows = csv_rows(read_text(path, most, root), path, needed)
    if only is None:
        return list(rows)
    return [{name: row[name] for name in only if name in row} for row in rows]


def csv_lines(text: str) -> Iterator[str]:
    """The lines of a CSV text, as a reader takes them; a copy of it takes a byte a character."""
    content = text.encode(errors="surrogatepass")
    return io.TextIOWrapper(io.BytesIO(content), "utf-8", "surrogatepass", newline="")


def csv_rows(text: str, path: Path, needed: tuple[str, ...] = ()) -> Iterator[dict]:
    """The rows of a CSV text, its fields as `seen` has them; `path` is for messages. Raises
    UserError.
    """
    csv.field_size_limit(LONGEST_FIELD)
    if len(text) > MOST_WIDE and not text.isascii():
        raise UserError(f"{path}: more than {MOST_WIDE // MIB} MiB, and not all of it is ASCII")
    reader = csv.DictReader(csv_lines(text))
    clean = _visible(text) and '"' not in text
    try:
        header = reader.fieldnames or []
        _check_header(header, path, needed)
        most_rows = min(MOST_ROWS, MOST_FIELDS // max(len(header), 1))
        for number, row in enumerate(reader):
            if number == most_rows:
                raise UserError(f"{path}: more than {most_rows:,} rows of {len(header)} columns")
            if None in row or None in row.values():
                raise UserError(
                    f"{path}: line {reader.line_num}: expected {len(header)} fields separated by "
                    "commas"
                )
            yield row if clean else seen(row)
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num}: {error}") from None


def _check_header(header: list[str], path: Path, needed: tuple[str, ...]) -> None:
    if len(header) > MOST_COLUMNS:
        raise UserError(f"{path}: {len(header):,} columns; expected at most {MOST_COLUMNS}")
    names = [plain(name) for name in header]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{path}: column {twice[0][:80]} is there twice")
    missing = [name for name in needed if name not in header]
    if missing and len(header) == 1 and ";" in header[0]:
        raise UserError(
            f"{path}: its fields are separated by semicolons; expected commas and decimal points, "
            "as kvpeak writes them"
        )
    if missing:
        found = ", ".join(header[:8]) or "nothing"
        raise UserError(f"{path}: column {missing[0]} is not there; found {found[:200]}")


def _visible(text: str) -> bool:
    """Whether a text has no hidden character besides the ends of lines; False if in doubt."""
    return text.isascii() and text.replace("\r\n", "").replace("\n", "").isprintable()


def _bounded(number: str) -> float | int:
    """A number of a JSON text."""
    value = float(number)
    if not abs(value) <= LARGEST_NUMBER:
        raise ValueError(f"{number[:20]}…: no figure is as large")
    return int(number) if number.lstrip("-").isdecimal() else value


def once(pairs: list[tuple]) -> dict:
    """An object of a JSON text. Raises ValueError if it has a key twice, or one that cannot be
    seen as it is: another reader would find something else under the key.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice in one object")
    if hidden := next((key for key in found if not is_seen(key)), None):
        raise ValueError(f"key {plain(hidden, 80)}: has characters that cannot be seen")
    return found


def _no_number(name: str):
    raise ValueError(f"{name} is no number")
