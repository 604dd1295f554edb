"""Build the library that puts another buffer pool into MLX."""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.build_pool"))
