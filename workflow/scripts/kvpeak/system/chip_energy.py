"""The energy of an Apple chip, read without root. Millijoules, joules.

IOReport's energy model, through zeus-apple-silicon. It is Apple's own model of the chip; the
library's authors believe that it is reckoned, not sensed. Nothing here has run on a Mac: it was
written from the library's documentation, and tested on an object with its documented fields.
"""

import json
import sys
from itertools import pairwise

from kvpeak.base.errors import Unavailable
from kvpeak.system.programs import environment, run_program

# The fields of AppleEnergyMetrics that are summed. Not the GPU's SRAM, which newer chips do not
# tell, and not the neural engine, which MLX does not use.
GPU, PROCESSOR, DRAM = "gpu_mj", "cpu_total_mj", "dram_mj"
PARTS = {GPU: "GPU", PROCESSOR: "processor", DRAM: "DRAM"}

READS, READ_EVERY_S, READS_WITHIN_S = 10, 0.05, 10.0
READ_PARTS = f"""
import json, time
from zeus_apple_silicon import AppleEnergyMonitor
monitor = AppleEnergyMonitor()
for _ in range({READS}):
    now = monitor.get_cumulative_energy()
    print(json.dumps([getattr(now, field) for field in {list(PARTS)}]))
    time.sleep({READ_EVERY_S})
"""


class ChipEnergy:
    """The sum of some parts of the chip, whoever uses them.

    monitor: an AppleEnergyMonitor. fields: those of its figures that are summed.
    """

    own, live = False, True

    def __init__(self, monitor, fields: list[str]):
        self.source = "IOReport, the whole " + " + ".join(PARTS[field] for field in fields)
        self._monitor, self._fields = monitor, fields

    def joules(self) -> float | None:
        try:
            now = self._monitor.get_cumulative_energy()
            return sum(getattr(now, field) for field in self._fields) / 1000
        except Exception:  # the library may raise anything, and a part may be None now
            return None


def chip_energy() -> ChipEnergy | None:
    """The counter of this chip. None where the library is not there or breaks, and where it tells
    neither the GPU nor the processor.
    """
    fields = _live_fields()
    if not {GPU, PROCESSOR} & set(fields):
        return None
    try:
        from zeus_apple_silicon import AppleEnergyMonitor

        return ChipEnergy(AppleEnergyMonitor(), fields)
    except Exception:  # whatever is raised where an undocumented interface has changed
        return None


def _live_fields() -> list[str]:
    """The parts that are told as of the moment of reading.

    The GPU is; its figure stands still while it rests. The processor and the DRAM were seen to be
    told every two seconds on some Macs, and never on one. Their energy would be counted to another
    phase, so they have to move between most readings. These are made by a process of its own,
    because the library would crash where macOS has no energy model.
    """
    command = [sys.executable, "-P", "-c", READ_PARTS]
    try:
        done = run_program(command, READS_WITHIN_S, variables=environment("PYTHON"), capture=True)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        columns = dict(zip(PARTS, zip(*rows, strict=True), strict=True))
    except (Unavailable, ValueError, TypeError):
        return []
    if done.returncode:
        return []
    return [field for field, told in columns.items() if None not in told and _live(field, told)]


def _live(field: str, told: tuple[int, ...]) -> bool:
    return field == GPU or sum(a != b for a, b in pairwise(told)) > len(told) / 2
