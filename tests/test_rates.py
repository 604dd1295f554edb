"""Speeds from counts and durations."""

import pytest

from kvpeak.runner.speeds import decode_tok_s, prefill_tok_s


@pytest.mark.parametrize(
    ("tokens", "seconds", "rate"),
    [
        (4097, 2.0, 2048.5),
        (4097, None, None),
        (None, 2.0, None),
        (0, 2.0, None),
        (4097, 0.0, None),
        (9, 5e-324, None),
    ],
)
def test_prefill_is_prompt_tokens_per_second(tokens, seconds, rate):
    assert prefill_tok_s({"prompt_tokens": tokens, "prefill_s": seconds}) == rate


@pytest.mark.parametrize(
    ("tokens", "seconds", "rate"),
    [(128, 2.0, 63.5), (1, 2.0, None), (0, 2.0, None), (None, 2.0, None), (128, None, None)],
)
def test_decode_counts_the_intervals_between_tokens(tokens, seconds, rate):
    assert decode_tok_s({"generated_tokens": tokens, "decode_s": seconds}) == rate
