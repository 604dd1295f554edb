"""The readers that parsers.py tries, each with a good file of its kind."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
import yaml
from conftest import TINY_MATRIX, TINY_MODEL
from parsers import Parser, good
from tiny_gguf import gguf_bytes, llama_metadata

from kvpeak.analysis.claims import load_claims
from kvpeak.analysis.instruments import read_instruments
from kvpeak.analysis.processes import read_process
from kvpeak.analysis.results import read_results
from kvpeak.analysis.roof import roofs
from kvpeak.base.axes import AXES
from kvpeak.base.columns import CHECKS
from kvpeak.base.errors import UserError
from kvpeak.base.made import why_not_made
from kvpeak.base.model_config import code_key, dtype_of, end_ids, quantization
from kvpeak.base.untrusted import read_csv
from kvpeak.display import results as displayed
from kvpeak.experiment.matrix import load_matrix
from kvpeak.experiment.preparation import lacks_its_programs
from kvpeak.experiment.status import outcome_in
from kvpeak.inputs import gguf
from kvpeak.inputs.model_folder import read_config, verify_model
from kvpeak.inputs.prompts import corpus_tokens
from kvpeak.inputs.shapes import find_shapes
from kvpeak.inputs.weights_check import check_weights
from kvpeak.pools import trace
from kvpeak.pools.sources import open_traces
from kvpeak.protocol.events import BadAnswer, Conversation
from kvpeak.report import records
from kvpeak.report.figure_list import read_figures
from kvpeak.runner.table_output import read_runs

DATA = Path(__file__).parents[1] / "data"
SMALL = DATA / "small"
PLANNED = {
    **{"commit": "c", "model": "m", "prompt": "p", "kv_cache": "cat", "cap": "none"},
    **{"variant": "default", "round": "1"},
}
CELL = "c/m/p/cat/none/default/r1"
CLAIM = {
    **{"claim": "it is so", "kind": "value", "of": {"model": "tiny"}, "source": "x"},
    **{"column": "peak_footprint_mib", "expected": 1.0, "tolerance_pct": 5},
}
TOKENIZER = {
    "version": "1.0",
    "pre_tokenizer": {"type": "Whitespace"},
    "padding": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
}
EVENTS = (
    b'{"event": "started", "versions": {"x": "1"}, "device": {}, "cap_bytes": null}\n'
    b'{"event": "loaded", "load_s": 1, "loaded_mib": 1, "weights_mapped": false, "dtype": "f"}\n'
    b'{"event": "run_started", "run": 0, "warmup": false}\n'
    b'{"event": "prefilled", "run": 0}\n'
    b'{"event": "outcome", "outcome": "oom", "detail": "x"}\n'
)
FIGURE = {"file": "a.svg", "title": "A", "alt": "a", "caption": "a", "sources": ["cells/a.csv"]}
TABLE = b"p,g,rate\n64,9,100\n64,9,100\n"
COLUMNS = {"prompt_tokens": "p", "generated_tokens": "g", "prefill_tok_s": "rate"}
SNAPSHOT = {
    "device_traces": [
        [
            {"action": "alloc", "addr": 512, "size": 9, "stream": 0, "time_us": 1, "frames": []},
            {"action": "free_requested", "addr": 512, "size": 9, "stream": 0, "time_us": 2},
            {"action": "free_completed", "addr": 512, "size": 9, "stream": 0, "time_us": 3},
        ]
    ],
    "segments": [],
}
READING = {
    **{"process": "a", "counter": "b", "what": "c", "right": True, "probe": "heap"},
    **{"known_mib": 1.0, "read_mib": 1.0, "off_mib": 0.0},
}
BUILD = {"commit": "c", "repository": "r", "revision": "v", "toolchain": {"a": "1"}, "build": []}
BUILD |= {"verify": {"command": ["x"], "output": "y"}}
CALIBRATION = {"machine": "m", "blas": "b", "last_level_cache_bytes": 9}
CALIBRATION |= {"dtypes": {"float32": {"flops": 5e9, "copy": 1e9}}}
ENVIRONMENT = {"commit": "c", "packages": {"mlx": "1"}, "own": True, "freeze": ["mlx==1"]}


def _shapes(file: Path) -> None:
    find_shapes(str(file))


def _config(file: Path) -> None:
    config = read_config(file.parent)
    code_key(config), dtype_of(config), end_ids(config), quantization(config)


def _gguf(file: Path) -> None:
    gguf.check_header(file)
    header = gguf.read_header(file)
    gguf.llama_config(header)
    gguf.build_tokenizer(header)


def _events(file: Path) -> None:
    talk = Conversation(0, 1)
    try:
        for _ in talk.feed(file.read_bytes(), 0.0):
            pass
        talk.answer()
    except BadAnswer as error:
        raise UserError(error) from None


def _results(file: Path) -> None:
    read_results(*(file.parent / name for name in ("plan.csv", "summary.csv", "runs.csv")))


def _table(form: str):
    output = {"file": "{out}/" + f"t.{form}", "format": form, "columns": COLUMNS}

    def read(file: Path) -> None:
        request = {
            "cell": dict.fromkeys((*AXES, "round"), "x"),
            "model": {"folder": "m"},
            "prompt": {"path": "p", "tokens": 9},
            "protocol": {"warmup": 0, "recorded": 2, "generate": 4, "seed": 0},
            "external": {"output": output},
        }
        read_runs(request, file.parent)

    return read


def _environment(file: Path) -> None:
    reader = records.Reader()
    records.environments(file.parents[2], [file.parent.name], reader)
    assert all(text.isprintable() for text in reader.problems)
    lacks_its_programs(file), why_not_made(file)


def _build(file: Path) -> None:
    reader = records.Reader()
    records.builds(file.parents[2], [file.parent.name], reader)
    assert all(text.isprintable() for text in reader.problems)


def _calibration(file: Path) -> None:
    reader = records.Reader()
    roofs(records.calibrations(file.parents[1], [file.stem], reader))
    assert all(text.isprintable() for text in reader.problems)


def _cell(file: Path) -> None:
    outcome_in(file.parent)
    read_process(file.parent)
    reader = records.Reader()
    records.read_records([PLANNED | {"runs_here": "yes"}], file.parents[7], reader)
    assert all(text.isprintable() for text in reader.problems)


def _instruments(file: Path) -> None:
    _, problems = read_instruments(file.parents[1], {file.stem})
    assert all(text.isprintable() for text in problems)


def _checks(file: Path) -> None:
    assert displayed.verdicts(file).isprintable()
    read_csv(file, CHECKS.names)


def _put(folder: str, **files: bytes) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        Path(folder, name.replace("__", ".")).write_bytes(content)


def parsers() -> dict[str, Parser]:
    """Name → parser; what a parser needs beside its file is put into the working folder."""
    _put("prompts", alice__txt=b"alice " * 100)
    _put("config/models", tiny__json=TINY_MODEL.encode())
    small = {file.name: file.read_bytes() for file in SMALL.glob("*.csv")}
    _put("results", **{name.replace(".", "__"): content for name, content in small.items()})
    cell = (DATA / "cell.json").read_bytes()
    runs = small["runs.csv"].splitlines(keepends=True)
    _put("cell", cell__json=cell, runs__csv=b"".join(runs[:3]), memory__csv=b"t_s,phase\n")
    _put("words", corpus__txt=b"a b a b")
    _put("model", config__json=TINY_MODEL.encode())
    weights = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    weights = len(weights).to_bytes(8, "little") + weights + bytes(4)
    digest = hashlib.sha256(TINY_MODEL.encode()).hexdigest()
    files = {"config.json": {"bytes": len(TINY_MODEL), "sha256": digest}}
    _put("record", config__json=TINY_MODEL.encode())
    record = {"name": "m", "files": files}
    traced = trace.Trace(name="t", source="csv", streams=["0"])
    traced.born(trace.Op.ALLOC, 9)
    trace.write(traced, Path("good.kvtrace"))
    plan = {("c", "tiny", "p", "cat", "none", "v"): ""}
    return {
        "matrix": Parser("m.yaml", yaml.safe_dump(TINY_MATRIX).encode(), load_matrix),
        "expected": Parser(
            "e.yaml",
            yaml.safe_dump({"claims": [CLAIM]}).encode(),
            lambda file: load_claims(file, plan),
        ),
        "shapes": Parser("shapes.json", TINY_MODEL.encode(), _shapes),
        "config.json": Parser("config.json", TINY_MODEL.encode(), _config),
        "model.json": Parser(
            "record/model.json",
            good(record),
            lambda file: verify_model(file.parent),
        ),
        "safetensors": Parser(
            "weights/model.safetensors", weights, lambda file: check_weights(file.parent)
        ),
        "GGUF": Parser(
            "m.gguf", gguf_bytes(llama_metadata(), {"token_embd.weight": _zeros()}), _gguf
        ),
        "tokenizer": Parser(
            "words/tokenizer.json",
            good(TOKENIZER),
            lambda file: corpus_tokens(Path("words/corpus.txt"), file, 100),
        ),
        "cell.json": Parser(f"{CELL}/cell.json", cell, _cell),
        "runs.csv": Parser(f"{CELL}/runs.csv", b"".join(runs[:3]), _cell),
        "events": Parser("events.jsonl", EVENTS, _events),
        **{
            name: Parser(f"results/{name}", small[name], _results)
            for name in ("plan.csv", "summary.csv", "processes.csv")
        },
        "checks.csv": Parser(
            "checks.csv",
            f"{','.join(CHECKS.names)}\n{',' * (len(CHECKS.names) - 1)}\n".encode(),
            _checks,
        ),
        "figure list": Parser(
            "figures/figures.json", good([FIGURE]), lambda file: read_figures(file.parent)
        ),
        "a command's CSV": Parser("out/t.csv", TABLE, _table("csv")),
        "a command's JSON": Parser(
            "out/t.json", good([{"p": 64, "g": 9, "rate": 1.5}] * 2), _table("json")
        ),
        "environment.json": Parser(
            "results/envs/c/environment.json", good(ENVIRONMENT), _environment
        ),
        "engine.json": Parser("results/engines/c/engine.json", good(BUILD), _build),
        "calibration": Parser("results/calibration/c.json", good(CALIBRATION), _calibration),
        "instruments": Parser(
            "results/instruments/c.json",
            good({"readings": [READING], "falls": [], "problems": []}),
            _instruments,
        ),
        "a trace as CSV": Parser("t.csv", b"op,id,bytes\nalloc,1,1048576\nfree,1,\n", open_traces),
        "a trace": Parser("t.kvtrace", Path("good.kvtrace").read_bytes(), open_traces),
        "a snapshot": Parser("s.pickle", pickle.dumps(SNAPSHOT), open_traces),
    }


def _zeros() -> tuple[str, np.ndarray]:
    return "F32", np.zeros((4, 32))
