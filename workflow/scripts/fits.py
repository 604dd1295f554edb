"""Predict the longest prompt that fits; the command is kvpeak.commands.fits."""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.fits"))
