"""Run one cell: start its engine, measure the process, write runs.csv, cell.json and memory.csv."""

import sys

from kvpeak.base.program import main
from kvpeak.commands import run_cell

sys.exit(main(run_cell))
