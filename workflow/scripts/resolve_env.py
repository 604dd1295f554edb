"""Find the versions and hashes of one commit's environment, and record them."""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.resolve_env"))
