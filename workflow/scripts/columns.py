"""Write the data dictionary: kvpeak columns."""

import sys

from kvpeak.base.program import main
from kvpeak.commands import columns

if __name__ == "__main__":
    sys.exit(main(columns))
