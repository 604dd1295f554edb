"""Cut a corpus to an exact number of a model's tokens and write them as JSON."""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.cut_prompt"))
