"""Judge the claims: kvpeak check."""

import sys

from kvpeak.base.program import main
from kvpeak.commands import check

if __name__ == "__main__":
    sys.exit(main(check))
