"""Replay recordings of PyTorch's memory beside what its processes counted."""

import sys

from kvpeak.base.program import main

if __name__ == "__main__":
    sys.exit(main("kvpeak.commands.replay_recordings"))
