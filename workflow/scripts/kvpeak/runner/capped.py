"""A log of limited size: the beginning and the end of what a program wrote."""

from pathlib import Path

MOST_BYTES = 16 << 20  # of the beginning
LAST_BYTES = 64 << 10  # of the end


class Capped:
    """Keeps the first MOST_BYTES of what is written, and after a line that says so the last
    LAST_BYTES.
    """

    def __init__(self, file: Path, most: int = MOST_BYTES):
        self._file = file.open("wb", buffering=0)
        self._room = most
        self._last = b""
        self._more = 0  # bytes beyond the first

    def write(self, data: bytes) -> None:
        """Raises OSError."""
        first, rest = data[: self._room], data[self._room :]
        if first:
            self._file.write(first)
            self._room -= len(first)
        if rest:
            self._more += len(rest)
            self._last = (self._last + rest)[-LAST_BYTES:]

    def close(self) -> None:
        left_out = self._more - len(self._last)
        if left_out > 0:
            self._file.write(f"\n… {left_out} bytes left out …\n".encode())
        if self._last:
            self._file.write(self._last)
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_raised):
        self.close()
