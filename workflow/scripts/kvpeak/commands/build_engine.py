"""Build one commit of an external engine: clone its repository at the revision, build it, record
what was built.
"""

import json
from pathlib import Path

from kvpeak.base.files import write_json
from kvpeak.base.layout import engine_record, local_copy
from kvpeak.base.made import forget_import
from kvpeak.environments.external import Build


def arguments(parser) -> None:
    parser.add_argument("--commit", required=True, help="the commit's name")
    parser.add_argument("--entry", type=json.loads, required=True, help="its entry, as JSON")
    parser.add_argument("--out", type=Path, required=True, help="engine.json to write")


def run(given) -> None:
    record = Build(given.commit, given.entry).record()
    write_json(local_copy(engine_record(given.commit)), record)
    write_json(given.out, record)
    forget_import(given.out)
