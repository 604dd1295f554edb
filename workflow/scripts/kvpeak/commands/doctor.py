"""Check what every counter reads of processes whose memory is known.

Takes some seconds, while nothing else is measured. The exit code is 1 if a counter is off by
more than 2 % and more than 4 MiB, or if something could not be measured.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import write_json
from kvpeak.base.untrusted import read_object
from kvpeak.runner.attempt import attempt_name
from kvpeak.runner.instruments import check_instruments
from kvpeak.system.instruments import advice, table, wrong
from kvpeak.system.lock import measuring_alone


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--environment", default="this environment", help="the name of what is checked"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="its interpreter; default: this one"
    )
    parser.add_argument("--out", type=Path, help="where the record goes (JSON); default: nowhere")
    parser.add_argument("--read", type=Path, help="show such a record again, and check nothing")


def run(given: argparse.Namespace) -> int:
    if given.read:
        return _show_again(given.read)
    record = _check(given)
    if given.out:
        write_json(given.out, record)
        for line in advice(record):
            print(line, file=sys.stderr)
        return 0  # the finding marks what is wrong; that is no reason not to render it
    return _show(record)


def _show(record: dict) -> int:
    print(table(record))
    return 1 if wrong(record) or record["problems"] else 0


def _show_again(file: Path) -> int:
    """Show the record of another time. Raises UserError for a file that is none."""
    try:
        return _show(read_object(file))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file}: not a record of doctor ({error!r:.80})") from None


def _check(given: argparse.Namespace) -> dict:
    def say(text: str) -> None:
        print(f"doctor: {text}", file=sys.stderr)

    name = f"instruments of {given.environment}"
    with measuring_alone(name, (), say, lambda: None), tempfile.TemporaryDirectory() as scratch:
        return check_instruments(Path(scratch, attempt_name()), given.python, given.environment)
