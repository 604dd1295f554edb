"""The event parser: what it takes, what it refuses, and that nothing else ever comes out of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpeak.protocol.events import (
    EVENTS,
    MAX_LINE,
    BadAnswer,
    Conversation,
    Lines,
    excerpt,
    parse_event,
)

RUN = {
    "event": "run",
    "run": 0,
    "warmup": True,
    "prompt_tokens": 5,
    "generated_tokens": 4,
    "prefill_s": 0.5,
    "ttft_s": 0.6,
    "decode_s": 1,
    "tokens_sha256": "0" * 64,
    "peak_active_mib": 1.5,
    "peak_pool_mib": 2.0,
}
SAMPLES = [
    {"event": "started", "versions": {}, "device": {}, "cap_bytes": 4096},
    {"event": "loaded", "load_s": 1.0, "loaded_mib": 2, "weights_mapped": True, "dtype": "float32"},
    {"event": "run_started", "run": 0, "warmup": True},
    {"event": "turn_started", "run": 0, "turn": 1},
    {"event": "prefilled", "run": 0},
    RUN,
    {"event": "outcome", "outcome": "oom", "detail": "x"},
    {"event": "done", "peak_active_mib": 1.0, "peak_pool_mib": 1.0, "peak_rss_mib": 3.0},
]


def line(event: dict) -> bytes:
    return json.dumps(event).encode()


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: event["event"])
def test_an_event_comes_out_as_it_went_in_with_its_extra_keys(event):
    more = event | {"bandwidth": [1, 2.5], "note": "é"}
    assert parse_event(line(more)) == more


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: event["event"])
def test_every_key_of_the_table_is_needed(event):
    for key in EVENTS[event["event"]]:
        with pytest.raises(BadAnswer, match=f"without {key}; expected "):
            parse_event(line({name: value for name, value in event.items() if name != key}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run", True),
        ("run", 1.0),
        ("run", -1),
        ("run", "0"),
        ("run", None),
        ("run", 1 << 63),
        ("warmup", 0),
        ("warmup", None),
        ("prompt_tokens", None),
        ("prompt_tokens", 0),
        ("generated_tokens", 10**9),
        ("prefill_s", "0.5"),
        ("prefill_s", -0.1),
        ("prefill_s", True),
        ("prefill_s", [1]),
        ("peak_pool_mib", 1e300),
        ("tokens_sha256", "AB" * 32),
        ("tokens_sha256", "0" * 63),
        ("tokens_sha256", 0),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_what_was_expected(key, value):
    with pytest.raises(BadAnswer, match=f"event run: {key} is .*; expected "):
        parse_event(line(RUN | {key: value}))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x00",
        b"null",
        b"[]",
        b"{}",
        b'"run"',
        b'{"event": ["run"]}',
        b'{"event": "toString"}',
        b"{'event': 'run'}",
        b'{"event": "prefilled", "run": 0} extra',
        b'{"event": "prefilled", "run": 0',
        b'{"event": "prefilled", "run": 0, "x": NaN}',
        b'{"event": "prefilled", "run": 0, "x": -Infinity}',
        b'{"event": "prefilled", "run": 0, "x": 1e999}',
        b"[" * 100_000,
        b"9" * 10_000,
        b"\xef\xbb\xbf{}",
        '{"event": "prefilled", "run": 0}'.encode("utf-16"),
        b"\xff\xfe\xfa",
    ],
)
def test_what_is_no_event_is_refused(text):
    with pytest.raises(BadAnswer):
        parse_event(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.binary(max_size=300) | json_values.map(json.dumps).map(str.encode))
def test_any_bytes_are_an_event_or_a_bad_answer(data):
    try:
        event = parse_event(data)
    except BadAnswer as error:
        assert str(error).isprintable()
    else:
        assert event["event"] in EVENTS


@given(st.sampled_from(SAMPLES), st.dictionaries(st.sampled_from([*RUN, "cap_bytes"]), json_values))
def test_an_accepted_event_is_finite_json_whatever_its_values(event, changes):
    try:
        accepted = parse_event(line(event | changes))
    except BadAnswer as error:
        assert str(error).isprintable()
    else:
        json.dumps(accepted, allow_nan=False)


@given(st.lists(st.binary(max_size=20)))
def test_lines_do_not_depend_on_how_the_stream_was_cut(chunks):
    lines = Lines()
    found = [text for chunk in chunks for text in lines.feed(chunk)]
    *whole, rest = b"".join(chunks).split(b"\n")
    assert found == whole
    if rest:
        with pytest.raises(BadAnswer, match="truncated"):
            lines.end()
    else:
        lines.end()


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_is_at_most_one_mebibyte(end):
    lines = Lines()
    lines.feed(b"x" * MAX_LINE)
    with pytest.raises(BadAnswer, match="more than"):
        lines.feed(b"x" + end)


def conversation(*names: str, warmup: int = 1, recorded: int = 1) -> Conversation:
    """After the sample events of those names; a run's events get the number of the run."""
    talk = Conversation(warmup, recorded)
    for name in names:
        sample = next(event for event in SAMPLES if event["event"] == name)
        number = len(talk.runs)
        run = {"run": number, "warmup": number < warmup, "turn": (talk.turn or 0) + 1}
        talk.accept(sample | {key: run[key] for key in run if key in sample})
    return talk


ONE_RUN = ("run_started", "prefilled", "run")


def test_phases_follow_the_events():
    names = ("started", "loaded", *ONE_RUN, *ONE_RUN, "done")
    phases = [conversation(*names[:count]).phase for count in range(len(names) + 1)]
    assert phases == [
        "start",
        "load",
        "idle",
        "prefill-0",
        "decode-0",
        "idle",
        "prefill-1",
        "decode-1",
        "idle",
        "exit",
    ]


def test_an_outcome_may_come_at_any_time_but_only_once():
    names = ("started", "loaded", *ONE_RUN)
    for count in range(len(names) + 1):
        assert conversation(*names[:count], "outcome").complete
    with pytest.raises(BadAnswer, match="event outcome where nothing was expected"):
        conversation("outcome", "outcome")


@given(st.lists(st.sampled_from(list(EVENTS)), max_size=12))
def test_only_one_order_of_events_is_complete(names):
    try:
        talk = conversation(*names)
    except BadAnswer:
        return
    full = ["started", "loaded", *ONE_RUN, *ONE_RUN, "done"]
    ended_early = names[-1:] == ["outcome"]
    plain = [name for name in names if name != "turn_started"]
    if plain == names:
        assert names[: len(names) - ended_early] == full[: len(names) - ended_early]
    assert talk.complete == (ended_early or names[-1:] == ["done"])


def test_a_run_of_turns_has_a_prefill_and_a_decode_for_each():
    turn = ("turn_started", "prefilled")
    names = ("started", "loaded", "run_started", *turn, *turn, "run")
    talks = [conversation(*names[:count]) for count in range(3, len(names) + 1)]
    assert [(talk.phase, talk.turn) for talk in talks] == [
        ("prefill-0", None),
        ("prefill-0", 1),
        ("decode-0", 1),
        ("prefill-0", 2),
        ("decode-0", 2),
        ("idle", None),
    ]
    with pytest.raises(BadAnswer, match="event turn_started of turn 4 after turn 1"):
        conversation(*names[:5]).accept({"event": "turn_started", "run": 0, "turn": 4})
    with pytest.raises(BadAnswer, match="event run where prefilled was expected"):
        conversation(*names[:4], "run")


@pytest.mark.parametrize("recorded", [1, 3])
def test_warm_up_runs_are_the_first_ones(recorded):
    talk = conversation("started", "loaded", *ONE_RUN, warmup=1, recorded=recorded)
    with pytest.raises(BadAnswer, match="event run_started of run 1: warmup is True"):
        talk.accept({"event": "run_started", "run": 1, "warmup": True})


@given(st.binary())
def test_an_excerpt_is_short_printable_text(data):
    assert excerpt(data).isprintable()
    assert len(excerpt(data)) <= 81
