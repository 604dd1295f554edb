"""Gather the cells: kvpeak aggregate."""

import sys

from kvpeak.base.program import main
from kvpeak.commands import aggregate

if __name__ == "__main__":
    sys.exit(main(aggregate))
