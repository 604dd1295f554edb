"""The engine candle-replay: Candle's Metal buffer pool, replayed from a model's shapes.

Answers one JSON request with the events of docs/protocol.md on standard output. No weights are read
and nothing is computed; by default every buffer is really allocated, so that the operating system's
peak can be held against the bookkeeping.
"""

import sys

from kvpeak.protocol.emit import run_engine
from kvpeak.replay.engine import answer

if __name__ == "__main__":
    sys.exit(run_engine("candle_replay", __doc__, answer))
