# The matrix, and what the rules ask of it.

import json
import sys

SCRIPTS = "workflow/scripts"
sys.path.insert(0, str(Path(workflow.basedir) / SCRIPTS))

from kvpeak.config_file import ConfigError
from kvpeak.matrix import AXES, Cell, load_matrix

PYTHON = sys.executable
MATRIX_FILE = config.get("matrix", "config/matrix.yaml")

try:
    MATRIX = load_matrix(MATRIX_FILE)
except ConfigError as error:
    print(error, file=sys.stderr)
    sys.exit(1)

CELL_PATH = "/".join(f"{{{axis}}}" for axis in AXES) + "/r{round}"


wildcard_constraints:
    **{axis: r"[A-Za-z0-9][A-Za-z0-9._-]*" for axis in AXES},
    round=r"[1-9]\d*",


def cell_of(wildcards) -> Cell:
    return Cell(*(wildcards[axis] for axis in AXES), int(wildcards.round))
