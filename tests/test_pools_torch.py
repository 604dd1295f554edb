"""PyTorch's allocator, replayed from its snapshots: the figures that PyTorch itself counted."""

import io
import json
import lzma
import zipfile
from pathlib import Path

import pytest

from kvpeak.base.columns import POOLS
from kvpeak.base.program import main
from kvpeak.base.untrusted import read_csv
from kvpeak.pools import snapshot
from kvpeak.pools.recordings import compared
from kvpeak.pools.replay import Setting, replay

DATA = Path(__file__).parent / "data" / "torch"
RECORDINGS = Path(__file__).parents[1] / "config/pools/pytorch-h200"
PEAKS = ("reserved_peak", "reserved_end", "allocated_peak", "active_peak", "requested_peak")


def counted(name: str) -> dict:
    return json.loads((DATA / f"{name}.json").read_text())


def trace_of(name: str):
    path = DATA / f"{name}.pickle.xz"
    with lzma.open(path) as file:
        (trace,) = snapshot.open_snapshot(path, file)
    return trace


@pytest.mark.parametrize(
    "name", ["gen-sdpa-1025", "train-6", "plain-1", "streams-1", "retry-1", "truncated-1"]
)
def test_the_replay_counts_what_pytorch_counted(name):
    trace, real = trace_of(name), counted(name)
    outcome = replay(trace, Setting("torch"), limit=trace.memory or None)
    assert {key: getattr(outcome, key) for key in PEAKS if key in real} == {
        key: real[key] for key in PEAKS if key in real
    }
    assert outcome.made == real.get("device_alloc", real.get("cudaMalloc"))
    assert outcome.retries == real["num_alloc_retries"]
    assert outcome.fits


@pytest.mark.parametrize(
    ("recorded", "predicted"),
    [
        ("train-6", "train-6.max_split_size_mb-32"),
        ("plain-1", "plain-1.expandable_segments-True"),
    ],
)
def test_the_default_run_predicts_the_run_under_another_setting(recorded, predicted):
    real = counted(predicted)
    outcome = replay(trace_of(recorded), Setting("torch", real["alloc_conf"]))
    assert {key: getattr(outcome, key) for key in PEAKS if key in real} == {
        key: real[key] for key in PEAKS if key in real
    }


def test_the_limit_of_a_run_short_of_memory_is_narrowed_down():
    trace = trace_of("retry-1")
    real = int(0.009 * counted("retry-1")["total_memory"])
    assert trace.memory <= real < trace.below


def test_forty_runs_on_an_h200_are_predicted_to_the_byte_from_eight_snapshots():
    runs = list(compared(RECORDINGS))
    assert len(runs) == 40
    assert {row["workload"]: [] for row, _ in runs}.keys() >= {"two_streams", "out_of_memory"}
    wrong = [
        (row["workload"], row["setting"], row["reserved_peak"], outcome.reserved_peak)
        for row, outcome in runs
        if row["reserved_peak"] != outcome.reserved_peak
        or row["num_alloc_retries"] != outcome.retries
        or bool(row["error"]) == outcome.fits
        or abs(outcome.active_peak / row["active_peak"] - 1) > 0.002
    ]
    assert wrong == []


def recordings(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    return folder


def test_the_recordings_become_a_table(tmp_path, capsys):
    out = tmp_path / "pools/pytorch.csv"
    assert main("kvpeak.commands.replay_recordings", [str(RECORDINGS), "--out", str(out)]) == 0
    assert "40 processes; replayed to the byte: 40 reserved peaks" in capsys.readouterr().out
    rows = read_csv(out, POOLS.names)
    assert rows[0]["setting"] == "default" and rows[0]["counted_bytes"] == "318767104"
    assert {row["replayed_end"] for row in rows} == {"ran", "out of memory"}


def archive(members: int, content: bytes) -> bytes:
    """A zip archive of so many alike files."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as opened:
        for number in range(members):
            opened.writestr(f"{number}.pickle.xz", content)
    return made.getvalue()


PEAKS_JSON = (RECORDINGS / "peaks.json").read_bytes()


def changed_peaks(**values: object) -> bytes:
    """The peaks of processes of which the first says something else."""
    first, *others = json.loads(PEAKS_JSON)
    return json.dumps([first | values, *others]).encode()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "peaks.json: no such file"),
        ({"peaks_json": b"{}"}, "peaks.json: expected a list of processes"),
        ({"peaks_json": b"[{}]"}, "process 1: workload: expected a text"),
        ({"peaks_json": changed_peaks(limit="x")}, "process 1: limit: x: expected a whole number"),
        ({"peaks_json": changed_peaks(limit=1.5)}, "process 1: limit: 1.5: expected a whole"),
        ({"peaks_json": changed_peaks(limit=-5)}, "process 1: limit: -5: expected a whole number"),
        ({"peaks_json": changed_peaks(limit=2**64)}, "expected a whole number from 1 to 2^63"),
        ({"peaks_json": changed_peaks(active_peak=-5)}, "process 1: active_peak: -5: expected"),
        ({"peaks_json": changed_peaks(reserved_peak=10**280)}, "reserved_peak: 1000000"),
        ({"peaks_json": PEAKS_JSON}, "snapshots.zip: no such file"),
        ({"peaks_json": PEAKS_JSON, "snapshots_zip": b"PK"}, "snapshots.zip: a damaged archive"),
        ({"peaks_json": PEAKS_JSON, "snapshots_zip": archive(101, b"")}, "at most 100 snapshots"),
        (
            {"peaks_json": PEAKS_JSON, "snapshots_zip": archive(1, bytes(2**26 + 1))},
            "snapshots of at most 64 MiB each",
        ),
    ],
)
def test_recordings_that_are_not_there_or_damaged_are_one_line(tmp_path, capsys, files, said):
    folder = recordings(tmp_path, **files)
    assert main("kvpeak.commands.replay_recordings", [str(folder)]) != 0
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_workload_without_its_snapshot_is_one_line(tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "snapshots.zip", "w") as archive:
        archive.write(DATA / "plain-1.pickle.xz", "plain.pickle.xz")
    folder = recordings(tmp_path, peaks_json=PEAKS_JSON)
    assert main("kvpeak.commands.replay_recordings", [str(folder)]) != 0
    assert "has no snapshot generation_growing" in capsys.readouterr().err
