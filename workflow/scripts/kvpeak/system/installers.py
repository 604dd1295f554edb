"""How pip and uv are called, and told where packages come from.

An address may hold a password, and what they build sees their variables. So addresses reach them by
a file of requirements that only its owner may read.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvpeak.system.programs import PROXIES, environment

# -P: nothing is imported from the folder in which they start. uv takes uv.toml and pyproject.toml
# from every folder above its project, whoever put them there; / has none above it. The user's and
# the system's configuration count as ever.
PIP = (sys.executable, "-P", "-m", "pip")
UV = (sys.executable, "-P", "-m", "uv", "--project", "/")
# A variable with addresses, and the option that says the same in a file of requirements.
ADDRESSES = {
    PIP: {
        "PIP_INDEX_URL": "--index-url",
        "PIP_EXTRA_INDEX_URL": "--extra-index-url",
        "PIP_FIND_LINKS": "--find-links",
    },
    UV: {
        "UV_DEFAULT_INDEX": "--index-url",
        "UV_INDEX_URL": "--index-url",
        "UV_INDEX": "--extra-index-url",
        "UV_EXTRA_INDEX_URL": "--extra-index-url",
        "UV_FIND_LINKS": "--find-links",
    },
}
_OWN = {PIP: "PIP_", UV: "UV_"}  # what each one's variables begin with
_OF_THE_NET = re.compile("https?://", re.IGNORECASE)
_NAMED = re.compile(rf"^[\w.-]+=(?={_OF_THE_NET.pattern})", re.IGNORECASE)  # in UV_INDEX


def installer_environment(program: tuple[str, ...]) -> dict[str, str]:
    """The variables for PIP or UV: its own, without addresses of the net. They need the proxies,
    whose addresses they take from variables alone.
    """
    given = environment(_OWN[program], *PROXIES, "PIP_PROXY")
    return {name: value for name, value in given.items() if name not in _addresses(program)}


def address_lines(program: tuple[str, ...]) -> list[str]:
    """The addresses that the variables of PIP or UV name, as lines of a file of requirements."""
    return [
        f"{ADDRESSES[program][name]} {_NAMED.sub('', address)}"
        for name, value in _addresses(program).items()
        for address in re.split(r"[\s,]+" if name == "UV_FIND_LINKS" else r"\s+", value.strip())
    ]


@contextmanager
def address_options(program: tuple[str, ...]) -> Iterator[list[str]]:
    """The options by which PIP or UV is given these lines; none where there are none."""
    with tempfile.TemporaryDirectory() as folder:  # nobody else may enter it
        lines, file = address_lines(program), Path(folder, "addresses.txt")
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        yield ["-r", str(file)] if lines else []


def _addresses(program: tuple[str, ...]) -> dict[str, str]:
    """The variables that name an address of the net; a folder stays where it is."""
    given = {name: os.environ.get(name, "") for name in ADDRESSES[program]}
    return {name: value for name, value in given.items() if _OF_THE_NET.search(value)}
