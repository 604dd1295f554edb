"""Measure what an engine's environment can do at most on this machine: arithmetic, and moving
memory.
"""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.calibrate"))
