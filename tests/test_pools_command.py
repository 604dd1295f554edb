"""kvpeak pools: the answer to a snapshot, and what it says about files that are none."""

import csv
import io
import json
import lzma
import pickle
from pathlib import Path

import pytest

from kvpeak.base.program import main
from kvpeak.commands import pools
from kvpeak.pools import trace
from kvpeak.pools.replay import Setting, policies, replay
from kvpeak.pools.sources import open_traces

DATA = Path(__file__).parent / "data" / "torch"


def kvpeak_pools(*arguments) -> int:
    return main(pools, [str(each) for each in arguments])


def test_a_snapshot_is_answered_with_one_sentence(capsys, tmp_path):
    assert kvpeak_pools(DATA / "train-6.pickle.xz", "--search", "--out", tmp_path) == 0
    said = capsys.readouterr().out
    assert "expandable_segments:True: 1,799 MB, 28 % less than you have now." in said
    record = json.loads((tmp_path / "pools.json").read_text())
    rows = list(csv.DictReader(io.StringIO((tmp_path / "settings.csv").read_text())))
    assert len(rows) == len(record["settings"]) > 90
    now = next(row for row in rows if row["setting"] == "torch")
    assert int(now["reserved_peak"]) == 2_503_999_488
    assert max(record["series"]["reserved"]) == 2_503_999_488
    assert "Who holds what at the peak" in (tmp_path / "index.html").read_text()


def test_too_little_memory_is_told_with_where_and_what_the_retries_gave_back(capsys):
    assert kvpeak_pools(DATA / "plain-1.pickle.xz", "--memory", "900MB", "--policy", "torch") == 0
    said = capsys.readouterr().out
    outcome = replay(*open_traces(DATA / "plain-1.pickle.xz"), Setting("torch"), 900_000_000)
    assert not outcome.fits and outcome.retry_bytes > 0
    assert f"fails at event {outcome.failed_at:,} of 3,000" in said
    assert "retries gave back" in said


def test_a_trace_survives_its_own_file(tmp_path, capsys):
    saved = tmp_path / "run.kvtrace"
    assert kvpeak_pools(DATA / "streams-1.pickle.xz", "--policy", "none", "--save", saved) == 0
    (original,), (read,) = open_traces(DATA / "streams-1.pickle.xz"), open_traces(saved)
    assert vars(read) == vars(original)
    assert saved.stat().st_size <= 4 * len(read)


def test_a_trace_is_never_written_through_a_link(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "t.kvtrace").symlink_to(tmp_path / "victim")
    snapshot = DATA / "plain-1.pickle.xz"
    assert kvpeak_pools(snapshot, "--policy", "none", "--save", tmp_path / "t.kvtrace") == 0
    assert (tmp_path / "victim").read_text() == "mine"
    assert len(open_traces(tmp_path / "t.kvtrace")) == 1


def test_plain_csv_is_a_trace(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("op,id,bytes\nalloc,a,1000\nalloc,b,3000\nfree,a,\nalloc,a,900\n")
    (read,) = open_traces(table)
    outcome = replay(read, Setting("candle"))
    assert (outcome.made, outcome.hits, outcome.reserved_peak) == (2, 1, 1024 + 4096)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x80\x04cos\nsystem\n(S'touch hacked'\ntR.", "refused, nothing was run"),
        (pickle.dumps([1, 2]), "expected a dictionary with device_traces"),
        (pickle.dumps({"device_traces": [[]]}), "has no history"),
        (pickle.dumps({"device_traces": [[{"action": "alloc"}]]}), "not PyTorch's"),
        (pickle.dumps({"device_traces": []})[:-9], "not a snapshot"),
        (lzma.compress(b"op,id,bytes\n")[:-7], "damaged"),
        (b"op,id\n", "expected the columns op, id and bytes"),
        (b"op,id,bytes\nfree,a,\n", "line 2: id a is not live"),
        (b"op,id,bytes\nalloc,a,-1\n", "line 2: bytes: -1"),
        (b"op,id,bytes\nfly,a,1\n", "line 2: op: 'FLY'"),
        (trace.MAGIC + b"nonsense", "damaged"),
        (b"\xff\xfe\x00", "not a trace"),
    ],
)
def test_a_file_that_is_no_trace_is_one_line(tmp_path, capsys, content, said):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert kvpeak_pools(path) == 1
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not Path("hacked").exists()


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("jemalloc", "not a policy; there are bucket, candle"),
        ("torch,max_split_size_mb:5", "max_split_size_mb: at least 20"),
        ("torch,split:5", "not a setting of this policy; it has expandable_segments"),
        ("candle,cap:3x", "expected none or a power of two"),
        ("mlx,cap:many", "expected none or a size as 64MiB"),
    ],
)
def test_a_setting_that_is_none_is_one_line(capsys, policy, said):
    assert kvpeak_pools(DATA / "plain-1.pickle.xz", "--policy", policy) == 1
    assert said in capsys.readouterr().err


def test_each_policy_is_listed(capsys):
    assert kvpeak_pools("--policies") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in policies())
