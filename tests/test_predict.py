"""`kvpeak predict` as its users call it."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import warm

ROOT = Path(__file__).parents[1]
KVPEAK = Path(sys.executable).with_name("kvpeak")
GOOD = {
    "--model": "qwen2.5-0.5b-instruct",
    "--prompt-tokens": "513",
    "--kv-cache": "cat",
    "--slack": "none",
}


def run(*flags: str, **options: str) -> subprocess.CompletedProcess:
    given = GOOD | {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    arguments = [part for pair in given.items() for part in pair]
    return warm.run([KVPEAK, "predict", *arguments, *flags])


def test_json_says_the_peak_its_parts_and_who_holds_what():
    found = json.loads(run("--json", decode="8").stdout)
    parts = ("pool_peak_mib", "weights_mib", "host_mask_mib", "process_mib")
    assert found["peak_mib"] == pytest.approx(sum(found[part] for part in parts))
    assert found["weights_mib"] == pytest.approx(942.3, abs=0.05)
    assert [layer["layer"] for layer in found["layers"]] == list(range(24))
    assert set(found["layers"][0]) == {"layer", "new", "held"}
    assert set(found["captures"][0]) == {"role", "layer", "requested_bytes", "buffer_bytes"}
    assert set(found["buffers"][0]) == {"heap", "bytes", "held", "free"}


def test_a_person_gets_the_peak_in_words():
    done = run(decode="8")
    assert done.stdout.startswith("predicted peak 1,3")
    assert done.returncode == 0


def test_a_sweep_writes_every_combination(tmp_path):
    out = tmp_path / "sweep.csv"
    done = run(
        "--sweep",
        str(out),
        prompt_tokens="65,129",
        kv_cache="cat,prealloc",
        slack="none,0",
        decode="4",
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = list(csv.DictReader(out.open(newline="")))
    assert len(rows) == 8
    single = json.loads(run("--json", prompt_tokens="129", slack="0", decode="4").stdout)
    (same,) = [
        row
        for row in rows
        if (row["prompt_tokens"], row["kv_cache"], row["slack"]) == ("129", "cat", "0")
    ]
    assert float(same["peak_mib"]) == pytest.approx(single["peak_mib"], abs=0.001)


def test_shapes_come_from_a_file_too(tmp_path):
    shapes = tmp_path / "mine.json"
    shapes.write_text((ROOT / "config/models/qwen2.5-0.5b-instruct.json").read_text())
    assert run("--json", model=str(shapes), decode="4").returncode == 0


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("prompt_tokens", "0", "--prompt-tokens: '0': expected a positive integer"),
        ("prompt_tokens", "-5", "--prompt-tokens: '-5': expected a positive integer"),
        ("prompt_tokens", "4.5", "--prompt-tokens: '4.5': expected a positive integer"),
        (
            "prompt_tokens",
            "40000",
            "--prompt-tokens: 40000 and 128 decoded: expected at most 32768",
        ),
        ("prefill_chunk", "0", "--prefill-chunk: '0': expected a positive integer"),
        ("decode", "none", "--decode: 'none': expected a positive integer"),
        ("runs", "0", "--runs: '0': expected a positive integer"),
        ("kv_cache", "ring", "--kv-cache: 'ring': expected one of cat, cat-contiguous, prealloc"),
        ("attention", "flash", "--attention: 'flash': expected one of naive, fused"),
        ("wait", "all", "--wait: 'all': expected one of none, op"),
        ("slack", "4", "--slack: '4': expected one of none, 0, 1, 2, 3"),
        ("model", "gpt", "--model: 'gpt': expected the path of a .json file or one of "),
        ("model", "no.json", "no.json: cannot be read: No such file or directory"),
        ("slack", "0,1", "a comma list needs --sweep CSV"),
    ],
)
def test_a_mistake_is_one_line(option, value, expected):
    arguments = {option: value} if not value.startswith("-") else {}
    flags = [] if arguments else [f"--{option.replace('_', '-')}={value}"]
    done = run(*flags, **arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"kvpeak predict: {expected}")
    assert done.stderr.count("\n") == 1


def test_heads_that_kv_heads_do_not_divide_are_one_line(tmp_path):
    config = json.loads((ROOT / "config/models/qwen2.5-0.5b-instruct.json").read_text())
    shapes = tmp_path / "odd.json"
    shapes.write_text(json.dumps(config | {"num_key_value_heads": 3}))
    done = run(model=str(shapes))
    assert done.returncode == 1
    assert done.stderr == (
        f"kvpeak predict: {shapes}: num_key_value_heads: 3: "
        "expected a divisor of num_attention_heads (14)\n"
    )


def longest(*sizes: str, **options: str) -> subprocess.CompletedProcess:
    given = {"--model": "qwen2.5-0.5b-instruct", "--kv-cache": "cat", "--slack": "none"}
    given |= {f"--{name}": value for name, value in options.items()}
    arguments = [part for pair in given.items() for part in pair]
    return warm.run([KVPEAK, "predict", *arguments, "--longest", *sizes])


def test_the_longest_prompt_fits_and_one_token_more_does_not():
    (found,) = json.loads(longest("8GiB", "--json").stdout)
    assert found["peak_mib"] <= 8192
    assert found["low"] <= found["tokens"] <= found["high"]
    for tokens, fits in ((found["tokens"], True), (found["tokens"] + 1, False)):
        peak = json.loads(run("--json", prompt_tokens=str(tokens)).stdout)["peak_mib"]
        assert (peak <= 8192) == fits


def test_the_longest_prompt_in_words():
    lines = longest("1GiB,16GiB,1000GiB").stdout.splitlines()
    assert lines[0] == "1 GiB: no prompt fits"
    assert lines[1].startswith("16 GiB: 4,378 tokens (4,378 to 4,378 at an error of 4.6 %)")
    assert lines[2] == "1,000 GiB: 32,640 tokens, all that the model has positions for"


@pytest.mark.parametrize(
    ("size", "options", "said"),
    [
        ("16", {}, "--longest: '16': expected a size such as 16GiB"),
        ("8GiB", {"slack": "0,1"}, "--longest: takes one model, KV cache, slack and so on"),
    ],
)
def test_a_mistake_in_what_has_to_fit_is_one_line(size, options, said):
    done = longest(size, **options)
    assert done.returncode == 1
    assert done.stderr.startswith(f"kvpeak predict: {said}")
    assert done.stderr.count("\n") == 1


def test_a_length_or_a_memory_is_needed():
    done = subprocess.run(
        [KVPEAK, "predict", "--model", "m", "--kv-cache", "cat", "--slack", "none"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "--prompt-tokens --longest is required" in done.stderr
