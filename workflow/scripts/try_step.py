"""Run one preparing step and always leave its file: what it made, or in one line why it made
nothing.
"""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.try_step"))
