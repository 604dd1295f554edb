"""Build one commit of an external engine: clone its repository at the revision, build it, record
what was built.
"""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.build_engine"))
