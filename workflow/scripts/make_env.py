"""Make the environment of one commit (kvpeak/commands/make_env.py)."""

import sys

from kvpeak.base.program import main
from kvpeak.commands import make_env

if __name__ == "__main__":
    sys.exit(main(make_env))
