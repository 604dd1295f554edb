"""Write the data dictionary: kvpeak columns."""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.columns"))
