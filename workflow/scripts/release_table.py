"""Write docs/releases.md (kvpeak/commands/release_table.py)."""

import sys

from kvpeak.base.program import main
from kvpeak.commands import release_table

if __name__ == "__main__":
    sys.exit(main(release_table))
