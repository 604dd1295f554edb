"""Traces and pickles of chance: nothing crashes, nothing is executed, sums stay sums."""

import contextlib
import gzip
import io
import json
import lzma
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvpeak.base import untrusted
from kvpeak.base.errors import UserError
from kvpeak.base.numbers import MIB
from kvpeak.pools import snapshot, snapshot_file, trace
from kvpeak.pools.replay import Setting, policies, replay
from kvpeak.pools.settings import recorded as settings_of
from kvpeak.pools.sources import open_traces
from kvpeak.pools.trace import BIRTHS, Op, Trace

QUIET = settings(max_examples=150, deadline=None, suppress_health_check=[*HealthCheck])
SETTINGS = [
    *(Setting(name) for name in policies()),
    Setting("torch", "expandable_segments:True"),
    Setting("torch", "max_split_size_mb:20,roundup_power2_divisions:[64:8,>:2]"),
    Setting("torch", "garbage_collection_threshold:0.5"),
    Setting("mlx", "backend:cuda,cap:1MiB,gc_limit:8MiB"),
]


@st.composite
def programs(draw) -> Trace:
    """Any order of operations on buffers that exist; frees twice and of strangers among them."""
    made = Trace(streams=["0", "1"])
    for _ in range(draw(st.integers(0, 60))):
        op = draw(st.sampled_from(Op))
        stream = draw(st.integers(0, 1))
        size = draw(st.one_of(st.integers(0, 4096), st.integers(0, 2**31), st.integers(0, 2**40)))
        if op in BIRTHS and op is not Op.PLACED:
            made.born(op, size, stream=stream)
        elif op in trace.DEATHS and made.buffers:
            made.add(op, draw(st.integers(0, made.buffers - 1)), stream=stream)
        elif op in (Op.WAIT, Op.CLEAR, Op.PRESSURE, Op.ATTEMPT, Op.SLACK, Op.HOLE):
            made.add(op, bytes=size if op in trace.WITH_BYTES else 0, stream=stream)
    return made


def attempts_before_a_request() -> Trace:
    made = Trace(streams=["0"])
    made.add(Op.ATTEMPT)
    made.add(Op.ATTEMPT)
    made.born(Op.ALLOC, 0)
    return made


@QUIET
@given(programs(), st.sampled_from(SETTINGS), st.one_of(st.none(), st.integers(2**20, 2**33)))
@example(attempts_before_a_request(), Setting("bucket"), 2**20)
def test_any_program_is_replayed_with_figures_that_agree(program, setting, limit):
    outcome = replay(program, setting, limit, bins=7)
    assert outcome.reserved_peak <= (limit or 2**64)
    assert outcome.reserved_end <= outcome.reserved_peak
    assert outcome.requested_peak <= outcome.active_peak <= outcome.reserved_peak
    assert outcome.hits <= outcome.requests
    assert outcome.inside >= 0 and outcome.outside >= 0


@QUIET
@given(programs())
def test_any_trace_survives_its_file(program):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.kvtrace"
        trace.write(program, path)
        assert vars(trace.read(path)) == vars(program)


@QUIET
@given(st.data())
def test_a_damaged_trace_is_a_users_error_or_another_trace(data):
    program = data.draw(programs())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.kvtrace"
        trace.write(program, path)
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] = data.draw(st.integers(0, 255))
        path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        with contextlib.suppress(UserError):
            replay(trace.read(path), Setting("torch"))


NUMBERS = st.integers(-(2**70), 2**70)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "action": st.sampled_from(
                [
                    "alloc",
                    "free_requested",
                    "free_completed",
                    "segment_alloc",
                    "segment_free",
                    "segment_map",
                    "segment_unmap",
                    "oom",
                    "snapshot",
                    "user_defined",
                ]
            ),
            "addr": st.one_of(st.sampled_from([0, 512, 4096]), NUMBERS),
            "size": st.one_of(st.integers(0, 2**30), NUMBERS),
            "stream": st.one_of(st.integers(0, 2), NUMBERS),
            "time_us": NUMBERS,
            "frames": st.lists(
                st.dictionaries(st.text(max_size=8), NUMBERS, max_size=3), max_size=2
            ),
        },
    ),
    max_size=12,
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=20,
)


@QUIET
@given(st.lists(EVENTS, max_size=3), ANYTHING, ANYTHING)
def test_any_snapshot_is_traces_or_a_users_error(devices, segments, annotations):
    found = {"device_traces": devices, "segments": segments, "external_annotations": annotations}
    read(pickle.dumps(found))


@QUIET
@given(st.data())
def test_any_bytes_are_traces_or_a_users_error(data):
    event = {"action": "alloc", "addr": 512, "size": 9, "stream": 0, "time_us": 1}
    content = bytearray(pickle.dumps({"device_traces": [[event, event]], "segments": []}))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + 1] = data.draw(st.binary(max_size=3))
    read(bytes(content))


def read(content: bytes) -> None:
    try:
        for found in snapshot.open_snapshot(Path("s.pickle"), io.BytesIO(content)):
            replay(found, Setting("torch"))
    except UserError:
        pass


ran = []


def run_me(*arguments):
    ran.append(arguments)


class Hostile:
    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "hostile",
    [
        Hostile(run_me, ("now",)),
        Hostile(eval, ("ran.append(1)",)),
        Hostile(getattr, (run_me, "__call__")),
        run_me,
        Hostile,
        pickletools,
    ],
    ids=["call", "eval", "getattr", "function", "class", "module"],
)
def test_code_in_a_pickle_is_refused_and_not_run(hostile, protocol):
    try:
        content = pickle.dumps({"device_traces": [], "x": hostile}, protocol)
    except TypeError:  # a module cannot be pickled
        content = b"cpickletools\ndis\n."
    with pytest.raises(UserError, match="refused, nothing was run"):
        snapshot_file.load(io.BytesIO(content), "s.pickle")
    assert ran == []


EVENT = {"action": "alloc", "addr": 512, "size": 9, "stream": 0, "time_us": 1}


def snapshot_with(**more) -> bytes:
    return pickle.dumps({"device_traces": [[EVENT | more]], "segments": []})


def nested(depth: int, both: bool):
    """A pair of one pair, of one pair, …: 2^depth leaves in `depth` objects."""
    made = ("x",)
    for _ in range(depth):
        made = (made, made) if both else [made, made]
    return made


def looped() -> list:
    made: list = []
    made.append(made)
    return made


FRAME = {"filename": "a.py", "line": 1, "name": "f"}
BOMBS = {
    "a memo number far beyond": (b"\x80\x04}r\x00\x00\x00\x10.", "skips memo numbers"),
    "a pair as a key": (b"\x80\x04}K\x01K\x02\x86K\x03s.", "a key that is no text"),
    "keys that collide": (pickle.dumps({k * (2**61 - 1): 0 for k in range(9)}), "no text"),
    "a number of many digits": (pickle.dumps({"a": 2**400}), "beyond 64 bits"),
    "containers without end": (b"\x80\x04(" + b"}" * 2000 + b"l.", "operation 108"),
    "containers in a list": (b"\x80\x04](" + b"}" * 2000 + b"e.", "more containers"),
    "a nest as the stream": (snapshot_with(stream=nested(60, True)), "stream: expected a number"),
    "a nest as an action": (snapshot_with(action=nested(60, False)), "action: expected text"),
    "a nest as a file name": (
        snapshot_with(frames=[FRAME | {"filename": nested(60, False)}]),
        "frames: expected file name",
    ),
    "frames that hold themselves": (
        snapshot_with(frames=looped()),
        "an event that is not PyTorch's",
    ),
    "frames to compare that hold themselves": (
        pickle.dumps(
            {
                "device_traces": [
                    [
                        EVENT | {"action": "segment_free", "frames": looped()},
                        EVENT | {"action": "oom", "size": 2**30, "frames": looped()},
                    ]
                ]
            }
        ),
        "an event that is not PyTorch's",
    ),
    "a size beyond any device": (snapshot_with(size=2**62), "larger than any device"),
}


@pytest.mark.parametrize("what", BOMBS)
def test_a_pickle_made_to_take_memory_or_time_is_refused(what):
    content, said = BOMBS[what]
    with pytest.raises((UserError, ValueError), match=said):
        for found in snapshot.open_snapshot(Path("s.pickle"), io.BytesIO(content)):
            replay(found, Setting("torch"))


def framed(inner: bytes, behind: bytes, size: int | None = None) -> bytes:
    return b"\x80\x04\x95" + struct.pack("<Q", size or len(inner)) + inner + behind


SPLIT = b"X" + struct.pack("<I", 10) + b"AAAAA"  # of whose ten bytes the frame has five


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (framed(SPLIT, b"BBBBB" + b"X" + struct.pack("<I", 7) + b"Nr\0\0\0\x0a." + b"."), "across"),
        (framed(b"]" + framed(b"N", b"")[2:], b"a."), "a frame in a frame"),
        (framed(b"N", b".", size=2**63), "ends too early"),
    ],
)
def test_a_pickle_whose_frames_python_would_read_otherwise_is_refused(content, said):
    """39 bytes that are a text for the check and, for Python, a memo of 2.6 GiB."""
    with pytest.raises(UserError, match=f"s.pickle: .*{said}"):
        snapshot_file.load(io.BytesIO(content), "s.pickle")


@pytest.mark.parametrize("length", [10, 70_000, 200_000])
def test_the_frames_that_python_writes_are_read(length):
    texts = [str(number) * length for number in range(3)] + [str(n) * 9 for n in range(20_000)]
    content = pickle.dumps({"device_traces": [], "segments": [], "texts": texts}, 4)
    assert content.count(b"\x95") > 2  # frames
    assert snapshot_file.load(io.BytesIO(content), "s.pickle")["texts"] == texts


SHAPES = {
    "numbers": [*range(10**6, 10**6 + 50_000)],
    "fractions": [number / 7 for number in range(50_000)],
    "texts": [f"text {number}" for number in range(50_000)],
    "wide texts": [f"{number} {'x' * 40}😀" for number in range(10_000)],
    "events": [{f"key {key}": 10**12 + at for key in range(9)} for at in range(5_000)],
    "one key each": [{"a": number} for number in range(20_000)],
    "keys of one": {f"key {number}": None for number in range(50_000)},
    "lists": [[number] for number in range(20_000)],
    "pairs": [(number, number) for number in range(20_000)],
    "nothing": [None] * 200_000,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("protocol", [2, 4])
def test_what_a_pickle_takes_is_counted_before_it_is_read(shape, protocol, monkeypatch):
    """At least as much as Python then takes; what is beyond the limit is not read."""
    content = pickle.dumps(SHAPES[shape], protocol)
    tracemalloc.start()
    found = pickle.loads(content)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == SHAPES[shape]
    monkeypatch.setattr(snapshot_file, "MOST_MEMORY", most - 1)
    with pytest.raises(UserError, match=r"it would take more than \d+ MiB of memory"):
        snapshot_file.load(io.BytesIO(content), "s.pickle")


def test_stacks_that_are_made_of_few_frames_without_end_are_refused(monkeypatch):
    """A few bytes each, and thousands of characters when they are spelled."""
    monkeypatch.setattr(snapshot, "MOST_STACKS", 100_000)
    frames = [{"filename": chr(65 + n) * 400, "line": n, "name": "f"} for n in range(9)]
    events = [
        {"action": "alloc", "addr": 512 * at, "size": 512, "stream": 0}
        | {"frames": [frames[at % 9], frames[at // 9 % 9], frames[at // 81 % 9]]}
        for at in range(729)
    ]
    content = pickle.dumps({"device_traces": [events], "segments": []})
    with pytest.raises(UserError, match="stacks of more than 100,000 characters"):
        snapshot.open_snapshot(Path("s.pickle"), io.BytesIO(content))


def test_a_snapshot_of_more_than_a_gibibyte_is_read_no_further(monkeypatch):
    monkeypatch.setattr(snapshot_file, "MOST_BYTES", 3 * MIB)
    file = io.BytesIO(bytes(64 * MIB))
    with pytest.raises(UserError, match="a snapshot of more than 3 MiB"):
        snapshot_file.load(file, "s.pickle")
    assert file.tell() == 4 * MIB


def test_a_request_beyond_an_expandable_segment_is_out_of_memory():
    made = Trace(streams=["0"])
    made.born(Op.ALLOC, 2**41)
    outcome = replay(made, Setting("torch", "expandable_segments:True"))
    assert (outcome.failed_at, outcome.failed_bytes) == (0, 2**41)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_more_memory_than_there_are_addresses_for_is_one_line(setting):
    """Address after address until the numbers would begin anew, at heaps that are still held."""
    made = Trace(streams=["0"])
    first, second, _ = (made.born(Op.ALLOC, 9 * 2**20) for _ in range(3))
    for turn in range(2**14):
        made.add(Op.FREE, made.born(Op.ALLOC, 2**50 - (0 if turn else 2**25)))
        made.add(Op.CLEAR)
    for id in (first, made.born(Op.ALLOC, 9 * 2**20), second):
        made.add(Op.FREE, id)
        made.add(Op.CLEAR)
    try:
        assert not replay(made, setting).fits  # in an expandable segment there is no such place
    except UserError as error:
        assert str(error) == f"{setting}: takes more than 2^62 bytes, one after another"


def test_many_annotations_that_close_in_the_order_they_were_opened():
    marks = [
        {"stage": stage, "name": f"phase {k}", "time_us": at * 10_000 + k, "device": 0}
        for at, stage in enumerate(("START", "END"))
        for k in range(10_000)
    ]
    found = {"device_traces": [[EVENT | {"time_us": 10_000 + 2}]], "external_annotations": marks}
    (trace,) = snapshot.traces({"segments": []} | found, "s")
    assert trace.phases[trace.phase[0]] == "phase 9999"


def test_a_file_of_events_that_take_no_place_is_refused(tmp_path):
    path = tmp_path / "t.kvtrace"
    count = 2**22
    head = {key: getattr(Trace(), key) for key in trace._HEAD}
    head |= {"events": count, "lengths": [count] * 7}
    path.write_bytes(trace.MAGIC + lzma.compress(json.dumps(head).encode() + b"\n" + bytes(2**20)))
    with pytest.raises(UserError, match="columns of a sensible length"):
        trace.read(path)


def test_a_line_without_an_end_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("op,id,bytes\nalloc," + "a" * 200_000)
    with pytest.raises(UserError, match="a line of more than 100,000 characters"):
        open_traces(path)


def test_a_pipe_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "t.csv")
    with pytest.raises(UserError, match="expected a regular file"):
        open_traces(tmp_path / "t.csv")


def test_a_growth_of_next_to_nothing_is_refused():
    made = attempts_before_a_request()
    for growth in ("1", "1.0000000000000002", "1.0000001", "17"):
        with pytest.raises(UserError, match=r"growth: expected 1\.01 to 16"):
            replay(made, Setting("bucket", f"growth:{growth},smallest:1"))
    assert replay(made, Setting("bucket", "growth:1.01,smallest:1")).fits


def test_a_hundred_thousand_heaps_are_searched_in_order():
    """Each request has a heap of its own: looking at all of them took minutes."""
    made = Trace(streams=["0"])
    ids = [made.born(Op.ALLOC, 2**29) for _ in range(100_000)]
    for id in ids:
        made.add(Op.FREE, id)
    made.born(Op.ALLOC, 2**29)
    outcome = replay(made, Setting("torch-mps"))
    assert (outcome.made, outcome.hits) == (100_000, 1)


@pytest.mark.parametrize("setting", ["", "expandable_segments:True"])
@pytest.mark.parametrize("limit", [None, 2**27])
def test_a_pool_that_is_emptied_again_and_again_is_not_looked_through(setting, limit):
    """A clear costs what it gives back: to look at 75,000 free parts each time took minutes."""
    made = Trace(streams=["0"])
    born = [made.born(Op.ALLOC, 512) for _ in range(150_000)]
    for each in born[::2]:
        made.add(Op.FREE, each)
    if limit:  # then each request that fails begins with the segments that are unused
        setting = f"{setting},garbage_collection_threshold:0.5".strip(",")
    for _ in range(300_000):
        made.add(Op.CLEAR, 0)
        if limit:
            made.add(Op.ATTEMPT, 0, 2**26)
    outcome = replay(made, Setting("torch", setting), limit)
    assert (outcome.made, outcome.returned) == (37, 0)


def test_a_part_of_a_recorded_segment_is_not_given_back_alone():
    """It is large enough for it, and its neighbours would be left beside nothing."""
    made = Trace(streams=["0"])
    made.add(Op.SEGMENT, 0, 100 * MIB)
    held = [made.born(Op.PLACED, MIB)]
    made.add(Op.HOLE, 0, 98 * MIB)
    held.append(made.born(Op.PLACED, MIB))
    made.born(Op.ALLOC, 120 * MIB)
    for each in held:
        made.add(Op.FREE, each)
    made.add(Op.CLEAR)
    outcome = replay(made, Setting("torch", "max_split_size_mb:64"), 150 * MIB)
    assert not outcome.fits and outcome.retries == 1
    assert replay(made, Setting("torch", "max_split_size_mb:64")).returned == 1


def said_by(program: str) -> str:
    """What a program of Python prints in a process of its own, which gets a signal."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


def test_an_interrupt_ends_a_replay_whose_events_take_long():
    """Each request looks at 40,000 holes between pages, which takes part of a millisecond."""
    program = (
        "import os, signal, threading, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from kvpeak.pools.replay import Setting, replay_all\n"
        "from kvpeak.pools.trace import Op, Trace\n"
        "made = Trace(streams=['0'])\n"
        "setting = Setting('torch', 'expandable_segments:True')\n"
        "born = [made.born(Op.ALLOC, 20 * 2**20) for _ in range(80_000)]\n"
        "for each in born[::2]: made.add(Op.FREE, each)\n"
        "replay_all(made, [setting])\n"  # compiled
        "for _ in range(100_000):\n"
        "    made.add(Op.CLEAR, 0)\n"
        "    made.add(Op.FREE, made.born(Op.ALLOC, 40 * 2**20))\n"
        "def stop():\n"
        "    global at\n"
        "    at = time.monotonic()\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Timer(1, stop).start()\n"
        "try:\n"
        "    replay_all(made, [setting])\n"
        "except KeyboardInterrupt:\n"
        "    print(time.monotonic() - at)\n"
    )
    assert float(said_by(program)) < 2  # 10,000 events later it were 8 s


def test_an_interrupt_ends_a_replay():
    """A replay that takes seconds is told to end: what the other threads do is not waited for."""
    program = (
        "import os, signal, threading\n"
        # a job in the background has none
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from kvpeak.pools.replay import Setting, replay_all\n"
        "from kvpeak.pools.trace import Op, Trace\n"
        "made = Trace(streams=['0'])\n"
        "for _ in range(200_000):\n"
        "    made.add(Op.FREE, made.born(Op.ALLOC, 1000))\n"
        "def tried():\n"
        "    for number in range(10**5):\n"
        "        if number == 20: os.kill(os.getpid(), signal.SIGINT)\n"
        "        yield Setting('none')\n"
        "try:\n"
        "    replay_all(made, tried())\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', sum(t is not threading.main_thread() for t in "
        "threading.enumerate()))\n"
    )
    assert said_by(program) == "interrupted 0\n"


HIDDEN = "\x1b[2J\u202e\0\ud800"
SHOWN = "\\x1b[2J\\u202e\\x00\\ud800"


def saved(folder: Path, **columns) -> Path:
    """A trace's file, as anybody can write one."""
    made = attempts_before_a_request()
    for key, value in columns.items():
        setattr(made, key, value)
    trace.write(made, folder / "t.kvtrace")
    return folder / "t.kvtrace"


def test_what_cannot_be_seen_in_a_trace_is_spelled(tmp_path):
    texts = {"notes": [HIDDEN], "phases": [HIDDEN], "stacks": [f"a\n{HIDDEN}"], "source": HIDDEN}
    (read,) = open_traces(saved(tmp_path, **texts))
    assert (read.notes, read.phases, read.source) == ([SHOWN], [SHOWN], SHOWN)
    assert read.stacks == [f"a\n{SHOWN}"]


def test_what_cannot_be_seen_in_a_snapshot_or_a_table_is_spelled(tmp_path):
    frame = {"filename": "a" * 10**6 + HIDDEN, "line": 1, "name": HIDDEN}
    mark = {"stage": "START", "name": HIDDEN, "time_us": 0}
    content = pickle.dumps(
        {
            "device_traces": [[EVENT | {"frames": [frame]}]],
            "external_annotations": [mark],
        }
    )
    (read,) = snapshot.open_snapshot(Path("s"), io.BytesIO(content))
    assert read.stacks[1] == f"{'a' * 300}:1 {SHOWN}"
    assert read.phases[1] == SHOWN
    (tmp_path / "t.csv").write_text("op,id,bytes,phase\nalloc,a,1,\x1b[2J\n")
    (read,) = open_traces(tmp_path / "t.csv")
    assert read.phases == ["", "\\x1b[2J"]


@pytest.mark.parametrize(
    "setting",
    [
        "torch\0\x1b[2J",
        "torch,expandable_segments:True\0<b>",
        "torch\ud800",
        "torch,cap:٣",
        "torch,b",
    ],
)
def test_a_setting_that_is_another_text_is_refused(tmp_path, setting):
    with pytest.raises(UserError, match="expected a policy and what it is set to"):
        settings_of(open_traces(saved(tmp_path, setting=setting))[0])


def test_a_number_beyond_all_memory_is_refused(tmp_path):
    with pytest.raises(UserError, match="expected numbers from 0 to"):
        open_traces(saved(tmp_path, memory=10**400))


def test_a_header_larger_than_any_is_refused(tmp_path):
    path = tmp_path / "t.kvtrace"
    path.write_bytes(trace.MAGIC + lzma.compress(b'{"name":[' + b"[]," * 2**22, preset=0))
    with pytest.raises(UserError, match="a header of more than 4 MiB"):
        trace.read(path)


def test_a_long_header_leaves_no_place_for_more_events(tmp_path):
    count = 2**22
    head = {key: getattr(Trace(), key) for key in trace._HEAD}
    head |= {"events": count, "lengths": [count] * 7, "notes": [os.urandom(2**17).hex()]}
    path = tmp_path / "t.kvtrace"
    path.write_bytes(trace.MAGIC + lzma.compress(json.dumps(head).encode() + b"\n" + bytes(2**20)))
    with pytest.raises(UserError, match="columns of a sensible length"):
        trace.read(path)


def test_as_many_events_as_may_be_are_read_within_a_gibibyte(tmp_path):
    """What each takes, all together; one more is refused, however large the file is."""
    made, count = Trace(), 2**18
    for number in range(count // 2):
        made.add(Op.FREE, made.born(Op.ALLOC, 2**40 + number, time=2 * number), time=2 * number + 1)
    trace.write(made, tmp_path / "t.kvtrace")
    tracemalloc.start()
    try:
        assert trace.read(tmp_path / "t.kvtrace") == made
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / count * trace.MOST_EVENTS < 2**30
    head = {key: getattr(Trace(), key) for key in trace._HEAD}
    head |= {"events": trace.MOST_EVENTS + 1, "lengths": [trace.MOST_EVENTS + 1] * 7}
    body = json.dumps(head).encode() + b"\n" + os.urandom(2**19)
    (tmp_path / "t.kvtrace").write_bytes(trace.MAGIC + lzma.compress(body, preset=0))
    with pytest.raises(UserError, match="columns of a sensible length"):
        trace.read(tmp_path / "t.kvtrace")


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_parts_without_end_that_hold_nothing_are_not_walked(tmp_path, pack):
    path = tmp_path / "t.csv.packed"
    path.write_bytes(pack(b"op,id,bytes\n") + pack(b"") * 500_000)
    with pytest.raises(UserError, match="unpacks to next to nothing"):
        open_traces(path)
    path.write_bytes(pack(b"op,id,bytes\n") + pack(b"alloc,a,512\nfree,a,0\n") * 1000)
    assert len(open_traces(path)[0]) == 2000


SHARED = [EVENT] * 1000
TOO_MANY = {
    "one history for many devices": ({"device_traces": [SHARED] * 65}, "at most 64 devices"),
    "one list of blocks in many segments": (
        {
            "device_traces": [SHARED],
            "segments": [{"blocks": [{"size": 1}] * 10_000}] * 10_000,
        },
        "blocks: expected at most 16,777,216 entries",
    ),
    "segments that overlap": (
        {
            "device_traces": [[EVENT | {"action": "free_completed", "addr": 2**40}]],
            "segments": [
                {"address": at, "total_size": 4096, "stream": 0, "blocks": []}
                for at in (0, 512, 1024)
            ],
        },
        "segments that overlap",
    ),
}


@pytest.mark.parametrize("what", TOO_MANY)
def test_a_snapshot_that_says_one_thing_many_times_is_refused(what):
    content, said = TOO_MANY[what]
    with pytest.raises(UserError, match=said):
        snapshot.open_snapshot(Path("s"), io.BytesIO(pickle.dumps(content)))


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress])
@pytest.mark.parametrize("start", [b"\x80\x04", b"op,id,bytes\n"])
def test_a_file_that_unpacks_to_one_byte_again_and_again_is_refused(
    tmp_path, monkeypatch, pack, start
):
    monkeypatch.setattr(untrusted, "UNPACKED", 2**20)  # else it takes long to make
    path = tmp_path / "t"
    path.write_bytes(pack(start + b"\n" * 2**23))
    with pytest.raises(UserError, match="unpacks to more than 256 times its size"):
        open_traces(path)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for a file with a hole")
@pytest.mark.parametrize("start", [trace.MAGIC, b"\x80\x04", b"\x1f\x8b", b"op,id,bytes\n"])
def test_a_file_with_a_hole_is_refused(tmp_path, start):
    """Its size, which nothing on the disk pays for, would allow whatever it unpacks to."""
    path = tmp_path / "t"
    path.write_bytes(start)
    os.truncate(path, 2**40)
    with pytest.raises(UserError, match="t: has holes"):
        open_traces(path)


def test_a_header_is_limited_however_large_its_file_is(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "MOST_HEADER", 2**20)
    path = tmp_path / "t.kvtrace"
    path.write_bytes(trace.MAGIC + lzma.compress(b"[" + b"[]," * 2**19) + os.urandom(2**20))
    with pytest.raises(UserError, match="a header of more than 1 MiB"):
        trace.read(path)


def test_a_log_of_more_buffers_than_any_model_has_is_refused(tmp_path):
    path = tmp_path / "log.csv"
    for rows, said in (
        ("0,10000,0\n" * 200, "1,000,000 buffers"),
        (f"0,{'9' * 5000},\n", "10,000"),
    ):
        path.write_text("layer,new_512mib,held_512mib_at_softmax\n" + rows)
        with pytest.raises(UserError, match=f"at most {said}"):
            open_traces(path)
