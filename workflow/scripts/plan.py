"""Write the plan: every cell of a matrix, and whether and why it does not run here."""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.plan"))
