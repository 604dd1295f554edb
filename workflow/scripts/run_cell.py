"""Run one cell: start its engine, measure the process, write runs.csv, cell.json and memory.csv."""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.run_cell"))
