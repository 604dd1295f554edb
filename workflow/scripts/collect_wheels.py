"""Collect in one folder every package that an installation without a network needs: of this Python,
on this system.
"""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.collect_wheels"))
