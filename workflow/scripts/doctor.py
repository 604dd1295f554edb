"""Check what every counter reads of processes whose memory is known."""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.doctor"))
