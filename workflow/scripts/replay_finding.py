"""Hold the replay against the published finding, and predict what it did not measure."""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.replay_finding"))
