"""Write docs/releases.md (kvpeak/commands/release_table.py)."""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.release_table"))
