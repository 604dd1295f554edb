"""The matrix: what it expands to, and the one line that each mistake gets."""

import copy
import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kvpeak.experiment.config_file import ConfigError, load_yaml
from kvpeak.experiment.matrix import Matrix, load_matrix
from kvpeak.experiment.plan import plan_csv

ROOT = Path(__file__).parents[1]
BASE = {
    "commits": {"mlx-a": {"engine": "mlx"}, "replay": {"engine": "candle-replay"}},
    "models": {"tiny": {"kind": "random", "config": "config/models/qwen2-tiny.json"}},
    "prompts": {"short": {"tokens": 9}, "long": {"tokens": 65}},
    "kv_caches": ["cat", "mlx-lm"],
    "caps": ["none", "4x", "32MiB"],
    "variants": {"default": {}, "fused": {"attention": "fused"}},
    "compare": [{"axis": "cap", "before": "none", "after": "32MiB"}],
}


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


def matrix(**changes):
    return Matrix(copy.deepcopy(BASE) | changes, "matrix.yaml")


def test_every_combination_is_planned_once():
    assert len(matrix().combinations) == 2 * 1 * 2 * 2 * 3 * 2
    assert len({cell.path for cell in matrix().combinations}) == 48


def test_exclude_is_and_inside_a_selector_and_or_across():
    some = matrix(exclude=[{"prompt": "long", "cap": ["none", "4x"]}, {"variant": "fused"}])
    assert {cell.variant for cell in some.combinations} == {"default"}
    assert {cell.cap for cell in some.combinations if cell.prompt == "long"} == {"32MiB"}
    assert {cell.cap for cell in some.combinations if cell.prompt == "short"} == {
        "none",
        "4x",
        "32MiB",
    }


def test_include_wins_over_exclude():
    some = matrix(exclude=[{"variant": "fused"}], include=[{"variant": "fused", "prompt": "short"}])
    assert {c.prompt for c in some.combinations if c.variant == "fused"} == {"short"}


def test_what_an_engine_does_not_have_is_planned_as_not_applicable():
    reasons = {cell.axes[:1] + cell.axes[3:5]: reason for cell, reason in matrix().plan()}
    assert reasons["mlx-a", "cat", "4x"] == (
        "not applicable: engine mlx has no cap 4x (it takes default, none or bytes such as 64MiB)"
    )
    assert "no cap 32MiB" in reasons["replay", "cat", "32MiB"]
    assert "no KV cache mlx-lm" in reasons["replay", "mlx-lm", "4x"]
    assert reasons["mlx-a", "mlx-lm", "32MiB"] == ""


def test_a_model_that_needs_a_gpu_is_planned_but_not_here(monkeypatch):
    models = {"big": BASE["models"]["tiny"] | {"needs": "gpu"}}
    monkeypatch.setenv("KVPEAK_ACCELERATOR", "cpu")
    assert {cell.commit for cell in matrix(models=models).cells_here} == {"replay"}
    monkeypatch.setenv("KVPEAK_ACCELERATOR", "metal")
    assert {cell.commit for cell in matrix(models=models).cells_here} == {"mlx-a", "replay"}


def order(number: int = 1, **changes) -> list[tuple]:
    """The axes of the cells of one round, in the order of measurement."""
    return [cell.axes for cell in matrix(**changes).cells_here if cell.round == number]


def test_replays_come_after_all_that_is_live():
    engines = [
        BASE["commits"][cell.commit]["engine"]
        for cell in matrix(protocol={"processes": 2}).cells_here
    ]
    replays = engines.count("candle-replay")
    assert 0 < replays < len(engines)
    assert set(engines[-replays:]) == {"candle-replay"}


def test_rounds_alternate_their_direction():
    some = {"protocol": {"processes": 3}, "exclude": [{"commit": "replay"}]}
    assert order(2, **some) == order(1, **some)[::-1]
    assert order(3, **some) == order(1, **some)


@pytest.mark.parametrize("seed", range(5))
def test_the_sides_of_the_first_comparison_are_neighbours_and_start_equally_often(seed):
    engines = {name: {"engine": "mlx"} for name in ("mlx-a", "mlx-b")}
    axes = order(commits=engines, caps=["none", "32MiB"], protocol={"seed": seed})
    pairs = list(zip(axes[::2], axes[1::2], strict=True))
    assert all(one[:4] + one[5:] == two[:4] + two[5:] for one, two in pairs)
    starts = [one[4] for one, _ in pairs]
    assert starts.count("none") == starts.count("32MiB") == len(pairs) / 2


def test_a_longer_prompt_comes_after_the_shorter_one_of_the_same_kind():
    axes = order(prompts={"long": {"tokens": 65}, "short": {"tokens": 9}})
    for cell in axes:
        if cell[2] == "long":
            assert axes.index((*cell[:2], "short", *cell[3:])) < axes.index(cell)


def test_the_seed_decides_the_order_and_nothing_else():
    orders = [order(protocol={"seed": seed}) for seed in (0, 0, 1, 2, 3)]
    assert orders[0] == orders[1]
    assert len({tuple(axes) for axes in orders}) > 2
    assert len({frozenset(axes) for axes in orders}) == 1


def test_the_plan_lists_every_cell_with_its_path_and_reason():
    rows = list(csv.DictReader(io.StringIO(plan_csv(matrix(protocol={"processes": 2})))))
    assert len(rows) == 96
    assert rows[0]["path"] == "results/cells/mlx-a/tiny/short/cat/none/default/r1"
    assert {row["runs_here"] for row in rows if row["reason"]} == {"no"}
    assert {row["runs_here"] for row in rows if not row["reason"]} == {"yes"}


def test_a_request_holds_everything_its_engine_needs():
    cell = matrix().combinations[0]
    request = matrix(protocol={"generate": 4}).request(cell)
    assert request["model"]["folder"] == "models/tiny"
    assert request["model"]["weights"] == "random"
    assert request["prompt"] == {"name": "short", "tokens": 9, "path": "prompts/tiny/short.json"}
    assert request["options"] == {"attention": "fused", "prefill_chunk": "whole"}
    assert request["protocol"]["generate"] == 4
    assert request["protocol"]["warmup"] == 1


def test_a_model_may_generate_fewer_tokens_than_the_protocol_says():
    tiny = BASE["models"]["tiny"]
    some = matrix(models={"tiny": tiny, "slow": tiny | {"generate": 4}})
    requests = [some.request(cell) for cell in some.combinations]
    generated = {r["model"]["name"]: r["protocol"]["generate"] for r in requests}
    assert generated == {"tiny": 128, "slow": 4}
    assert not any("generate" in r["model"] for r in requests)
    at_the_end = {"prompts": {"long": {"tokens": 8192 - 4}}, "exclude": [{"model": "tiny"}]}
    matrix(models={"tiny": tiny, "slow": tiny | {"generate": 4}}, **at_the_end)
    with pytest.raises(ConfigError, match="8188 and 5 generated are more than the 8192 positions"):
        matrix(models={"tiny": tiny, "slow": tiny | {"generate": 5}}, **at_the_end)


@pytest.mark.parametrize(
    "prompt",
    [
        {"tokens": 2049, "batch": 32},
        {"batch": [4097, 4097, 4097]},
        {"tokens": 8000, "shared_prefix": 100},
        {"tokens": 4097, "repeat": 9},
        {"turns": [{"tokens": 100, "generate": 8000}], "keep": "trim"},
    ],
)
def test_a_workload_may_have_more_tokens_in_all_than_the_model_has_positions(prompt):
    matrix(prompts={"a": prompt})


def test_the_default_matrix_is_valid_and_plans_the_gpu_model_only_where_there_is_one(monkeypatch):
    monkeypatch.setenv("KVPEAK_ACCELERATOR", "cpu")
    cells = load_matrix("config/matrix.yaml").cells_here
    assert "qwen2.5-0.5b-instruct" not in {c.model for c in cells if c.commit.startswith("mlx")}
    monkeypatch.setenv("KVPEAK_ACCELERATOR", "metal")
    cells = load_matrix("config/matrix.yaml").cells_here
    assert "qwen2.5-0.5b-instruct" in {c.model for c in cells if c.commit.startswith("mlx")}


MISTAKES = [
    ({"colour": 1}, "colour: unknown key; expected one of"),
    (
        {"protocol": {"warmups": 1}},
        "protocol.warmups: unknown key (did you mean warmup?); expected one of",
    ),
    ({"protocol": {"recorded": 0}}, "protocol.recorded: 0: expected a whole number from 1"),
    ({"protocol": {"recorded": 2.0}}, "protocol.recorded: 2.0: expected a whole number from 1"),
    (
        {"models": {"tiny": BASE["models"]["tiny"] | {"generate": 8192}}},
        "models.tiny.generate: 8192: expected fewer than the 8192 positions of tiny",
    ),
    ({"protocol": {"generate": 9000}}, "protocol.generate: 9000: expected fewer than the 8192"),
    ({"protocol": {"recorded": "3"}}, 'protocol.recorded: "3": expected a whole number from 1'),
    ({"protocol": {"guard": 1.5}}, "protocol.guard: 1.5: expected a fraction in (0, 1]"),
    ({"protocol": None}, "protocol: null: expected how every cell is run"),
    ({"commits": {"a/b": {"engine": "mlx"}}}, "commits.a/b: bad name; expected a name of letters"),
    (
        {"commits": {"../x": {"engine": "mlx"}}},
        "commits.../x: bad name; expected a name of letters",
    ),
    ({"commits": {"x\n": {"engine": "mlx"}}}, "bad name; expected a name of letters"),
    ({"prompts": {".x": {"tokens": 9}}}, "prompts..x: bad name; expected a name of letters"),
    ({"prompts": {}}, "prompts: {}: expected"),
    ({"prompts": {"a": {"tokens": 0}}}, "prompts.a.tokens: 0: expected a whole number ≥ 1"),
    ({"prompts": {"a": {"tokens": True}}}, "prompts.a.tokens: true: expected a whole number ≥ 1"),
    (
        {"prompts": {"a": {"tokens": 9, "corpus": "../x"}}},
        'prompts.a.corpus: "../x": expected a path inside the project',
    ),
    (
        {"prompts": {"a": {"tokens": 9, "corpus": "no.txt"}}},
        'prompts.a.corpus: "no.txt": no such file',
    ),
    (
        {"prompts": {"a": {"tokens": 8100}}},
        "prompts.a.tokens: 8100 and 128 generated are more than the 8192 positions of tiny; "
        "expected at most 8064",
    ),
    (
        {"prompts": {"a": {"tokens": 8100, "batch": 2}}},
        "prompts.a.tokens: 8100 and 128 generated are more than the 8192 positions of tiny",
    ),
    (
        {"prompts": {"a": {"batch": [9, 8100]}}},
        "prompts.a.batch: 8100 and 128 generated are more than the 8192 positions of tiny",
    ),
    (
        {"prompts": {"a": {"turns": [{"tokens": 100, "times": 40}]}}},
        "prompts.a.turns: a session of 40 turns takes 9120 positions with its answers, and tiny "
        "has 8192; expected fewer or shorter turns, or exclude {model: tiny, prompt: a}",
    ),
    (
        {"prompts": {"a": {"tokens": 8000, "batch": 64}}},
        "prompts.a.tokens: 512000 tokens for a batch of 64 sequences are more than the corpus "
        "prompts/alice.txt has (",
    ),
    ({"caps": ["none", "4 x"]}, 'caps[1]: "4 x": expected none, a reuse ratio such as 4x'),
    ({"caps": ["none", 0]}, "caps[1]: 0: expected none, a reuse ratio such as 4x"),
    ({"caps": []}, "caps: []: expected a list of limits"),
    ({"caps": ["none", "none"]}, 'caps: "none" is given twice; keep one'),
    ({"kv_caches": ["cat", "dog"]}, 'kv_caches[1]: "dog": expected cat, cat-contiguous'),
    (
        {"exclude": [{"model": "tinny"}]},
        'exclude[0].model: "tinny" selects nothing; expected a name of models (did you mean '
        "tiny?): tiny",
    ),
    ({"include": [{}]}, "include[0]: {}: expected a mapping from axes to names"),
    (
        {"recordings": "config"},
        'recordings: "config" has no file peaks.json; expected a folder that',
    ),
    ({"recordings": "/etc"}, 'recordings: "/etc": expected a path inside the project'),
    ({"include": [{"size": "x"}]}, "include[0].size: unknown key; expected one of cap, commit"),
    ({"exclude": [{"model": "tiny"}]}, "exclude: leaves no cell"),
    (
        {"compare": [{"axis": "cap", "before": "none", "after": "64MiB"}]},
        'compare[0].after: "64MiB" is not on the axis cap; expected one of none, 4x, 32MiB',
    ),
    ({"compare": [{"axis": "cap", "before": "none", "after": "none"}]}, "is also before"),
    ({"compare": [{"axis": "cap", "before": "none"}]}, "compare[0]: key after is missing"),
    ({"compare": {"axis": "cap"}}, 'compare: {"axis": "cap"}: expected a list of comparisons'),
    ({"models": {"a": {"kind": "hub"}}}, "models.a: key repository is missing; kind hub needs it"),
    (
        {"models": {"a": {"kind": "random"}}},
        "models.a: key config is missing; kind random needs it",
    ),
    ({"models": {"a": {"kind": "zip"}}}, 'models.a.kind: "zip": expected hub, package or random'),
    ({"models": {"a": {"seed": 1}}}, "models.a: key kind is missing"),
    ({"models": {"a": None}}, "models.a: null: expected a model"),
    (
        {"models": {"a": {"kind": "random", "config": "no.json"}}},
        'models.a.config: "no.json" cannot be read',
    ),
    (
        {
            "models": {
                "a": {"kind": "random", "config": "config/models/qwen2-tiny.json", "file": "x"}
            }
        },
        'models.a.file: "x": a model of kind random has no such key',
    ),
    (
        {"models": {"a": {"kind": "random", "config": "/etc/passwd"}}},
        'models.a.config: "/etc/passwd": expected a path inside the project',
    ),
    ({"commits": {"a": {"engine": "vllm"}}}, 'commits.a.engine: "vllm": expected one of mlx'),
    (
        {"commits": {"a": {"engine": "candle-replay"}}},
        'caps[2]: "32MiB": no engine of commits has this cap',
    ),
    (
        {"commits": {"a": {"engine": "mlx", "packages": {"mlx": 0.3}}}},
        "commits.a.packages.mlx: 0.3: expected a version such as 0.32.4 (in quotes",
    ),
    ({"commits": ["a"]}, 'commits: ["a"]: expected engine revisions'),
    ({"variants": {"a": {"attention": "flash"}}}, 'variants.a.attention: "flash": expected fused'),
    (
        {"variants": {"a": {"prefill_chunk": 0}}},
        "variants.a.prefill_chunk: 0: expected whole, or a number",
    ),
]


@pytest.mark.parametrize(("changes", "line"), MISTAKES, ids=[line[:50] for _, line in MISTAKES])
def test_a_mistake_is_one_line_with_file_key_value_and_what_was_expected(changes, line):
    with pytest.raises(ConfigError) as error:
        matrix(**changes)
    assert str(error.value).startswith("matrix.yaml: ")
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_section_is_named():
    with pytest.raises(ConfigError, match=r"matrix.yaml: top level: key caps is missing"):
        Matrix({key: value for key, value in BASE.items() if key != "caps"}, "matrix.yaml")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: key 'a' is given twice (first in line 1); keep one"),
        ("a: {b: 1, b: 2}\n", "line 1: key 'b' is given twice (first in line 1); keep one"),
        ("a: [1\n", "line 2: "),
        ("a: !!python/object/apply:os.system [id]\n", "line 1: could not determine a constructor"),
        ("? [a]\n: 1\n", "line 1: a key must be text"),
        ("\x00", "is not YAML"),
    ],
)
def test_yaml_that_does_not_say_one_thing_is_refused(tmp_path, text, line):
    file = tmp_path / "matrix.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_yaml(file)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_merged_mapping_may_be_overridden(tmp_path):
    file = tmp_path / "matrix.yaml"
    file.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n")
    assert load_yaml(file)["b"] == {"x": 1, "y": 3}


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no.yaml: cannot be read: No such file"):
        load_yaml("no.yaml")
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load_yaml(tmp_path / "x.yaml")


@pytest.mark.parametrize("text", ["", "[]", "3", "null"])
def test_a_file_that_is_no_mapping_is_one_line(tmp_path, text):
    file = tmp_path / "matrix.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="top level"):
        load_matrix(file)


def test_plan_shows_the_mistake_without_a_traceback_and_exits_1(tmp_path):
    file = tmp_path / "matrix.yaml"
    file.write_text(yaml.safe_dump(BASE | {"caps": ["4 x"]}))
    done = subprocess.run(
        [sys.executable, "workflow/scripts/plan.py", "--matrix", file],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert 'caps[0]: "4 x": expected none' in done.stderr


def test_a_replay_takes_a_models_shapes_and_no_weights():
    models = {"big": {"kind": "hub", "repository": "a/b", "revision": "0" * 40}}
    shaped = {"big": models["big"] | {"config": "config/models/qwen2-tiny.json"}}
    for given, folder in ((models, "models/big"), (shaped, "models/shapes/big")):
        some = matrix(models=given)
        requests = {cell.commit: some.request(cell)["model"] for cell in some.combinations}
        assert requests["replay"]["folder"] == folder
        assert requests["replay"]["weights"] == "none"
        assert requests["mlx-a"]["folder"] == "models/big"
        assert requests["mlx-a"]["weights"] == "real"


COMMAND = {
    "engine": "command",
    "repository": "some/where",
    "revision": "0" * 40,
    "run": ["bin/x", "{kv_cache}", "{out}/t.csv"],
    "output": {"file": "{out}/t.csv", "columns": {"prompt_tokens": "p", "generated_tokens": "g"}},
}


@pytest.mark.parametrize("file", ["t.csv", "/tmp/t.csv", "{out}/../t.csv", "{out}"])
def test_a_commands_table_lies_in_the_folder_that_is_its_alone(file):
    entry = COMMAND | {"output": COMMAND["output"] | {"file": file}}
    with pytest.raises(ConfigError, match=r"expected a path inside \{out\}, such as"):
        matrix(commits={"c": entry})
    assert matrix(commits={"c": COMMAND}).commits["c"]["output"]["format"] == "csv"


def test_a_variants_variables_reach_the_request_as_text():
    variants = {
        "default": {},
        "plain": {"env": {"MLX_CUDA_USE_CUDNN_SDPA": 0, "OMP_PROC_BIND": "true"}},
    }
    made = matrix(variants=variants, compare=[])
    asked = {cell.variant: made.request(cell) for cell in made.combinations}
    assert asked["plain"]["env"] == {"MLX_CUDA_USE_CUDNN_SDPA": "0", "OMP_PROC_BIND": "true"}
    assert "env" not in asked["plain"]["options"]
    assert "env" not in asked["default"]


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "LD_PRELOAD",
        "PYTHONPATH",
        "HF_TOKEN",
        "HOME",
        "DYLD_INSERT_LIBRARIES",
        "MY_TOKEN",
        "CXX",
        "COMPILER_PATH",
        "CPATH",
        "OPENSSL_CONF",
        "DEPENDENCIES_OUTPUT",
        "GCONV_PATH",
        "MLX_MPI_LIBNAME",
        "CUDA_INJECTION64_PATH",
        "CUDNN_LOGDEST_DBG",
        "CUDA_VISIBLE_DEVICES",
        "SOMETHING_ELSE",
    ],
)
def test_a_variable_that_decides_what_runs_is_refused(name):
    with pytest.raises(
        ConfigError, match=rf"variants.plain.env.{name}: may not be set by a matrix"
    ):
        matrix(variants={"plain": {"env": {name: "x"}}}, compare=[])


@pytest.mark.parametrize("value", ["a/b", "/etc/passwd", "$(id)", "a b", "a;b"])
def test_a_variable_has_a_number_or_a_word(value):
    with pytest.raises(ConfigError, match="expected a number or word"):
        matrix(variants={"plain": {"env": {"MLX_X": value}}}, compare=[])


@pytest.mark.parametrize(
    "env", [{}, {"a b": "x"}, {"A": "x\ny"}, {"A": True}, {"A": 1.5}, {"A=B": "x"}]
)
def test_what_is_no_variable_is_refused_by_its_key(env):
    with pytest.raises(ConfigError, match=r"variants\.plain\.env"):
        matrix(variants={"plain": {"env": env}}, compare=[])


def test_too_many_combinations_are_refused_before_they_are_made():
    names = {f"p{number}": {"tokens": 9} for number in range(2000)}
    with pytest.raises(
        ConfigError, match="48,000,000 combinations of the six axes; expected at most"
    ):
        matrix(prompts=names, variants={f"v{number}": {} for number in range(2000)}, compare=[])


def test_names_that_differ_in_case_only_are_refused():
    with pytest.raises(ConfigError, match=r"prompts.Short: differs from short in upper and lower"):
        matrix(prompts={"short": {"tokens": 9}, "Short": {"tokens": 10}})


def test_a_number_that_begins_with_0_is_refused(tmp_path):
    file = tmp_path / "matrix.yaml"
    file.write_text("tokens: 010\n")
    with pytest.raises(ConfigError, match="line 1: 010: a number must not begin with 0"):
        load_yaml(file)
    file.write_text("tokens: [0, 10, -1, 0x10]\n")
    assert load_yaml(file) == {"tokens": [0, 10, -1, 16]}


@pytest.mark.parametrize(
    "address",
    ["https://me:pw@host/x", "https://token@host/x", "HTTPS://token@host/x", "ssh://a:b@h/x"],
)
def test_a_password_in_an_address_is_refused(address):
    with pytest.raises(ConfigError, match="holds a user, a password") as error:
        matrix(commits={"c": COMMAND | {"repository": address}})
    assert "pw" not in str(error.value).replace("password", "")
    matrix(commits={"c": COMMAND | {"repository": "git@host:x/y.git"}})
