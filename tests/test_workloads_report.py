"""The finding of workloads: what is held after each turn, and what batches cost."""

from kvpeak.analysis.results import Results
from kvpeak.report.workloads import spell_lengths, workloads_figure, workloads_section

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
    kinds = {SESSION: "turns 5", REQUESTS: "repeat 200", BATCH: "batch 2"}
    summary = {cell: ok | {"workload": kind} for cell, kind in kinds.items()}
    return Results(dict.fromkeys(turns, ""), summary, {}, turns=turns)


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
    assert "allocator | 301.0 | 305.0 | 306.0" in section["turns"]
    assert not any("session" in line for line in section["sentences"])


def test_a_session_of_equal_turns_is_called_no_leak_either():
    grown = {SESSION: [turn(n, 300.0 + n) for n in range(1, 65)]}
    found = Results({}, {SESSION: {"outcome": "ok", "workload": "turns 64"}}, {}, turns=grown)
    assert workloads_section(found)["sentences"] == []


def test_an_engine_without_an_allocator_is_shown_by_its_process():
    cell = ("mistralrs", *SESSION[1:3], "own", "default", "stock")
    unknown = {"held_pool_mib": None, "peak_pool_mib": None}
    rows = [turn(n, 0) | unknown | {"held_rss_mib": 300.0 + 11 * n} for n in range(1, 65)]
    summary = {cell: {"outcome": "ok", "workload": "repeat 64"}}
    found = Results({cell: ""}, summary, {}, turns={cell: rows})
    section = workloads_section(found)
    assert "| 64 | process | 311.0 | 1,004.0 | – |" in section["turns"]
    assert "what is held grows, slope 11,264.00 KiB a request" in section["sentences"][0]
    assert "(the process): 311 MiB after the first" in workloads_figure(found).alt


def test_a_batch_has_its_speed_for_all_and_for_each():
    section = workloads_section(results())
    assert "| 2 | 65 | 100.0 | 50.0 | 30.0 | 10.00 |" in section["batches"]
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


def request(number: int, reused: int, **more) -> dict:
    """A row of one of the four requests of a shared prefix."""
    return (
        turn(number, 50.0, 1025 - reused)
        | {"reused_tokens": reused, "ttft_ms": 1025.0 - reused, "prefill_tok_s": None}
        | {"peak_active_mib": 40.0, "cache_mib": 6.0 if reused else None}
        | {"cache_file_mib": None, "cache_load_ms": None, "cache_load_peak_mib": None}
        | more
    )


def shared(difference: int | None, **more) -> Results:
    loaded = {"cache_file_mib": 7.5, "cache_load_ms": 3.25, "cache_load_peak_mib": 26.0}
    rows = [request(1, 0), request(2, 512), request(3, 512, **loaded), request(4, 0)]
    rows[2]["first_difference"] = difference
    cell = (*SESSION[:2], "shared-512", *SESSION[3:])
    return Results({cell: ""}, {cell: {"outcome": "ok"} | more}, {}, turns={cell: rows})


def test_a_shared_prefix_says_what_it_saves_and_costs():
    section = workloads_section(shared(None))
    assert section["turns"] == "" and section["batches"] == ""
    assert "| the second, cache kept | 513 | 512 | 513.0 | 40.0 | 51.0 |" in section["reused"]
    (said,) = section["reuse_sentences"]
    assert said == (
        "shared-512, mlx-lm, default, stock: with the cache of 512 tokens the second prompt's "
        "first token takes 513.0 ms instead of 1,025.0. Keeping the cache holds 6.0 MiB. Saved, it "
        "is a file of 7.5 MiB. Loading that takes 3.2 ms, and at most 26.0 MiB are live meanwhile. "
        "The answers are those of the prompt alone."
    )
    assert workloads_figure(shared(None)) is None


def test_an_answer_on_a_loaded_cache_that_differs_is_named():
    (said,) = workloads_section(shared(7))["reuse_sentences"]
    assert said.endswith("On the loaded cache the answer differs from its token 8 on.")


def test_what_a_trimmed_cache_holds_beyond_its_tokens_is_shown():
    (said,) = workloads_section(shared(None, kv_bytes_per_token=8192))["reuse_sentences"]
    assert "holds 6.0 MiB, of which the tokens themselves take 4.0. Saved" in said


def test_a_batch_of_given_lengths_names_them():
    assert spell_lengths([129] * 8) == "129"
    assert spell_lengths([1025, 257, 129]) == "1,025, 257, 129"
    assert spell_lengths(list(range(9, 0, -1))) == "1 to 9"
