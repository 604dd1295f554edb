"""Hostile input: whatever a file says, it is data. It gets one line, reaches no shell and no path
outside the project.
"""

import copy
import json
import os
import re
import sys
from pathlib import Path

import pytest
import warm
import yaml
from conftest import TINY_MATRIX, TINY_MODEL
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from stranger import hidden
from test_matrix import BASE

from kvpeak.cli import start
from kvpeak.experiment.checks import TAKEN
from kvpeak.experiment.config_file import ConfigError, load_yaml, validate
from kvpeak.experiment.matrix import Matrix, load_matrix
from kvpeak.experiment.plan import read_of

ROOT = Path(__file__).parents[2]
COLUMNS = ("prompt_tokens", "generated_tokens")  # that a command's table has to have
NASTY = [
    "../x",
    "/etc/passwd",
    "a\nb",
    "a\x00b",
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned",
    "{x}",
    "%s",
    "",
    ".",
    "-n",
    "é" * 300,
    "x" * 5000,
    10**400,
    -1,
    1e308,
    float("nan"),
    float("inf"),
    None,
    True,
    [],
    {},
    [[[[]]]],
    b"\xff",
]
PLACES = [
    ("commits", "mlx-a", "engine"),
    ("commits", "mlx-a", "packages"),
    ("commits", "mlx-a"),
    ("commits",),
    ("models", "tiny", "config"),
    ("models", "tiny", "kind"),
    ("models", "tiny", "dtype"),
    ("models",),
    ("prompts", "short", "tokens"),
    ("prompts", "short", "corpus"),
    ("prompts", "short"),
    ("prompts",),
    ("kv_caches",),
    ("caps",),
    ("variants", "fused", "attention"),
    ("variants",),
    ("compare",),
    ("exclude",),
    ("include",),
    ("protocol",),
]


def refused_or_read(make) -> Matrix | None:
    """The matrix that `make` gives, None if it is refused, which has to take one line."""
    try:
        return make()
    except ConfigError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1100
        return None


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("as_key", [True, False])
@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_a_matrix_with_a_nasty_value_or_name_is_refused_in_one_line_or_keeps_to_the_project(
    place, as_key
):
    for value in NASTY:
        refused_or_kept_inside(place, value, as_key)


def refused_or_kept_inside(place, value, as_key):
    data = copy.deepcopy(BASE)
    *path, last = place
    holder = data
    for key in path:
        holder = holder[key]
    if as_key and isinstance(holder.get(last), dict) and isinstance(value, str):
        holder[last][value] = next(iter(holder[last].values()), {})
    else:
        holder[last] = value
    if matrix := refused_or_read(lambda: Matrix(data, "matrix.yaml")):
        root = Path("results/cells").resolve()
        assert all((root / cell.path).resolve().is_relative_to(root) for cell in matrix.cells_here)
        for prompt in matrix.prompts.values():
            assert Path(prompt["corpus"]).resolve().is_relative_to(ROOT)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_matrix_file_is_refused_in_one_line_or_read(tmp_path_factory, data):
    text = yaml.safe_dump(BASE)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        piece = data.draw(
            st.text(max_size=5)
            | st.sampled_from(["&a ", "*a", "<<: ", "!!x ", "\t", "? ", "{", "["])
        )
        text = text[:at] + piece + text[at + data.draw(st.integers(0, 5)) :]
    file = tmp_path_factory.getbasetemp() / "damaged.yaml"
    file.write_bytes(text.encode(errors="replace"))
    refused_or_read(lambda: load_matrix(file))


FAR = 1 << 62
TOO_LARGE = {
    "a cap": (("caps", 0), "1000000000GiB"),
    "a reuse ratio": (("caps", 0), "1000000000x"),
    "a rotating cache": (("kv_caches", 0), "rotating-1000000000"),
    "runs": (("protocol", "recorded"), FAR),
    "runs to warm up": (("protocol", "warmup"), FAR),
    "a limit in seconds": (("protocol", "timeout_s"), FAR),
    "a guard": (("protocol", "guard"), 1.5),
    "requests": (("prompts", "short"), {"tokens": 2, "repeat": FAR}),
    "turns": (("prompts", "short"), {"turns": [{"tokens": 2, "times": FAR}]}),
    "turns together": (("prompts", "short"), {"turns": [{"tokens": 2, "times": 60_000}] * 2}),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_a_size_that_nothing_has_is_refused_at_once(case):
    data = copy.deepcopy(BASE) | {"protocol": {}}
    (section, key), value = TOO_LARGE[case]
    data[section][key] = value
    with pytest.raises(ConfigError, match=f"{section}.*{key}.*: expected ") as error:
        Matrix(data, "matrix.yaml")
    assert "\n" not in str(error.value)


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


MANY = "has more than 200000 entries when its aliases are replaced"
LONG = f"a: &a {'x' * 50_000}\nkv_caches: [{'*a, ' * 500}]\n"  # 25 MB in a message
FILES = {
    "aliases that multiply": (bomb(30), MANY),
    "a list in itself": ("caps: &a [*a]\n", MANY),
    "a long text behind many aliases": (LONG, MANY),
    "an entry for each of 2 MiB": (f"caps: [{'a,' * (1 << 20)}]", "larger than 2 MiB"),
    "a number that is none": ("protocol: {repeat_penalty: .nan}\n", "line 1: .nan: expected"),
    "a boundless number": ("guard: -.inf\n", "line 1: -.inf: expected a finite number"),
    "very deep": ("caps: " + "[" * 100_000, ""),
    "a number of 6,000 digits": ("caps: " + "9" * 6000, "is not YAML"),
    "a number of 300 places to the base of 60": (f"caps: 1{':1' * 300}.5", "is not YAML"),
    "a hexadecimal number of 6,000 digits": (
        "caps: 0x" + "f" * 6000,
        "a whole number beyond 64 bits",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_would_take_for_ever_is_refused(tmp_path, case):
    text, line = FILES[case]
    (tmp_path / "matrix.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_yaml(tmp_path / "matrix.yaml")
    assert line in str(error.value) and "\n" not in str(error.value)


TAGS = (
    *('!!int ""', '!!float ""', "!!int [1]", "!!bool no-bool", "!!timestamp now", "!!set [x]"),
    *("!!map x", "!!seq x", "!!omap [1]", "!!pairs x", "!!binary [1]", "!!python/name:os.system"),
)


@pytest.mark.parametrize("value", TAGS)
def test_a_tag_that_does_not_fit_its_value_is_one_line(tmp_path, value, capsys):
    for text in (f"caps: {value}\n", f"? {value}\n: 1\n", f"- {value}\n"):
        (tmp_path / "matrix.yaml").write_text(text)
        assert start(["plan", "--matrix", str(tmp_path / "matrix.yaml")]) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "matrix.yaml: " in said


def test_a_set_is_no_key(tmp_path):
    (tmp_path / "matrix.yaml").write_text("? !!set {a: null}\n: 1\n")
    with pytest.raises(ConfigError, match="line 1: a key must be text"):
        load_yaml(tmp_path / "matrix.yaml")


def test_what_is_given_twice_is_found_in_one_pass():
    """Texts beside numbers cannot be sorted."""
    values = [number if number % 2 else f"x{number}" for number in range(100_000)]
    for more, said in (([], "kv_caches[0]: "), (["x8"], 'kv_caches: "x8" is given twice')):
        with pytest.raises(ConfigError, match=re.escape(said)):
            validate(BASE | {"kv_caches": values + more}, "matrix.schema.json", "m.yaml")


def test_file_names_reach_no_shell(project):
    """Names of files may hold anything but leave the project; the rules quote them."""
    corpus = "prompts/a $(touch pwned) `touch pwned` '; touch pwned; \".txt"
    config = "config/models/$(touch pwned) & tiny';touch pwned;'.json"
    (project.folder / "prompts/alice.txt").rename(project.folder / corpus)
    (project.folder / "prompts/alice.txt").write_text("x" * 100)
    project.write(config, TINY_MODEL)
    models = {"tiny": TINY_MATRIX["models"]["tiny"] | {"config": config}}
    prompts = {"alice-16": {"tokens": 17, "corpus": corpus}}
    hostile = TINY_MATRIX | {"models": models, "prompts": prompts}
    matrix = "config/$(touch pwned);touch pwned.yaml"
    project.write(matrix, yaml.safe_dump(hostile))
    done = project.snakemake(
        "prompts/tiny/alice-16.json", "results/plan.csv", "--config", f"matrix={matrix}"
    )
    assert done.returncode == 0, done.stdout
    assert json.loads(project.read("prompts/tiny/alice-16.json"))["tokens"]
    assert not list(project.folder.rglob("pwned*"))


# The only HTML of a finding: what folds a table.
FOLD = re.compile(r"<details>\n<summary>[^<]*</summary>|</details>")
EVIL = (
    "| x | <script>alert(1)</script>\n\n# Owned {{ 7 * 7 }} {% raw %} "
    "[a](javascript:alert(1)) ![i](http://x/y) `code"
)


def test_what_engines_and_machines_say_is_text_in_the_finding(measured):
    def shape() -> list[str]:
        return [kind for name in ("finding", "details") for kind in document(name)]

    def document(name: str) -> list[str]:
        text = measured.read(f"report/{name}.md")
        tokens = MarkdownIt("commonmark").enable("table").parse(text)
        inline = [child for token in tokens for child in token.children or []]
        html = [token for token in [*tokens, *inline] if token.type.startswith("html")]
        assert not [token for token in html if not FOLD.fullmatch(token.content.strip())]
        links = [token.attrs.get("href", token.attrs.get("src", "")) for token in inline]
        assert not [link for link in links if "javascript" in str(link) or "//x/" in str(link)]
        return [token.type for token in tokens if token.type in ("heading_open", "th_open")]

    def finding_with(text: str) -> list[str]:
        for file in measured.folder.glob("results/cells/**/cell.json"):
            record = json.loads(file.read_text())
            record["detail"], record["flags"] = text, [text]
            record["engine"]["versions"] = {text.replace("\n", " "): text}
            record["machine"]["before"]["name"] = record["machine"]["before"]["cpu"] = text
            record["harness"]["revision"] = text
            file.write_text(json.dumps(record, indent=1))
        for name in ("aggregate", "render"):
            command = [sys.executable, f"workflow/scripts/{name}.py"]
            done = warm.run(command, measured.folder)
            assert done.returncode == 0, done.stderr
        return shape()

    assert finding_with(EVIL) == finding_with("plain words")


def said_of(data: object, tmp_path, capsys, *arguments: str) -> tuple[int, str]:
    """The exit code of `kvpeak plan` on such a matrix, and what it says on both streams."""
    file = tmp_path / "matrix.yaml"
    file.write_text(yaml.safe_dump(data, allow_unicode=True))
    code = start(["plan", "--matrix", str(file), *arguments])
    said = capsys.readouterr()
    assert not hidden(said.out + said.err)
    return code, said.out + said.err


@pytest.mark.parametrize("place", ["top", "variants", "commits", "models"])
def test_what_cannot_be_seen_in_a_key_is_spelled(place, tmp_path, capsys):
    key = "a\x1b]0;owned\x07\u202eb"
    data = copy.deepcopy(BASE)
    (data if place == "top" else data[place])[key] = {}
    code, said = said_of(data, tmp_path, capsys)
    assert code == 1 and said.count("\n") == 1
    assert "a\\x1b]0;owned\\x07\\u202eb" in said


def test_the_plan_says_what_would_be_executed_and_executes_nothing(tmp_path, capsys):
    """Every program, package and variable that a stranger's matrix brings along."""
    wire = tmp_path / "executed"
    touch = ["sh", "-c", f"touch {wire}"]
    program = {
        **{"engine": "command", "repository": f"ext::touch {wire}".replace(" ", "%20")},
        **{"revision": "0123456", "build": touch, "verify": touch},
        "run": ["bin/x", "{kv_cache}", f"; touch {wire}"],
        "needs": {"programs": ["sh"]},
        "output": {"file": "{out}/t.csv", "columns": dict.fromkeys(COLUMNS, "c")},
    }
    data = copy.deepcopy(BASE)
    data["commits"] |= {
        "program": program,
        "packages": {"engine": "mlx", "packages": {"mlx": "0.0.1", "evil": "6.6.6"}},
        "git": {"engine": "mlx", "packages": {"evil": "git+https://evil.example/x@0123456"}},
    }
    data["variants"]["evil"] = {"env": {"MLX_X": "1"}, "pool": "candle"}
    code, said = said_of(data, tmp_path, capsys)
    assert code == 0, said
    lines = [line.strip() for line in said.partition("It brings to be executed:\n")[2].splitlines()]
    for line in (
        f"commit program: clones ext::touch%20{wire} at 0123456",
        "commit program: starts sh --version",
        f"commit program: builds with sh -c 'touch {wire}'",
        f"commit program: checks the build with sh -c 'touch {wire}'",
        f"commit program: runs bin/x '{{kv_cache}}' '; touch {wire}'",
        "commit git: installs evil git+https://evil.example/x@0123456, and what they depend on",
        "variant evil: sets MLX_X=1",
        "pools: compiles kvpeak's own buffer pools with this machine's C++ compiler",
    ):
        assert line in lines
    assert any(line.startswith("commit packages: installs evil 6.6.6, mlx 0.0.1") for line in lines)
    assert not wire.exists()


def test_the_plan_shows_a_command_as_it_will_be_run(tmp_path, capsys):
    """A line break that is shown as a blank would hide what comes after a #."""
    data = copy.deepcopy(BASE)
    data["commits"]["program"] = {
        **{"engine": "command", "repository": "https://x.example/x", "revision": "0123456"},
        "build": ["sh", "-c", "true # tidy up\ncurl x | sh\r\t\u00a0\u202e"],
        "run": ["bin/x", "{kv_cache}", "a  b"],
        "output": {"file": "{out}/t.csv", "columns": dict.fromkeys(COLUMNS, "c")},
    }
    code, said = said_of(data, tmp_path, capsys)
    assert code == 0, said
    assert "sh -c 'true # tidy up\\x0acurl x | sh\\x0d\\x09\\xa0\\u202e'" in said
    assert "runs bin/x '{kv_cache}' 'a  b'" in said


def test_a_matrix_that_brings_nothing_says_so(tmp_path, capsys):
    data = copy.deepcopy(BASE) | {"commits": {"mlx-a": {"engine": "mlx"}}, "caps": ["none"]}
    data["compare"] = []
    code, said = said_of(data, tmp_path, capsys)
    assert code == 0, said
    assert "It brings no program and no package of its own." in said


def test_snakemake_says_what_would_be_executed_before_it_does_anything(project):
    """Even resolving a package's versions may run its code."""
    evil = {"engine": "mlx", "packages": {"evil": "git+https://127.0.0.1:9/x@0123456"}}
    project.set_matrix(TINY_MATRIX | {"commits": {"evil": evil}, "compare": []})
    lines = project.snakemake("-n").stdout.splitlines()
    (listed,) = [n for n, line in enumerate(lines) if line.startswith("commit evil: installs evil")]
    (resolved,) = [n for n, line in enumerate(lines) if line.startswith("resolving the env")]
    assert listed < resolved


@pytest.mark.parametrize(
    "address",
    [
        "git+https://me:pw@evil.example/x@0123456",
        "git+https://token@evil.example/x@0123456",
        "git+ssh://git:pw@evil.example/x@0123456",
        "git+https://evil.example/x?token=pw@0123456",
    ],
)
def test_a_secret_in_the_address_of_a_package_is_refused_and_not_repeated(address):
    commits = {"mlx-a": {"engine": "mlx", "packages": {"mlx": address}}}
    with pytest.raises(ConfigError, match=r"packages\.mlx: holds a user, a password") as error:
        Matrix(copy.deepcopy(BASE) | {"commits": commits, "compare": []}, "matrix.yaml")
    assert "pw@" not in str(error.value) and "token" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "PATH", "PYTHONPATH", "OPENSSL_CONF", "GCONV_PATH", "NODE_OPTIONS"]
)
def test_a_variable_that_makes_programs_load_code_is_refused(name):
    variants = BASE["variants"] | {"evil": {"env": {name: "1"}}}
    with pytest.raises(ConfigError, match=f"variants.evil.env.{name}: may not be set"):
        Matrix(copy.deepcopy(BASE) | {"variants": variants}, "matrix.yaml")


def test_a_variable_that_names_a_file_is_refused():
    variants = BASE["variants"] | {"evil": {"env": {"MLX_X": "results/evil.so"}}}
    with pytest.raises(ConfigError, match=r"env\.MLX_X: .* expected a number or word"):
        Matrix(copy.deepcopy(BASE) | {"variants": variants}, "matrix.yaml")


def test_more_combinations_than_can_be_looked_at_are_refused_at_once(tmp_path, capsys):
    data = copy.deepcopy(BASE)
    data["caps"] = [f"{n}MiB" for n in range(1, 301)]
    tokens = {"tokens": 9}
    data["prompts"] = {f"p{n}": tokens for n in range(300)}
    data["variants"] = {f"v{n}": {} for n in range(300)}
    data["models"] = {f"m{n}": data["models"]["tiny"] for n in range(300)}
    data |= {"compare": [], "exclude": [], "include": []}
    code, said = said_of(data, tmp_path, capsys)
    assert code == 1
    assert "combinations of the six axes; expected at most 2,000,000" in said


@pytest.mark.parametrize("name", ["matrix.yaml", "expected.yaml"])
def test_a_pipe_in_the_place_of_a_file_of_the_user_is_not_waited_for(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match="expected a regular file"):
        load_yaml(tmp_path / name)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "\ud800", "[1]"])
def test_a_config_that_is_no_object_is_one_line(text, tmp_path):
    config = tmp_path / "config.json"
    config.write_bytes(text.encode(errors="surrogatepass"))
    models = {"tiny": BASE["models"]["tiny"] | {"config": str(config)}}
    refused_or_read(lambda: Matrix(copy.deepcopy(BASE) | {"models": models}, "matrix.yaml"))


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("models.tiny.config", "shapes.json"),
        ("prompts.p.corpus", "corpus.txt"),
        ("recordings", "rec/peaks.json"),
        ("recordings", "rec"),
    ],
)
def test_a_matrix_reads_nothing_of_yours_through_a_link(tmp_path, monkeypatch, key, name):
    """What it names is copied into models/ and prompts/, which are passed on."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    theirs, mine = Path("config/x"), tmp_path / "home"
    for folder in (theirs / "rec", mine / "rec"):
        folder.mkdir(parents=True)
        for file in ("../corpus.txt", "../shapes.json", "peaks.json", "snapshots.zip"):
            (folder / file).write_text('{"model_type": "qwen2", "secret": 1}')
    said = yaml.safe_load(yaml.safe_dump(BASE))
    said["models"] = {"tiny": {"kind": "random", "config": str(theirs / "shapes.json")}}
    said["prompts"] = {"p": {"corpus": str(theirs / "corpus.txt"), "tokens": 4}}
    said |= {"recordings": str(theirs / "rec"), "compare": [], "exclude": [], "include": []}
    Matrix(said, "m.yaml")  # files of the project
    (theirs / name).rename(theirs / "other")
    (theirs / name).symlink_to((theirs / "other").resolve())
    Matrix(said, "m.yaml")  # a link inside it
    (theirs / name).unlink()
    (theirs / name).symlink_to(mine / name)
    with pytest.raises(ConfigError, match=f"{key}: .* leads out of the project through a link"):
        Matrix(said, "m.yaml")


@pytest.mark.parametrize("key", ["corpus", "config", "recordings"])
@pytest.mark.parametrize("path", [".git/config", "config/.env", "config/.x/y", ".kvpeak", "./.env"])
def test_a_matrix_reads_no_hidden_file(key, path):
    """Its text would be tokens in prompts/, which are passed on."""
    said = copy.deepcopy(BASE)
    if key == "recordings":
        said["recordings"] = path
    else:
        section, name = ("models", "tiny") if key == "config" else ("prompts", "short")
        said[section][name][key] = path
    with pytest.raises(ConfigError, match=f"{key}: .*no part of which begins with a dot"):
        Matrix(said, "m.yaml")


def test_a_matrix_reads_no_hidden_file_through_a_link(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = copy.deepcopy(BASE)
    said["models"] = {"tiny": {"kind": "random", "config": "shapes.json"}}
    said["prompts"] = {"p": {"corpus": "notes.txt", "tokens": 4}}
    said |= {"compare": [], "exclude": [], "include": []}
    Path("shapes.json").write_text(TINY_MODEL)
    Path(".secret").write_text("my words")
    Path("notes.txt").symlink_to(".secret")
    with pytest.raises(ConfigError, match=r"corpus: .*: leads to a hidden file"):
        Matrix(said, "m.yaml")
    Path("notes.txt").unlink()
    Path("notes.txt").write_text("words of theirs")
    assert read_of(Matrix(said, "m.yaml")) == "It reads notes.txt, shapes.json."


LOGS = {
    "commits": ("aggregate.log", "Plan.LOG", "models", "envs", "engines", "prompts", "pools"),
    "models": ("shapes", "tiny.shapes"),
}


@pytest.mark.parametrize(
    ("section", "name"), [(section, name) for section in LOGS for name in LOGS[section]]
)
def test_a_name_that_is_that_of_a_log_is_refused(section, name):
    """All would be measured, and then no table could be made."""
    said = copy.deepcopy(BASE)
    said[section][name] = next(iter(said[section].values()))
    with pytest.raises(ConfigError, match=f"{section}.{name}: kvpeak has a folder or a log"):
        Matrix(said, "m.yaml")


def test_every_log_of_a_rule_has_its_name_taken():
    """A rule whose log a commit's folder could be is not to be forgotten."""
    rules = "".join(file.read_text() for file in (ROOT / "workflow/rules").glob("*.smk"))
    first = set(re.findall(r'"results/logs/([^/"]+)', rules)) - {"{cell}"}
    assert len(first) > 10
    assert all(TAKEN["commit"].fullmatch(name) for name in first)


@pytest.mark.parametrize("name", ["matrix.yaml", "expected.yaml"])
def test_a_matrix_or_claims_that_are_a_link_to_a_file_of_mine_show_nothing_of_it(tmp_path, name):
    """A message about a file of one line, such as a token, would quote it."""
    (tmp_path / "token").write_text("hf_very_secret")
    theirs = tmp_path / "theirs" / name
    theirs.parent.mkdir()
    theirs.symlink_to(tmp_path / "token")
    with pytest.raises(ConfigError, match="leads out of ") as error:
        load_yaml(theirs)
    assert "secret" not in str(error.value)
    theirs.unlink()
    (theirs.parent / "other.yaml").write_text("a: 1")
    theirs.symlink_to("other.yaml")
    assert load_yaml(theirs) == {"a": 1}
