"""The timeline keeps its shape and its size."""

import csv
import io

from kvpeak.runner.timeline import MOST_ROWS, Timeline


def rows(timeline: Timeline) -> list[dict]:
    return list(csv.DictReader(io.StringIO(timeline.text())))


def test_few_samples_are_kept_as_they_are():
    timeline = Timeline()
    timeline.add(0.01, "load", 1.0, 2.0, None)
    timeline.add(0.02, "prefill-0", 3.0, 4.0, 5.5)
    assert timeline.text() == (
        "t_s,phase,footprint_mib,rss_mib,device_mib\n"
        "0.010,load,1.00,2.00,\n"
        "0.020,prefill-0,3.00,4.00,5.50\n"
    )


def test_many_samples_are_joined_and_no_peak_is_lost():
    timeline = Timeline()
    for number in range(50_000):
        peak = 9000.0 if number == 31_415 else 5.0
        timeline.add(number / 100, f"decode-{number // 10_000}", peak, 5.0, None)
    kept = rows(timeline)
    assert MOST_ROWS / 4 < len(kept) <= MOST_ROWS
    assert max(float(row["footprint_mib"]) for row in kept) == 9000
    highest = max(kept, key=lambda row: float(row["footprint_mib"]))
    assert highest["phase"] == "decode-3"
    assert abs(float(highest["t_s"]) - 314.15) < 1
    assert [float(row["t_s"]) for row in kept] == sorted(float(row["t_s"]) for row in kept)


def test_samples_of_different_phases_are_never_joined():
    timeline = Timeline()
    for number in range(3 * MOST_ROWS):
        timeline.add(number, f"prefill-{number}", 1.0, 1.0, None)
    assert len(rows(timeline)) == 3 * MOST_ROWS
