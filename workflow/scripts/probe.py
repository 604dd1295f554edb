"""A process whose memory is known, for the check of the instruments (kvpeak/live/probe.py)."""

import sys

from kvpeak.live.probe import answer
from kvpeak.protocol.emit import run_engine

sys.exit(run_engine("probe", __doc__, answer))
