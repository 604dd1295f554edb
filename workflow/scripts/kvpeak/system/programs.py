"""How programs that are not ours are run: they ask nothing, they end in time, and they see no
secrets.

Each gets no standard input and a session of its own, so that there is no terminal that it could ask
on. When its time is over, or this process ends, it ends with everything that it has started.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from kvpeak.base.errors import Unavailable
from kvpeak.base.text import OF_PROGRAMS
from kvpeak.system.leash import Leash
from kvpeak.system.process_tree import ProcessTree, children, inherited_orphans

# What makes programs fail where they would ask a person.
NO_QUESTIONS = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",  # none, not even the one of git's configuration
    "SSH_ASKPASS_REQUIRE": "never",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
    "GCM_INTERACTIVE": "never",
    "PIP_NO_INPUT": "1",
}
PROXIES = (
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
)
# The variables that another program may see; of the groups none that looks like a secret.
ALLOWED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP"),
    *("CC", "CXX", "AR", "LD", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "MAKEFLAGS"),
    *("SDKROOT", "DEVELOPER_DIR", "MACOSX_DEPLOYMENT_TARGET", "CPATH", "LIBRARY_PATH"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *PROXIES,
)
GROUPS = (
    *("LC_", "XDG_", "LD_", "DYLD_", "PKG_CONFIG", "CMAKE_", "CARGO_", "RUST"),
    *("CUDA", "NVIDIA_", "OMP_", "OPENBLAS_", "GOTO_", "MKL_", "VECLIB_", "NUMEXPR_"),
)
# What further variables our own engines may see, by their beginnings.
OUR_ENGINES = ("KVPEAK_", "MLX_", "PYTHON", "METAL_", "MTL_", "TRANSFORMERS_", "TOKENIZERS_")
SSH = ("SSH_AUTH_SOCK", "SSH_AGENT_PID", "GIT_")  # only for git itself
# git counts its GIT_CONFIG_KEY_1 and so on: all go, or it stops at the one that is missing.
GIT_COUNTED = ("GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_")
SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|USERNAME|KEY|PRIVATE|AUTH|(^|_)PAT(_|$)", re.IGNORECASE
)
# An address with a password or a query in it; its scheme may be left out, as with a proxy.
WITH_PASSWORD = re.compile(r"://[^/\s]*@|://\S*\?|(^|[\s,;='\"])[^/\s@:]*:[^/\s@]*@")
ADDRESS = re.compile(r"(\w+://)(?:[^/\s]*@)?([\w.:\[\]-]*)[^\s)`'\"]*")
END_S = 2.0  # for the rest of what an ended program wrote
MOST_SAID = 16 << 20  # characters: a build may print a megabyte, and some never end
LAST_LINES = 4096  # bytes of what a program printed, for a message


def environment(*more: str) -> dict[str, str]:
    """The variables for a program that is not ours; `more`: further names, or their beginnings. An
    address that holds a password is only in it if `more` has its whole name.
    """

    def may_be_seen(name: str, value: str) -> bool:
        if name in more:
            return True
        if "PROXY" in name.upper() and "@" in value:
            return False
        if name in ALLOWED:
            return True
        if SECRET.search(name) or name.startswith(GIT_COUNTED) or WITH_PASSWORD.search(value):
            return False
        return name.startswith((*GROUPS, *more))

    return {n: value for n, value in os.environ.items() if may_be_seen(n, value)} | NO_QUESTIONS


def engine_environment(*more: str) -> dict[str, str]:
    """The variables for what is measured: it fetches nothing, so it sees no proxy either."""
    return {name: value for name, value in environment(*more).items() if name not in PROXIES}


def run_program(
    command: list[str],
    limit_s: float,
    folder: Path | None = None,
    variables: dict[str, str] | None = None,
    capture: bool = False,
    addresses: bool = True,
) -> subprocess.CompletedProcess:
    """Run a program to its end, in `folder`, with `variables` (default: `environment()`).

    What it prints goes to this process's standard error, and the end of its own standard error into
    the result. With `capture` nothing is shown and both are in the result, as text. Of each no more
    than MOST_SAID characters are shown or kept. Without `addresses` of each only the host is shown,
    and of a line no more than LAST_LINES. Raises Unavailable if the program is not there or
    takes longer than `limit_s` seconds.
    """
    with inherited_orphans():
        return _run(command, limit_s, folder, variables, capture, addresses)


def _run(
    command: list[str],
    limit_s: float,
    folder: Path | None,
    variables: dict[str, str] | None,
    capture: bool,
    addresses: bool,
) -> subprocess.CompletedProcess:
    leash = Leash(limit_s)
    others = children(os.getpid())
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=leash.marked(environment() if variables is None else variables),
            start_new_session=True,
            preexec_fn=leash.tie,  # safe: the programs that call this have a single thread
            **OF_PROGRAMS,
        )
    except OSError as error:
        leash.release()
        raise Unavailable(f"{command[0]}: cannot be started ({error.strerror})") from None
    streams = process.stdout, process.stderr
    out, err = (_Listener(stream, capture, addresses) for stream in streams)
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        shown = " ".join(command)[:200]
        raise Unavailable(f"{shown}: not finished after {limit_s:g} s") from None
    finally:
        _end(process, others)
        leash.release()
    said = out.whole(), err.whole()
    return subprocess.CompletedProcess(command, process.returncode, *said)


class _Listener:
    """Shows what a program writes while it runs, and keeps the end of it; or keeps all of it. It
    listens to the end, and to MOST_SAID characters only.
    """

    def __init__(self, stream, keep: bool, addresses: bool):
        self._stream, self._keep, self._addresses = stream, keep, addresses
        self._kept: list[str] = []
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        left, begun = MOST_SAID, False  # begun: the text goes on with a line
        while text := self._stream.readline(LAST_LINES):
            if self._keep and left > 0:
                self._kept.append(text)
            elif not self._keep:
                self._kept = ["".join([*self._kept, text])[-LAST_LINES:]]
                if left > 0 and (self._addresses or not begun):
                    self._show(text if len(text) < left else "\n… more is not shown …\n")
            left, begun = left - len(text), not text.endswith("\n")

    def _show(self, text: str) -> None:
        text = text if self._addresses else hosts_only(text).rstrip("\n") + "\n"
        with contextlib.suppress(OSError):  # a closed terminal does not end the program
            sys.stderr.write(text)
            sys.stderr.flush()

    def whole(self) -> str:
        """What was kept."""
        self._thread.join(END_S)  # what left the session may hold the stream
        return "".join(self._kept)


def hosts_only(text: str) -> str:
    """The text with nothing of an address but its scheme and host: the rest may hold a token."""
    return ADDRESS.sub(r"\1\2", text)


def last_line(text: str) -> str:
    """The last line that says something: usually the cause."""
    lines = text[-LAST_LINES:].splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _end(process: subprocess.Popen, others: set[int]) -> None:
    """End what is left of the program's session, and what has left it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: all are zombies
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    ProcessTree(process.pid, others).end()
