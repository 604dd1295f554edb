"""One process of the mistralrs engine: load, warm up, run, and say so in the protocol's events."""

import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

from kvpeak.base.errors import Unsupported, UserError
from kvpeak.base.untrusted import read_object
from kvpeak.mistral import asked, loading, workloads
from kvpeak.mistral.text import answer_ids, prompt_text
from kvpeak.mistral.versions import candle_inside
from kvpeak.protocol.emit import Emit
from kvpeak.protocol.parts import digest
from kvpeak.system.host import installed_version

OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory|failed to allocate", re.IGNORECASE)


class OutOfMemory(Exception):
    """What the engine says of memory that it did not get."""


@dataclass
class Stream:
    """One answer as it came. first_s, last_s: of its first and last piece, seconds after the
    request was sent. text: None if the release streams none. ids: those that the engine named with
    its pieces.
    """

    first_s: float
    last_s: float
    pieces: int
    text: str | None
    ids: list[int]
    reason: str
    usage: dict


def run_cell(request: dict, emit: Emit) -> None:
    """Emit the events from `started` to the last `run`. Raises Unsupported, UserError and
    OutOfMemory.
    """
    _stay_offline()
    protocol = request["protocol"]
    start(emit)
    asked.check_model(request["model"])
    asked.check_options(request["options"])
    workload = request["prompt"].get("workload")
    asked.check_workload(workload, protocol)
    with tempfile.TemporaryDirectory(prefix="kvpeak-mistralrs-") as folder:
        engine = Engine(request, Path(folder))
        emit("loaded", **engine.loaded)
        for number in range(protocol["warmup"] + protocol["recorded"]):
            run = {"run": number, "warmup": number < protocol["warmup"]}
            emit("run_started", **run)
            first = partial(emit, "prefilled", run=number)
            if workload:
                begun = partial(_begun, emit, number)
                emit("run", **run, **workloads.run(engine, workload, begun, first))
            else:
                emit("run", **run, **engine.measured(engine.generate(first)))


def _begun(emit: Emit, run: int, turn: int) -> None:
    emit("turn_started", run=run, turn=turn)


def start(emit: Emit) -> None:
    """Emit `started`, with the Candle that is inside the release."""
    version = installed_version("mistralrs")
    if version is None:
        raise UserError("mistralrs is not installed in the commit's environment")
    release = candle_inside(version)
    emit(
        "started",
        versions={"mistralrs": version} | ({"candle": release.words} if release else {}),
        device={"accelerator": asked.accelerator()},
        cap_bytes=None,
        candle=asdict(release) if release else None,
    )


def _stay_offline() -> None:
    """Let nothing be fetched and no token be read: the model's files are here."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.pop("HF_TOKEN", None)


class Engine:
    """The request's model in mistral.rs, and what is asked of it."""

    def __init__(self, request: dict, folder: Path):
        """Load. Raises Unsupported, UserError and OutOfMemory."""
        entry, protocol = request["model"], request["protocol"]
        workload = request["prompt"].get("workload") or {}
        self.prompt: list[int] = read_object(Path(request["prompt"]["path"]))["tokens"]
        self._paged = asked.paged(request["kv_cache"], asked.accelerator())
        self._penalty = asked.penalty(protocol, len(self.prompt))
        self._generate, self._ignore_eos = protocol["generate"], protocol["ignore_eos"]
        self._names_ids = True
        self._reference: Stream | None = None
        began = perf_counter()
        with _explained():
            self._runner, reserve = loading.load(
                Path(entry["folder"]),
                entry.get("dtype"),
                self._paged,
                folder,
                asked.prefixes(workload),
            )
        load_s = perf_counter() - began
        self.loaded = {
            "load_s": load_s,
            "loaded_mib": None,
            "weights_mapped": None,
            "dtype": entry.get("dtype"),
            "reserve_mib": reserve,
        }
        self.added = self._stream("a", 1).usage["prompt_tokens"] - len(self.encode("a"))
        if "turns" not in workload:
            self._text = prompt_text(self.prompt, self.added, self.decode, self.encode)

    def generate(self, on_first) -> Stream:
        """One run. Raises UserError if the engine counts another number of tokens in the prompt.

        The first run asks for the ids as well, and so does every later one if the release streams
        no text.
        """
        stream = self.ask(self._text, self._generate, on_first)
        if (counted := stream.usage["prompt_tokens"]) != len(self.prompt):
            raise UserError(
                f"mistral.rs counts {counted} tokens in the prompt; expected {len(self.prompt)}"
            )
        if self._reference is None:
            self._reference = stream
            self._names_ids = not stream.text
        return stream

    def ask(self, text: str, generate: int, on_first) -> Stream:
        """One answer. Raises Unsupported if it ends before so many tokens and should not."""
        stream = self._stream(text, generate, on_first)
        if self._ignore_eos and stream.usage["completion_tokens"] < generate:
            raise Unsupported(
                "ignore_eos: this mistral.rs ended the text after "
                f"{stream.usage['completion_tokens']} of "
                f"{generate} tokens; expected ignore_eos false, 0.9.1 or newer, or fewer "
                "tokens"
            )
        return stream

    def measured(self, stream: Stream) -> dict:
        """The keys of the event `run`; docs/mistralrs.md says what each time is."""
        usage, (ids, ids_from) = stream.usage, self._ids(stream)
        return {
            "prompt_tokens": usage["prompt_tokens"],
            "generated_tokens": usage["completion_tokens"],
            "prefill_s": usage["total_prompt_time_sec"],
            "ttft_s": stream.first_s,
            "decode_s": stream.last_s - stream.first_s,
            "tokens_sha256": digest(ids) if ids else None,
            "tokens": ids,
            "tokens_from": ids_from,
            "usage": usage,
            "stream": {"first_s": stream.first_s, "last_s": stream.last_s, "pieces": stream.pieces},
            "peak_active_mib": None,
            "peak_pool_mib": None,
        }

    def _ids(self, stream: Stream) -> tuple[list[int] | None, str | None]:
        """The answer's ids, and how they are known: `engine`, `text`, or neither."""
        generated, reference = stream.usage["completion_tokens"], self._reference
        if len(stream.ids) == generated:
            return stream.ids, "engine"
        if stream.text is None:
            return None, None
        if reference and stream.text == reference.text and len(reference.ids) == generated:
            return reference.ids, "text"
        ids = answer_ids(stream.text, generated, self.encode)
        return ids, "text" if ids else None

    def encode(self, text: str) -> list[int]:
        return self._runner.tokenize_text(text, False, None)

    def decode(self, ids: list[int]) -> str:
        return self._runner.detokenize_text(ids, False)

    def _stream(self, text: str, tokens: int, on_first=lambda: None) -> Stream:
        """Send one request and read its answer to the end."""
        request = self._request(text, tokens)
        pieces, times = [], []
        began = perf_counter()
        with _explained():
            for piece in self._runner.send_chat_completion_request(request):
                times.append(perf_counter() - began)
                if len(times) == 1:
                    on_first()
                pieces.append(piece)
        return _read(pieces, times)

    def _request(self, text: str, tokens: int):
        import mistralrs

        keys = {
            "messages": [{"role": "user", "content": text}],
            "model": "default",
            "max_tokens": tokens,
            "temperature": 0.0,
            "stream": True,
            "repetition_penalty": self._penalty,
        }
        if self._names_ids:
            keys |= {"logprobs": True, "top_logprobs": 1}
        try:
            return mistralrs.ChatCompletionRequest(**keys, ignore_eos=self._ignore_eos)
        except TypeError:  # before 0.9.1 there is no such key
            return mistralrs.ChatCompletionRequest(**keys)


class _explained:
    """What mistral.rs says when it fails, as an exception of ours; it raises nothing narrower."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _trace):
        if kind is None or not issubclass(kind, Exception) or issubclass(kind, UserError):
            return
        said = " ".join(str(error).split())[:300]
        if kind is MemoryError or OUT_OF_MEMORY.search(said):
            raise OutOfMemory(said or "out of memory") from None
        raise UserError(f"mistral.rs: {said}") from error


def _read(pieces: list, times: list[float]) -> Stream:
    """What the pieces of an answer say together. Raises UserError if there are none."""
    if not pieces or pieces[-1].usage is None:
        raise UserError("mistral.rs ended its answer without saying how many tokens it has")
    said = [piece.choices[0].delta.content for piece in pieces]
    return Stream(
        first_s=times[0],
        last_s=times[-1],
        pieces=len(pieces),
        text=None if all(part is None for part in said) else "".join(part or "" for part in said),
        ids=list(_named(pieces)),
        reason=pieces[-1].choices[0].finish_reason,
        usage=_figures(pieces[-1].usage),
    )


def _named(pieces: list) -> Iterator[int]:
    """The id that the engine names as the likeliest with each piece: greedily, the one it took."""
    for piece in pieces:
        if named := piece.choices[0].logprobs:
            yield named.top_logprobs[0].token


def _figures(usage) -> dict:
    """The counts and seconds of a usage."""
    counts = ("prompt_tokens", "completion_tokens")
    seconds = ("total_prompt_time_sec", "total_completion_time_sec", "total_time_sec")
    return {name: getattr(usage, name) for name in counts} | {
        name: round(getattr(usage, name), 6) for name in seconds
    }
