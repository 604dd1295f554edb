"""One process of the MLX engine: load, warm up, run, and say so in the protocol's events."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import mlx.core as mx

from kvpeak.base.errors import Unsupported, UserError
from kvpeak.base.model_config import end_ids
from kvpeak.base.numbers import MIB
from kvpeak.base.untrusted import read_object
from kvpeak.inputs.prompts import check_ids
from kvpeak.live import allocator, attention, device, generation, loading, workloads
from kvpeak.live.generation import Generation, Sampling, Watch
from kvpeak.live.kv_caches import last_update, make_caches
from kvpeak.live.kv_state import KVState, arrays_of, measure
from kvpeak.live.loading import said
from kvpeak.live.pool import Pool
from kvpeak.live.running import Marks, Session
from kvpeak.live.settle import settling
from kvpeak.protocol.emit import Emit, peak_rss_mib
from kvpeak.system.host import installed_version

# What decides memory and speed: MLX, and under CUDA the libraries that compute for it.
PACKAGES = (
    *("mlx", "mlx-lm", "mlx-cuda-12", "mlx-cuda-13"),
    *("nvidia-cublas-cu12", "nvidia-cublas", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
)

NO_METAL = "No Metal back-end"


def run_cell(request: dict, blas: str | None, emit: Emit) -> dict:
    """Emit the events from `started` to the last `run`; return what `done` says: the peaks of the
    whole process in MiB, and what came of comparing a batch.

    Raises Unsupported, UserError, and what MLX raises when it cannot allocate.
    """
    pool = start(request["cap"], blas, emit, request["options"])
    fall = None if pool else settling()
    cell = Cell(request, pool)
    emit("loaded", **cell.loaded, **({"footprint_lag_s": fall.lag_s} if fall else {}))
    peaks = [cell.load_peaks]
    protocol = request["protocol"]
    for number in range(protocol["warmup"] + protocol["recorded"]):
        run = {"run": number, "warmup": number < protocol["warmup"]}
        emit("run_started", **run, **(fall.wait() if fall else {}))
        marks = Marks(
            begun=lambda turn, number=number: emit("turn_started", run=number, turn=turn),
            first=partial(emit, "prefilled", run=number),
        )
        result, run_peaks = cell.run(marks)
        peaks.append(run_peaks)
        emit("run", **run, **result, **run_peaks)
    if pool and request["options"].get("record"):
        pool.save(Path(request["folder"]), entry_name(request))
    return {key: max(each[key] for each in peaks) for key in peaks[0]} | cell.compare()


def start(cap: str, blas: str | None, emit: Emit, options: dict | None = None) -> Pool | None:
    """Limit the pool or replace it, and emit `started`; the pool if there is one of ours.

    Raises Unsupported for a cap that MLX, or the pool in its place, does not have here.
    """
    options = options or {}
    pool = replace_pool(options, cap)
    replaced = bool(options.get("pool"))
    honoured = None if replaced else allocator.limit_pool(allocator.cap_bytes(cap))
    device.keep_resident()
    emit(
        "started",
        versions={name: version for name in PACKAGES if (version := installed_version(name))},
        device=device.describe(),
        wheel=device.wheel(),
        cap_bytes=honoured,
        blas=blas if device.accelerator() == "cpu" else None,
        **({"pool": pool.described()} if pool else {}),
    )
    if honoured is None and not replaced and cap not in ("none", "default"):
        raise Unsupported(f"cap {cap}: this MLX keeps no pool here: set_cache_limit is a no-op")
    return pool


def replace_pool(options: dict, cap: str) -> Pool | None:
    """The pool that the variant asks for, installed; one that only records; or None."""
    given = {key: options[key] for key in ("record", "wait") if options.get(key)}
    if not (options.get("pool") or given):
        return None
    pool = Pool(options.get("pool", ""), cap, **given)
    if pool.replaces:
        allocator.count_by(pool)
    return pool


class Cell:
    """The request's model, loaded, and what is asked of it."""

    def __init__(self, request: dict, pool: Pool | None):
        """Load, and find out whether the model takes the cache. Raises UserError and
        Unsupported.
        """
        protocol, options, entry = request["protocol"], request["options"], request["model"]
        self._folder = Path(request["folder"])
        self._prompt_file = Path(request["prompt"]["path"])
        self.prompt = read_prompt(self._prompt_file)
        self._kv_cache, self._pool = request["kv_cache"], pool
        self._workload = request["prompt"].get("workload")
        workloads.check(self._workload, self._kv_cache, protocol)
        self._chunk = None if options["prefill_chunk"] == "whole" else options["prefill_chunk"]
        self._loop, loop_mib = find_loop(options.get("loop", "own"))
        peaks = allocator.Peaks()
        began = perf_counter()
        self._model, config = loading.load_model(
            Path(entry["folder"]),
            weights=entry["weights"],
            dtype=entry["dtype"],
            seed=protocol["seed"],
        )
        load_s = perf_counter() - began
        peaks.sample()
        self.load_peaks = peaks.mib()
        self._sampling = Sampling(
            generate=protocol["generate"],
            repeat_penalty=protocol["repeat_penalty"],
            repeat_window=protocol["repeat_window"],
            stop=frozenset() if protocol["ignore_eos"] else end_ids(config),
        )
        attention.use(options["attention"])
        dtype, own_attention, held = self._check_cache()
        self.loaded = {
            "load_s": load_s,
            "loaded_mib": allocator.counting.active() / MIB,
            "weights_mapped": loading.WEIGHTS_MAPPED,
            "dtype": dtype,
            "attention": "own" if own_attention else options["attention"],
            "loop": options.get("loop", "own"),
            "loop_mib": loop_mib,
            **held.as_dict(),
        }

    def run(self, marks: Marks) -> tuple[dict, dict[str, float]]:
        """One run: the keys of its event that say what was generated and how fast, and its
        peaks.
        """
        if not self._workload:
            result, peaks = self.generate(marks.first)
            return {"prompt_tokens": self.prompt.size, **measured(result)}, peaks
        self._phase("prefill")
        result, peaks, self._parts = workloads.run(
            self._session(), self._workload, self.prompt, self._folder, self._marking(marks)
        )
        self._phase("between")
        return result, peaks

    def compare(self) -> dict:
        """Where the sequences of the last run's batch differ from their own single runs."""
        if not self._workload:
            return {}
        return workloads.compare(self._session(), self._workload, self.prompt, self._parts)

    def _marking(self, marks: Marks) -> Marks:
        """The same marks, in the recording of a pool of ours too."""

        def begun(turn: int) -> None:
            self._phase("prefill")
            marks.begun(turn)

        def first() -> None:
            self._phase("decode")
            marks.first()

        return Marks(begun, first)

    def _session(self) -> Session:
        return Session(
            self._model,
            self._loop,
            self._caches,
            self._sampling,
            self._chunk,
            feeds_last=self._loop is not generation.generate,
        )

    def generate(self, on_first_token: Callable[[], None]) -> tuple[Generation, dict[str, float]]:
        """One run with fresh caches: what it generated, and its peaks in MiB."""
        peaks = allocator.Peaks()
        self._phase("prefill")
        watch = Watch(peaks, self._marking(Marks(first=on_first_token)).first)
        result = self._loop(
            self._model, self._caches(), self.prompt, self._sampling, watch, self._chunk
        )
        self._phase("between")
        return result, peaks.mib()

    def _phase(self, name: str) -> None:
        if self._pool:
            self._pool.phase(name)

    def _caches(self) -> list:
        length = workloads.length(self._workload, self.prompt.size, self._sampling.generate)
        return make_caches(self._kv_cache, self._model, length)

    def _check_cache(self) -> tuple[str, bool, KVState]:
        """The dtype of the cache, whether attention is the model's own, and what the caches hold.

        Builds the graphs of a pass over two tokens and one over the next, and computes neither.
        Raises Unsupported if that fails with this cache and works with mlx-lm's.
        """
        own = make_caches("mlx-lm", self._model, 3)
        try:
            self._trace(own)
        except Exception as error:  # mlx-lm's models raise anything
            if NO_METAL in str(error):
                raise Unsupported(f"the model's kernels need Metal: {said(error)}") from error
            raise UserError(f"mlx-lm cannot run the model of this config: {said(error)}") from error
        caches = self._caches()
        with attention.calls() as calls, last_update(caches, own) as last:
            try:
                logits = self._trace(caches)
            except Exception as error:  # mlx-lm's models raise anything
                where = f"{last[-1]}: " if last else ""
                why = refusal(self._kv_cache, error)
                raise Unsupported(f"kv_cache {self._kv_cache}: {where}{why}") from error
        check_ids(self.prompt.tolist(), logits.shape[-1], self._prompt_file)
        state = arrays_of([cache.state for cache in caches])
        floating = (leaf.dtype for leaf in [*state, logits] if is_floating(leaf))
        return str(next(floating)).removeprefix("mlx.core."), not calls, measure(caches)

    def _trace(self, caches: list) -> mx.array:
        self._model(mx.zeros((1, 2), mx.uint32), cache=caches)
        return self._model(mx.zeros((1, 1), mx.uint32), cache=caches)


def refusal(kv_cache: str, error: Exception) -> str:
    """Why a model's pass failed with a cache that is not its own."""
    if kv_cache.startswith("quantized-") and isinstance(error, (TypeError, AttributeError)):
        return f"the model computes with arrays, and a quantised cache gives tuples: {said(error)}"
    return f"the model cannot use it: {said(error)}"


def entry_name(request: dict) -> str:
    """What a recording is of: the cell's place on the axes."""
    return " ".join(f"{value}" for value in request.get("cell", {}).values())


def is_floating(array: mx.array) -> bool:
    return mx.issubdtype(array.dtype, mx.floating)


def find_loop(name: str) -> tuple[Callable[..., Generation], float]:
    """The loop `own` or `mlx-lm`, and the MiB of resident memory that importing it took.

    mlx-lm's own comes with transformers, as it does for everybody who uses it.
    """
    if name == "own":
        return generation.generate, 0.0
    if name != "mlx-lm":
        raise Unsupported(f"loop {name}: expected own or mlx-lm")
    before = peak_rss_mib()
    from kvpeak.live import stock

    return stock.generate, peak_rss_mib() - before


def read_prompt(path: Path) -> mx.array:
    """The token ids of a prompt file. Raises UserError."""
    try:
        tokens = read_object(path)["tokens"]
        return mx.array(tokens, mx.uint32)
    except (OSError, UserError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f'{path}: {error}; expected {{"tokens": [ids]}}, as cut_prompt.py writes it'
        ) from None


def measured(result: Generation) -> dict:
    """The keys of the event `run` that say what was generated, how fast, and which ids."""
    ids = ",".join(map(str, result.tokens))
    return {
        "generated_tokens": len(result.tokens),
        "prefill_s": result.prefill_s,
        "ttft_s": result.ttft_s,
        "decode_s": result.decode_s,
        "tokens_sha256": hashlib.sha256(ids.encode()).hexdigest(),
        "tokens": result.tokens,
    }
