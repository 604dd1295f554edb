"""The last-level cache from sysfs."""

import pytest

from kvpeak.base.numbers import KIB
from kvpeak.system.caches import last_level_cache_bytes


def cache(root, cpu: int, index: int, level: int, kind: str, size: str, shared: str) -> None:
    folder = root / f"cpu{cpu}/cache/index{index}"
    folder.mkdir(parents=True)
    texts = {"level": level, "type": kind, "size": size, "shared_cpu_list": shared}
    for name, text in texts.items():
        (folder / name).write_text(f"{text}\n")


def test_the_last_level_counts_each_cache_once(tmp_path):
    for cpu in range(4):
        cache(tmp_path, cpu, 0, 1, "Data", "48K", str(cpu))
        cache(tmp_path, cpu, 1, 1, "Instruction", "64K", str(cpu))
        cache(tmp_path, cpu, 2, 2, "Unified", "2048K", str(cpu))
        cache(tmp_path, cpu, 3, 3, "Unified", "32M", "0-1" if cpu < 2 else "2-3")
    assert last_level_cache_bytes(tmp_path) == 64 << 20


def test_without_a_third_level_the_second_is_the_last(tmp_path):
    for cpu in range(2):
        cache(tmp_path, cpu, 0, 1, "Data", "64K", str(cpu))
        cache(tmp_path, cpu, 1, 2, "Unified", "512K", str(cpu))
    assert last_level_cache_bytes(tmp_path) == 1024 * KIB


@pytest.mark.parametrize("size", ["", "much", "32T"])
def test_a_size_that_cannot_be_read_is_not_known(tmp_path, size):
    cache(tmp_path, 0, 0, 3, "Unified", size, "0")
    assert last_level_cache_bytes(tmp_path) is None


def test_a_system_that_does_not_say_is_not_known(tmp_path):
    assert last_level_cache_bytes(tmp_path / "nowhere") is None
