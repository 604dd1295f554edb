"""Draw the figures: kvpeak plot."""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.plot"))
