"""When the guard objects."""

from kvpeak.runner.watch import Guard


def test_the_engine_may_hold_a_fraction_of_what_is_available():
    guard = Guard.at_start(fraction=0.8, available_mib=10_000, total_mib=16_000)
    assert guard.objects_to(8_000) is None
    assert guard.objects_to(8_001) == "the engine held 8001 MiB; the guard allows 8000"


def test_the_machine_keeps_five_percent_of_its_memory():
    guard = Guard.at_start(fraction=0.8, available_mib=10_000, total_mib=16_000)
    assert guard.objects_to_machine(800) is None
    assert guard.objects_to_machine(799) == "the machine had 799 MiB left; the guard keeps 800"


def test_a_full_machine_does_not_stop_an_engine_that_takes_nothing():
    guard = Guard.at_start(fraction=0.8, available_mib=500, total_mib=16_000)
    assert guard.objects_to_machine(500) is None
    assert guard.objects_to_machine(99)
