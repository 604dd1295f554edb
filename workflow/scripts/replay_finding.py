"""Hold the replay against the published finding, and predict what it did not measure."""

import sys

from kvpeak.base.program import main
from kvpeak.commands import replay_finding

if __name__ == "__main__":
    sys.exit(main(replay_finding))
