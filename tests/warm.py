"""Start Python programs in milliseconds: as forks of a process that has imported the packages that
take long, and nothing of ours.

A fork is what the command would be, with its own arguments, folder, variables and files, up to its
exit handlers and the last flush. Where a test is about an interpreter's first start or its own end,
or about an engine, it starts the command itself.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = (
    *("itables", "jinja2", "jsonschema", "markdown_it"),
    *("matplotlib.backends.backend_svg", "matplotlib.pyplot", "pandas", "psutil", "requests"),
    *("rich.progress", "scipy.stats", "smart_open", "snakemake.cli", "snakemake.profiles"),
    *("snakemake.report.html_reporter", "statistics", "yaml", "yte"),
)
LIMIT_S = 300  # what runs longer is killed
NUMBER = struct.Struct("q")


class Started:
    """A program that runs: its process id."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self.pid = _number(connection)

    def ended(self, within_s: float = 0) -> bool:
        """Whether it has ended, or does so soon."""
        return bool(select.select([self._connection], [], [], within_s)[0])

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if not self.ended():
            os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code, negative where a signal ended it."""
        if not self.ended(LIMIT_S):
            os.kill(self.pid, signal.SIGKILL)
        return _number(self._connection)


def start(command: list, stdout: int, stderr: int, cwd: Path, env: dict | None = None) -> Started:
    """Start a command of Python: [interpreter, program, …], with -m or -c too, or [a script of
    Python's, …]. One at a time: `wait` for it before the next.
    """
    words = [str(word) for word in command]
    order = {
        "words": words[1:] if words[0] == sys.executable else words,
        "folder": str(cwd.absolute()),
        "variables": dict(os.environ) if env is None else env,
    }
    content = json.dumps(order).encode()
    connection = _server()
    with Path(os.devnull).open() as nothing:
        files = [nothing.fileno(), stdout, stderr]
        socket.send_fds(connection, [NUMBER.pack(len(content))], files)
        connection.sendall(content)
        return Started(connection)


def run(
    command: list, cwd: Path = Path(), env: dict | None = None, stdout=None, together: bool = False
) -> subprocess.CompletedProcess:
    """As subprocess.run with what is written as text, bytes that are none as surrogates.

    together: standard error goes where standard output goes.
    """
    with _kept() as out, _kept() as err:
        written = _descriptor(out if stdout is None else stdout)
        code = start(command, written, written if together else err.fileno(), cwd, env).wait()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


def _kept():
    return tempfile.TemporaryFile("a+", encoding="utf-8", errors="surrogateescape")


def _descriptor(file) -> int:
    return file if isinstance(file, int) else file.fileno()


@functools.cache
def _server() -> socket.socket:
    """A connection to the process that forks; it ends with this one."""
    ours, theirs = socket.socketpair()
    subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # no fork has another process's threads
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    return ours


def _number(connection: socket.socket) -> int:
    return NUMBER.unpack(_exactly(connection, NUMBER.size))[0]


def _exactly(connection: socket.socket, count: int) -> bytes:
    content = b""
    while len(content) < count:
        more = connection.recv(count - len(content))
        if not more:
            raise EOFError("the process that starts programs has ended")
        content += more
    return content


def _next_order(connection: socket.socket) -> tuple[dict, list[int]]:
    """Fork for each order; returns in the forks, with the order and its three files."""
    while True:
        head, files, _, _ = socket.recv_fds(connection, NUMBER.size, 3)
        if not head:
            sys.exit()
        order = json.loads(_exactly(connection, NUMBER.unpack(head)[0]))
        pid = os.fork()
        if not pid:
            connection.close()
            return order, files
        for file in files:
            os.close(file)
        connection.sendall(NUMBER.pack(pid))
        _, status = os.waitpid(pid, 0)
        connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _become(order: dict, files: list[int]) -> None:
    """Run the program as the interpreter would."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["variables"])
    tempfile.tempdir = None  # TMPDIR may be another
    signal.signal(signal.SIGINT, signal.default_int_handler)
    first, *rest = order["words"]
    if first == "-c":
        sys.path[0], sys.argv = "", ["-c", *rest[1:]]
        exec(rest[0], {"__name__": "__main__"})
    elif first == "-m":
        sys.path[0], sys.argv = str(Path.cwd()), rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = str(Path(first).parent.resolve()), [first, *rest]
        runpy.run_path(first, run_name="__main__")


def _leave(ended: list[int]) -> None:
    """End as the interpreter does after its exit handlers, without taking all packages apart."""
    with contextlib.suppress(OSError):  # which the interpreter says itself
        for stream in filter(None, (sys.stdout, sys.stderr)):
            if not stream.closed:
                stream.flush()
        for code in ended:
            os._exit(code)


if __name__ == "__main__":
    ended = []  # the code of a program that came to its end
    atexit.register(_leave, ended)  # the first registered is the last called
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the tests, which end this process
    for package in PACKAGES:
        importlib.import_module(package)
    gc.freeze()
    try:
        _become(*_next_order(socket.socket(fileno=int(sys.argv[1]))))
        ended.append(0)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            ended.append((end.code or 0) & 0xFF)
        raise
