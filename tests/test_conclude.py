"""How a process that has ended is judged: an outcome, or one line that says why there is none."""

import json
import os
import signal

import pytest

from kvpeak.base.errors import UserError
from kvpeak.protocol.events import Conversation
from kvpeak.runner.outcome import METAL_OUT_OF_MEMORY, Ended, conclude
from kvpeak.runner.watched import Watched
from kvpeak.system.process_memory import Peaks

DONE = {"event": "done", "peak_active_mib": 1, "peak_pool_mib": 1, "peak_rss_mib": None}
METAL = b"[METAL] Insufficient Memory (" + METAL_OUT_OF_MEMORY + b")"


@pytest.fixture
def concluded(tmp_path):
    """A function that judges a process by its exit code, its messages and what was seen of it."""

    def concluded(code=0, said=b"", stopped=None, killed=False, phases=(), events=()):
        conversation = Conversation(0, 1)
        for event in events:
            list(conversation.feed(json.dumps(event).encode() + b"\n", 0.0))
        seen = [{"phase": "start"}, {"phase": "load"}, *phases, {"phase": "prefill-0"}]
        watched = Watched(conversation, phases=seen, stopped=stopped)
        (tmp_path / "stderr.txt").write_bytes(said)
        peaks = Peaks(None, None, None)
        ended = Ended(watched, 1, code, killed, peaks, elapsed_s=1, wall_s=1, cpu_s=1)
        return conclude(ended, tmp_path / "stderr.txt")

    return concluded


def refused(concluded, **given) -> str:
    with pytest.raises(UserError) as error:
        concluded(**given)
    return str(error.value)


UNSUPPORTED = {"event": "outcome", "outcome": "unsupported", "detail": "no such cache"}


def test_an_engine_that_ended_by_itself_is_what_it_said(concluded):
    assert concluded(events=[UNSUPPORTED]) == ("unsupported", "no such cache")


def test_without_a_last_word_it_is_garbled(concluded):
    assert refused(concluded) == (
        "garbled answer in phase prefill-0: exited without done or outcome"
    )


@pytest.mark.parametrize("why", ["guard", "timeout"])
@pytest.mark.parametrize("code", [0, 1, -signal.SIGKILL])
def test_why_it_was_stopped_counts_more_than_how_it_ended(concluded, why, code):
    found = concluded(code, stopped=(why, "that was enough"), killed=True, events=[UNSUPPORTED])
    assert found == (why, "in phase prefill-0: that was enough")


def test_garbage_is_no_outcome(concluded):
    assert refused(concluded, stopped=("garbled", "no JSON"), killed=True) == (
        "garbled answer in phase prefill-0: no JSON"
    )


def test_the_kernel_s_kill_for_memory_is_one(concluded):
    assert concluded(-signal.SIGKILL, killed=True) == (
        "oom",
        "in phase prefill-0: killed by the kernel, which was out of memory",
    )


def test_metal_s_abort_for_memory_is_one_and_no_other_abort_or_exit_is(concluded):
    said = b"first\n" + METAL + b"\nAbort trap: 6\n"
    assert concluded(-signal.SIGABRT, said) == ("oom", f"in phase prefill-0: {METAL.decode()}")
    for code in (-signal.SIGSEGV, -signal.SIGTERM, -signal.SIGILL, 1, 6):
        assert refused(concluded, code=code, said=said).endswith(": Abort trap: 6")
    assert refused(concluded, code=-signal.SIGABRT, said=b"assert failed\n") == (
        "engine crashed in phase prefill-0: killed by SIGABRT: assert failed"
    )
    assert concluded(0, said, events=[UNSUPPORTED])[0] == "unsupported"


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (1, "exit code 1"),
        (255, "exit code 255"),
        (-1, "killed by SIGHUP"),
        (-9, "killed by SIGKILL"),
        (-11, "killed by SIGSEGV"),
        (-99, "killed by signal 99"),
    ],
)
def test_how_it_crashed(concluded, code, how):
    assert refused(concluded, code=code) == f"engine crashed in phase prefill-0: {how}"
    assert refused(concluded, code=code, said=b"why\n") == (
        f"engine crashed in phase prefill-0: {how}: why"
    )


@pytest.mark.parametrize("instead", ["pipe", "device", "nothing"])
def test_a_log_that_the_engine_replaced_is_not_waited_for(tmp_path, instead):
    messages = tmp_path / "stderr.txt"
    if instead == "pipe":
        os.mkfifo(messages)
    elif instead == "device":
        messages.symlink_to("/dev/zero")
    watched = Watched(Conversation(0, 1), phases=[{"phase": "start"}])
    with pytest.raises(UserError, match=r"in phase start: exit code 2$"):
        conclude(Ended(watched, 1, 2, False, Peaks(None, None, None), 1, 1, 1), messages)


def test_a_turn_is_named(concluded, tmp_path):
    conversation = Conversation(0, 1)
    watched = Watched(conversation, phases=[{"phase": "start"}, {"phase": "decode-0", "turn": 3}])
    (tmp_path / "e.txt").write_bytes(b"")
    peaks = Peaks(None, None, None)
    with pytest.raises(UserError, match=r"in phase decode-0, turn 3: exit code 2$"):
        conclude(Ended(watched, 1, 2, False, peaks, 1, 1, 1), tmp_path / "e.txt")


@pytest.mark.parametrize(
    ("said", "last"),
    [
        (b"one\ntwo\n\n  \n", "two"),
        (b"one", "one"),
        (b"  spaced \r\n", "spaced"),
        (b"x" * 5000 + b"\nlast\n", "last"),
        (b"\n" * 6000, None),
    ],
)
def test_the_last_line_that_says_something_is_the_cause(concluded, said, last):
    cause = f": {last}" if last else ""
    assert refused(concluded, code=1, said=said) == (
        f"engine crashed in phase prefill-0: exit code 1{cause}"
    )


def test_a_long_line_is_cut_at_300_characters_and_a_long_log_read_from_its_end(concluded):
    head = "engine crashed in phase prefill-0: exit code 1: "
    assert refused(concluded, code=1, said=b"x" * 300) == head + "x" * 300
    assert refused(concluded, code=1, said=b"x" * 301) == head + "x" * 300 + "…"
    for blank, expected in ((4095, head + "e"), (4096, head[:-2])):  # what the last 4 KiB hold
        said = b"first line" + b"\n" * 200 + b"lin" + b"e" + b"\n" * blank
        assert refused(concluded, code=1, said=said) == expected
