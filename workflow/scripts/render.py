"""Render the finding: kvpeak render."""

import sys

from kvpeak.base.program import main
from kvpeak.commands import render

if __name__ == "__main__":
    sys.exit(main(render))
