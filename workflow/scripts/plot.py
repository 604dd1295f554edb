"""Draw the figures: kvpeak plot."""

import sys

from kvpeak.base.program import main
from kvpeak.commands import plot

if __name__ == "__main__":
    sys.exit(main(plot))
