"""What was recorded when an external engine was built, and whether its program is still that
one.
"""

from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import sha256_of
from kvpeak.base.untrusted import read_object


def engine_record(request: dict) -> dict:
    """The engine.json of the request's build. Raises UserError."""
    file = _folder(request) / "engine.json"
    try:
        return read_object(file)
    except (OSError, UserError) as error:
        raise UserError(f"{file}: {error}; build it again: delete {file.parent}") from None


def started(request: dict) -> dict:
    """What is known of the program before it runs, as a `started` event of docs/protocol.md."""
    record = engine_record(request)
    name = Path(record["program"]).name
    versions = {name: record["revision"][:12], **record["toolchain"]}
    return {"event": "started", "versions": versions, "device": {}, "cap_bytes": None}


def verify(request: dict) -> None:
    """Raise UserError if the program is not the one that was built."""
    program, built = Path(request["external"]["program"]), engine_record(request)
    again = f"build it again: delete {_folder(request)}"
    try:
        same = sha256_of(program) == built["program_sha256"]
    except OSError as error:
        raise UserError(f"{program}: {error.strerror}; {again}") from None
    if not same:
        raise UserError(f"{program}: is not the program that was built; {again}")


def _folder(request: dict) -> Path:
    return Path(request["external"]["folder"]).parent
