"""Make report/finding.html; the command is kvpeak.commands.page."""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.page"))
