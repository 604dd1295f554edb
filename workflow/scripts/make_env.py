"""Make the environment of one commit: exactly the packages that config/matrix.yaml gives it."""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.make_env"))
