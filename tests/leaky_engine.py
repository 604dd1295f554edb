"""A program whose resident memory behaves as asked for; prints it after each of its requests.

usage: leaky_engine.py REQUESTS LEAK_KIB SEED
"""

import mmap
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "workflow/scripts"))

from kvpeak.base.numbers import KIB
from kvpeak.system.process_memory import own_memory

PAGE_KIB = 4
FILLS_UP = 40  # requests until the pool holds all that it will


def resident(kib: int) -> mmap.mmap:
    """So much memory, every page of it written."""
    memory = mmap.mmap(-1, kib * KIB)
    memory.write(b"\1" * (kib * KIB))
    return memory


def main() -> None:
    requests, leak, seed = map(int, sys.argv[1:])
    draw, kept, scratch = random.Random(seed), [], None
    for number in range(requests):
        if leak or number < FILLS_UP:
            kept.append(resident(leak or 256))
        if scratch:
            scratch.close()
        scratch = resident(PAGE_KIB * draw.randrange(1, 64))
        print(own_memory().rss_mib)


if __name__ == "__main__":
    main()
