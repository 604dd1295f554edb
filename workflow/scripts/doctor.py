"""Check what every counter reads of processes whose memory is known."""

import sys

from kvpeak.base.program import main
from kvpeak.commands import doctor

sys.exit(main(doctor))
