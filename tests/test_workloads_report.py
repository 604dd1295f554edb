"""The finding of workloads: what is held after each turn, and what batches cost."""

from kvpeak.analysis.results import Results
from kvpeak.report.workloads import workloads_figure, workloads_section

SESSION = ("mlx", "tiny", "session", "mlx-lm", "default", "stock")
REQUESTS = ("mlx", "tiny", "requests", "cat", "none", "laboratory")
BATCH = ("mlx", "tiny", "batch-2", "mlx-lm", "default", "stock")


def turn(number: int, held: float, tokens: int = 65) -> dict:
    return {
        "turn": number,
        "sequence": None,
        "warmup": False,
        "prompt_tokens": tokens,
        "held_pool_mib": held,
        "peak_pool_mib": held + 1,
        "first_difference": None,
    }


def sequence(number: int, difference: int | None) -> dict:
    return turn(0, 5.0) | {"turn": None, "sequence": number, "first_difference": difference}


def results(difference: int | None = None, grows: float = 0.0) -> Results:
    turns = {
        SESSION: [turn(n, 300 + n, 129 if n == 1 else 32) for n in range(1, 6)],
        REQUESTS: [turn(n, 400 + n * grows) for n in range(1, 201)],
        BATCH: [sequence(1, None), sequence(2, difference)],
    }
    ok = {"outcome": "ok", "decode_tok_s": 100.0, "peak_active_mib": 30.0, "loaded_mib": 10.0}
    return Results(dict.fromkeys(turns, ""), dict.fromkeys(turns, ok), {}, turns=turns)


def test_requests_that_hold_no_more_are_said_to_stand_still():
    (said,) = workloads_section(results())["sentences"]
    assert said.startswith(
        "requests, cat, none, laboratory: what is held stands still, slope 0.00 KiB"
    )


def test_requests_that_hold_more_each_time_are_said_to_grow():
    (said,) = workloads_section(results(grows=0.0625))["sentences"]
    assert "what is held grows, slope 64.00 KiB a request" in said


def test_a_session_grows_with_its_text_and_is_called_no_leak():
    section = workloads_section(results())
    assert "301.0 | 305.0 | 306.0" in section["turns"]
    assert not any("session" in line for line in section["sentences"])


def test_a_batch_has_its_speed_for_all_and_for_each():
    section = workloads_section(results())
    assert "| 2 | 100.0 | 50.0 | 30.0 | 10.00 |" in section["batches"]
    assert section["different"] == []
    assert workloads_section(results(difference=6))["different"] == [
        "batch-2: sequence 2, from its token 7 on"
    ]


def test_the_figure_has_a_line_for_each_cell_with_turns():
    figure = workloads_figure(results())
    assert "300" not in figure.alt.split("session")[0]
    assert "301 MiB after the first, 305 after the last of 5" in figure.alt
    assert figure.svg.startswith("<?xml")


def test_plain_cells_have_no_such_section():
    plain = Results({}, {}, {})
    assert workloads_section(plain) is None
    assert workloads_figure(plain) is None
