"""Traces: which buffers a model asks for, in which order, and when it drops them.

A trace is a stream of blocks: one for the layers of a forward pass, which all do the same, and one
each for what comes before and after them. A block's events are a script that all blocks of its kind
share, with the sizes by name beside it, so that the stream costs little and its memory nothing.

The scripts follow Candle 0.11.0: candle-transformers/src/models/{qwen2,quantized_qwen2,llama}.rs,
and the requests of its Metal operations (candle-core/src/metal_backend). A tensor is dropped where
Rust drops it: temporaries at the end of their statement, locals, shadowed ones too, at the end of
their function. Sizes are bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from kvpeak.base.kv_caches import kv_caches_of
from kvpeak.inputs.shapes import Shapes

KV_CACHES = tuple(kv_caches_of("candle-replay"))
ATTENTIONS = ("naive", "fused")
WAITS = ("none", "op")
LAYER_TENSORS = ("k_cache", "v_cache")  # one per layer; every other tensor exists once
REQUESTS = ("alloc", "shared", "upload")  # the kinds of event that a pool serves
OUTSIDE = (None,)  # the layers of a block that belongs to none
SOFTMAX = "probabilities"  # the tensor that the softmax writes
SDPA_BLOCKS = 32  # partial results of the fused kernel's second pass (SDPA_2PASS_BLOCKS)
SDPA_TWO_PASSES = 1024  # keys from which it takes two passes (TWO_PASS_K_THRESHOLD)


class Event(NamedTuple):
    """One request or release.

    kind: `alloc` (private heap), `shared` (the heap that the host reads), `upload` (host data),
    `free`, `rename` (the tensor lives on under the name in `size`), `wait`.
    """

    kind: str
    tensor: str = ""
    size: str = ""


class Block(NamedTuple):
    """A script that runs once in each of `layers`, or once outside them.

    `sizes` gives the bytes that the script's size names mean.
    """

    phase: str  # load, prefill, decode, sample or reset
    layers: range | tuple[None]
    script: "Script"
    sizes: dict[str, int]


class Request(NamedTuple):
    """One event of the flat stream: in which layer, for which tensor, of how many bytes."""

    kind: str
    layer: int | None
    role: str
    nbytes: int


@dataclass(frozen=True)
class Workload:
    """What a process does: `runs` times a prompt of `prompt_tokens` and `generate` tokens after it.

    `prefill_chunk` None prefills the prompt whole. `capacity` is how many tokens a prealloc cache
    has room for.
    """

    prompt_tokens: int
    kv_cache: str
    generate: int = 128
    runs: int = 4
    prefill_chunk: int | None = None
    attention: str = "naive"
    wait: str = "none"
    capacity: int = 0

    def chunks(self) -> Iterator[tuple[int, int]]:
        """(tokens, tokens with those before) of each step of the prefill."""
        step = self.prefill_chunk or self.prompt_tokens
        for start in range(0, self.prompt_tokens, step):
            end = min(start + step, self.prompt_tokens)
            yield end - start, end


class Script:
    """The events of one kind of block, written down as its model's code makes them."""

    def __init__(self):
        self.events: list[Event] = []

    def alloc(self, tensor: str, size: str) -> None:
        self.events.append(Event("alloc", tensor, size))

    def shared(self, tensor: str, size: str) -> None:
        self.events.append(Event("shared", tensor, size))

    def upload(self, tensor: str, size: str) -> None:
        self.events.append(Event("upload", tensor, size))

    def free(self, *tensors: str) -> None:
        self.events.extend(Event("free", tensor) for tensor in tensors)

    def rename(self, tensor: str, name: str) -> None:
        self.events.append(Event("rename", tensor, name))

    def wait(self) -> None:
        self.events.append(Event("wait"))

    def with_waits(self) -> "Script":
        """The same script with every request between two waits."""
        spaced = Script()
        for event in self.events:
            around = [Event("wait")] if event.kind in REQUESTS else []
            spaced.events += [*around, event, *around]
        return spaced

    # What a replay needs to know of a finished script ------------------------------------------

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The tensors from before that the script drops or renames."""
        inputs, own = [], set()
        for kind, tensor, name in self.events:
            if kind in REQUESTS:
                own.add(tensor)
            elif kind in ("free", "rename"):
                if tensor not in own:
                    inputs.append(tensor)
                own.discard(tensor)
                if kind == "rename":
                    own.add(name)
        return tuple(inputs)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The tensors that the script leaves behind."""
        left = {}
        for kind, tensor, name in self.events:
            if kind in REQUESTS:
                left[tensor] = True
            elif kind in ("free", "rename"):
                left.pop(tensor, None)
                if kind == "rename":
                    left[name] = True
        return tuple(left)

    @cached_property
    def private_sizes(self) -> tuple[str, ...]:
        """The sizes that are requested of the private heap alone."""
        others = set(self.other_sizes)
        names = dict.fromkeys(event.size for event in self.events if event.kind == "alloc")
        return tuple(name for name in names if name not in others)

    @cached_property
    def other_sizes(self) -> tuple[str, ...]:
        names = (event.size for event in self.events if event.kind in ("shared", "upload"))
        return tuple(dict.fromkeys(names))


def candle_trace(shapes: Shapes, work: Workload, family=None) -> Iterator[Block]:
    """Everything that one process asks Candle's pools for, weights aside.

    `family` is a class as in FAMILIES; None takes the one of the shapes.
    """
    model = (family or FAMILIES[shapes.family])(shapes, work)
    yield model.load()
    for _ in range(work.runs):
        for tokens, total in work.chunks():
            yield from model.forward("prefill", tokens, total)
            if total < work.prompt_tokens:
                yield model.drop_logits()
        for total in range(work.prompt_tokens + 1, work.prompt_tokens + work.generate):
            yield model.sample()
            yield from model.forward("decode", 1, total)
        yield model.sample()
        yield model.reset()


def mlx_decode_trace(shapes: Shapes, work: Workload) -> Iterator[Block]:
    """The caches of MLX's decode phase: each step makes a longer copy of each, then drops the old.

    mx.concatenate writes a new array of the whole length (mlx_lm's own caches avoid that).
    """
    first, grow, drop = Script(), Script(), Script()
    for tensor in LAYER_TENSORS:
        first.alloc(tensor, "cache")
        grow.alloc("joined", "cache")
        grow.free(tensor)
        grow.rename("joined", tensor)
        drop.free(tensor)
    row = shapes.kv_heads * shapes.head_dim * shapes.itemsize
    layers = range(shapes.layers)
    for _ in range(work.runs):
        yield Block("prefill", layers, first, {"cache": work.prompt_tokens * row})
        for total in range(work.prompt_tokens + 1, work.prompt_tokens + work.generate):
            yield Block("decode", layers, grow, {"cache": total * row})
        yield Block("reset", layers, drop, {})


def requests(trace: Iterator[Block]) -> Iterator[Request]:
    """The trace as a flat stream. A rename asks for nothing and is left out."""
    for block in trace:
        for layer in block.layers:
            for kind, tensor, size in block.script.events:
                if kind != "rename":
                    yield Request(kind, layer, tensor, block.sizes.get(size, 0))


def scores_bytes(shapes: Shapes, work: Workload) -> int:
    """The largest attention scores of the prefill (naive attention makes them, fused does not)."""
    itemsize = 4 if shapes.family == "llama" else shapes.itemsize
    return max(shapes.heads * tokens * total * itemsize for tokens, total in work.chunks())


def host_mask_bytes(shapes: Shapes, work: Workload) -> int:
    """The largest attention mask that the model builds on the host before it uploads it.

    qwen2.rs collects float32 values for the new tokens, the others u8 for new and old ones.
    """
    steps = [(tokens, total) for tokens, total in work.chunks() if tokens > 1]
    if work.attention == "fused" or not steps:
        return 0
    if shapes.family == "qwen2":
        return max(4 * tokens * tokens for tokens, _ in steps)
    return max(tokens * total for tokens, total in steps)


class Qwen2:
    """candle-transformers' qwen2.rs with the three caches of fornace.

    Two lifetimes differ from that file, because the finding's allocation log contradicts them: the
    bias-added v is dropped once it was copied, and so are k and v once a prealloc cache took them in.
    """

    logits = "vocab"  # the size of what the forward pass returns

    def __init__(self, shapes: Shapes, work: Workload):
        self.shapes = shapes
        self.work = work
        self.first_chunk = next(work.chunks())[0]
        self.script = cache(self._script)
        self.fixed = {
            "vocab": shapes.vocab * shapes.itemsize,
            "vocab_f32": shapes.vocab * 4,
            "scalar": 4,
            "capacity": work.capacity * shapes.kv_heads * shapes.head_dim * shapes.itemsize,
            "sdpa_partial": shapes.heads * SDPA_BLOCKS * shapes.head_dim * 4,
            "sdpa_sums": shapes.heads * SDPA_BLOCKS * 4,
        }

    def _script(self, part: str, *arguments) -> Script:
        script = Script()
        getattr(self, f"_{part}")(script, *arguments)
        return script if self.work.wait == "none" else script.with_waits()

    def sizes(self, tokens: int, total: int) -> dict[str, int]:
        """Bytes by size name for a pass over `tokens` new tokens, `total` with those before."""
        s = self.shapes
        item, q, kv = s.itemsize, s.heads * s.head_dim, s.kv_heads * s.head_dim
        return self.fixed | {
            "ids": tokens * 4,
            "hidden": tokens * s.hidden * item,
            "q": tokens * q * item,
            "q_f32": tokens * q * 4,
            "kv": tokens * kv * item,
            "cache": total * kv * item,
            "repeated": total * q * item,
            "repeated_f32": total * q * 4,
            "scores": tokens * total * s.heads * item,
            "scores_f32": tokens * total * s.heads * 4,
            "inner": tokens * s.intermediate * item,
            "mask": tokens * total * item,
            "mask_f32": tokens * total * 4,
            "mask_u8": tokens * total,
            "mask_new_f32": tokens * tokens * 4,
            "mask_old": tokens * (total - tokens) * item,
        }

    # The blocks ------------------------------------------------------------------------------

    def load(self) -> Block:
        half, positions, item = (
            self.shapes.head_dim // 2,
            self.shapes.positions,
            self.shapes.itemsize,
        )
        sizes = {
            "scalar": 4,
            "frequencies": half * item,
            "frequencies_f32": half * 4,
            "positions": positions * item,
            "positions_f32": positions * 4,
            "table": positions * half * item,
            "table_f32": positions * half * 4,
        }
        return Block("load", OUTSIDE, self.script("load"), sizes)

    def forward(self, phase: str, tokens: int, total: int) -> Iterator[Block]:
        sizes = self.sizes(tokens, total)
        many, first = tokens > 1, tokens == total
        yield Block(phase, OUTSIDE, self.embed(tokens, total), sizes)
        two_passes = not many and total >= SDPA_TWO_PASSES
        script = self.script("layer", many, first, self.strided(tokens, total), two_passes)
        yield Block(phase, range(self.shapes.layers), script, sizes)
        yield Block(phase, OUTSIDE, self.script("head", many), sizes)

    def sample(self) -> Block:
        return Block("sample", OUTSIDE, self.script("sample"), self.fixed)

    def drop_logits(self) -> Block:
        return Block("prefill", OUTSIDE, self.script("drop_logits"), self.fixed)

    def reset(self) -> Block:
        return Block("reset", range(self.shapes.layers), self.script("reset"), self.fixed)

    def embed(self, tokens: int, total: int) -> Script:
        return self.script("embed", tokens > 1, tokens == total)

    def strided(self, tokens: int, total: int) -> bool:
        """Whether v, once in the cache, is a transposed view: then every later cat stays one."""
        return self.work.kv_cache == "cat" and self.shapes.kv_heads > 1 and self.first_chunk > 1

    # Their scripts ---------------------------------------------------------------------------

    def _load(self, s: Script) -> None:
        s.upload("frequencies_f32", "frequencies_f32")
        self._cast(s, "frequencies_f32", "frequencies", "frequencies")
        s.upload("positions_u32", "positions_f32")
        s.alloc("positions", "positions")
        s.free("positions_u32")
        s.alloc("angles", "table")
        s.alloc("sin", "table")
        s.alloc("cos", "table")
        s.free("angles", "positions", "frequencies")

    def _embed(self, s: Script, many: bool, first: bool) -> None:
        s.upload("ids", "ids")
        if many and self.work.attention == "naive":
            # A later chunk joins zeros for the old tokens. As released, that fails unless the
            # activations are float32: cat refuses to mix types.
            s.upload("mask_new", "mask_new_f32")
            mask = "mask_new"
            if not first:
                s.shared("mask_old", "mask_old")
                s.alloc("mask_joined", "mask_f32")
                s.free("mask_old", "mask_new")
                mask = "mask_joined"
            self._cast(s, mask, "mask", "mask")
        s.alloc("x", "hidden")

    def _layer(self, s: Script, many: bool, first: bool, strided: bool, two_passes: bool) -> None:
        s.alloc("norm", "hidden")
        for tensor, size in (("q", "q"), ("k", "kv"), ("v", "kv")):
            s.alloc(f"{tensor}_matmul", size)
            s.alloc(f"{tensor}_proj", size)
            s.free(f"{tensor}_matmul")
        for tensor, size in (("q", "q"), ("k", "kv")):
            if many:
                s.alloc(f"{tensor}_copy", size)
            s.alloc(f"{tensor}_rope", size)
            if many:
                s.free(f"{tensor}_copy")
        v = "v_proj"
        if many and self.work.kv_cache != "cat":
            s.alloc("v_copy", "kv")
            s.free("v_proj")
            v = "v_copy"
        rest = ["q_rope", "q_proj", "k_proj", *self._store(s, first, "k_rope", v)]
        if self.work.kv_cache == "prealloc":
            s.free(rest.pop(), rest.pop())
        rest += self._attention(s, many, strided, two_passes)
        if many:
            s.alloc("attention_rows", "q")
            rest.append("attention_rows")
        s.alloc("o_proj", "hidden")
        s.free(*rest)
        s.alloc("sum", "hidden")
        s.free("o_proj")
        s.alloc("norm2", "hidden")
        self._mlp(s)
        s.free("norm2")
        s.alloc("x_next", "hidden")
        s.free("down", "sum", "norm", "x")
        s.rename("x_next", "x")

    def _mlp(self, s: Script) -> None:
        s.alloc("gate", "inner")
        s.alloc("silu", "inner")
        s.free("gate")
        s.alloc("up", "inner")
        s.alloc("product", "inner")
        s.free("silu", "up")
        s.alloc("down", "hidden")
        s.free("product")

    def _store(self, s: Script, first: bool, k: str, v: str) -> list[str]:
        """Put the new k and v into the cache; return those that the caller still holds."""
        if self.work.kv_cache == "prealloc":
            if first:
                s.shared("k_cache", "capacity")
                s.shared("v_cache", "capacity")
            return [k, v]
        if first:
            s.rename(k, "k_cache")
            s.rename(v, "v_cache")
            return []
        s.alloc("k_cat", "cache")
        s.alloc("v_cat", "cache")
        s.free("k_cache", "v_cache")
        s.rename("k_cat", "k_cache")
        s.rename("v_cat", "v_cache")
        return [k, v]

    def _attention(self, s: Script, many: bool, strided: bool, two_passes: bool) -> list[str]:
        """From q and the cache to `attention`; return what the function still holds then."""
        if self.work.attention == "fused":
            self._fused(s, two_passes)
            return ["attention"]
        held = self._repeat(s, strided)
        s.alloc("scores", "scores")
        s.alloc("scaled", "scores")
        s.free("scores")
        inner = ["scaled"]
        if many:
            s.alloc("masked", "scores")
            inner.append("masked")
        s.alloc(SOFTMAX, "scores")
        s.alloc("attention", "q")
        s.free(SOFTMAX, *inner)
        return ["attention", *held]

    def _fused(self, s: Script, two_passes: bool) -> None:
        """candle_nn::ops::sdpa, causal: no mask, no repeated k and v, no scores."""
        s.alloc("attention", "q")
        if two_passes:
            scratch = {
                "sdpa_partial": "sdpa_partial",
                "sdpa_sum": "sdpa_sums",
                "sdpa_max": "sdpa_sums",
            }
            for tensor, size in scratch.items():
                s.alloc(tensor, size)
            s.free(*scratch)

    def _repeat(self, s: Script, strided: bool) -> list[str]:
        """repeat_kv and contiguous: a strided v is joined first and copied then."""
        made = []
        shared_heads = self.shapes.repeat > 1
        narrowed = self.work.kv_cache == "prealloc"  # a view of the cache's first tokens
        if shared_heads or narrowed:
            s.alloc("k_repeated", "repeated")
            made.append("k_repeated")
        if shared_heads or narrowed or strided:
            if shared_heads and strided:
                s.alloc("v_joined", "repeated")
            s.alloc("v_repeated", "repeated")
            if shared_heads and strided:
                s.free("v_joined")
            made.append("v_repeated")
        return made

    def _head(self, s: Script, many: bool) -> None:
        s.alloc("final_norm", "hidden")
        s.free("x")
        if many and self.work.attention == "naive":
            s.free("mask")
        s.alloc("logits", "vocab")
        s.free("final_norm")

    def _sample(self, s: Script) -> None:
        """Repeat penalty on the host and greedy choice: two reads, each of which waits."""
        logits = "logits"
        if self.logits == "vocab" and self.shapes.itemsize != 4:
            s.alloc("logits_f32", "vocab_f32")
            logits = "logits_f32"
        s.shared("read_back", "vocab_f32")
        s.wait()
        s.free("read_back")
        if logits == "logits_f32":
            s.free("logits_f32")
        s.upload("penalised", "vocab_f32")
        s.alloc("argmax", "scalar")
        s.shared("read_back", "scalar")
        s.wait()
        s.free("read_back", "argmax", "penalised", "logits", "ids")

    def _drop_logits(self, s: Script) -> None:
        s.free("logits", "ids")

    def _reset(self, s: Script) -> None:
        s.free("k_cache", "v_cache")

    def _cast(self, s: Script, source: str, target: str, size: str) -> None:
        """to_dtype between float32 and the model's type, the source dropped after; else nothing."""
        if self.shapes.itemsize == 4:
            s.rename(source, target)
        else:
            s.alloc(target, size)
            s.free(source)


class QuantizedQwen2(Qwen2):
    """candle-transformers' quantized_qwen2.rs: quantised weights, float32 activations.

    Every name of its attention is shadowed, not dropped, so that all its tensors live to the end.
    It copies q, k and v after the transpose, so that cat and cat-contiguous are the same.
    """

    logits = "vocab_f32"

    def __init__(self, shapes: Shapes, work: Workload):
        super().__init__(shapes, work)
        self.masks: set[str] = set()

    def embed(self, tokens: int, total: int) -> Script:
        """A u8 mask is built once for each pair of lengths and kept."""
        mask = f"mask_{tokens}x{total}"
        if tokens == 1 or self.work.attention == "fused" or mask in self.masks:
            return self.script("embed", None)
        self.masks.add(mask)
        return self.script("embed", mask)

    def strided(self, tokens: int, total: int) -> bool:
        return False

    def _load(self, s: Script) -> None:
        s.upload("minus_infinity", "scalar")
        s.upload("frequencies", "frequencies_f32")
        s.upload("positions_u32", "positions_f32")
        s.alloc("positions", "positions_f32")
        s.alloc("angles", "table_f32")
        s.free("positions", "positions_u32")
        s.alloc("cos", "table_f32")
        s.alloc("sin", "table_f32")
        s.free("angles", "frequencies")

    def _embed(self, s: Script, mask: str | None) -> None:
        s.upload("ids", "ids")
        if mask:
            s.upload(mask, "mask_u8")
        s.alloc("x", "hidden")

    def _layer(self, s: Script, many: bool, first: bool, strided: bool, two_passes: bool) -> None:
        s.alloc("norm", "hidden")
        rest = []
        for step in ("matmul", "proj", *(["copy"] if many else [])):
            for tensor, size in (("q", "q"), ("k", "kv"), ("v", "kv")):
                s.alloc(f"{tensor}_{step}", size)
                rest.append(f"{tensor}_{step}")
        v = rest.pop()
        s.alloc("q_rope", "q")
        s.alloc("k_rope", "kv")
        rest += ["q_rope", *self._store(s, first, "k_rope", v)]
        rest += self._attention(s, many, strided, two_passes)
        if many:
            s.alloc("attention_rows", "q")
            rest.append("attention_rows")
        s.alloc("o_proj", "hidden")
        s.free(*rest)
        s.alloc("sum", "hidden")
        s.free("o_proj")
        s.alloc("norm2", "hidden")
        for tensor in ("gate", "up", "silu", "product"):
            s.alloc(tensor, "inner")
        s.free("silu", "up")
        s.alloc("down", "hidden")
        s.free("product", "gate")
        s.alloc("x_next", "hidden")
        s.free("down", "norm2", "sum", "norm", "x")
        s.rename("x_next", "x")

    def _attention(self, s: Script, many: bool, strided: bool, two_passes: bool) -> list[str]:
        if self.work.attention == "fused":
            self._fused(s, two_passes)
            return ["attention"]
        held = self._repeat(s, strided)
        s.alloc("scores", "scores")
        s.alloc("scaled", "scores")
        s.free("scores")
        held.append("scaled")
        if many:
            s.alloc("masked", "scores")
            held.append("masked")
        s.alloc(SOFTMAX, "scores")
        s.alloc("attention", "q")
        return ["attention", SOFTMAX, *held]

    def _head(self, s: Script, many: bool) -> None:
        s.alloc("final_norm", "hidden")
        s.alloc("logits", "vocab_f32")
        s.free("final_norm", "x")


class Llama(QuantizedQwen2):
    """candle-transformers' llama.rs: its attention casts q, k and v to float32.

    Its own cache is cat. After the first join it copies a strided v, so that the cache is contiguous
    from then on. The mask is built in the first layer, which here comes before it: uploads never
    reuse a buffer.
    """

    def strided(self, tokens: int, total: int) -> bool:
        """Whether v comes out of the projection, or out of the join, as a transposed view."""
        if self.work.kv_cache != "cat" or self.shapes.kv_heads == 1:
            return False
        return tokens > 1 or total - tokens == self.first_chunk > 1

    def _load(self, s: Script) -> None:
        s.upload("frequencies", "frequencies_f32")
        s.upload("positions_u32", "positions_f32")
        s.alloc("positions", "positions_f32")
        s.alloc("angles", "table_f32")
        s.free("positions", "positions_u32")
        for table in ("cos", "sin"):
            s.alloc(f"{table}_f32", "table_f32")
            self._cast(s, f"{table}_f32", table, "table")
        s.free("angles", "frequencies")

    def _layer(self, s: Script, many: bool, first: bool, strided: bool, two_passes: bool) -> None:
        s.alloc("norm", "hidden")
        rest = ["q_proj", "k_proj"]
        for tensor, size in (("q", "q"), ("k", "kv"), ("v", "kv")):
            s.alloc(f"{tensor}_proj", size)
        for tensor, size in (("q", "q"), ("k", "kv")) if many else ():
            s.alloc(f"{tensor}_copy", size)
            rest.append(f"{tensor}_copy")
        v = "v_proj"
        if many and self.work.kv_cache != "cat":
            s.alloc("v_copy", "kv")
            rest.append("v_proj")
            v = "v_copy"
        s.alloc("q_rope", "q")
        s.alloc("k_rope", "kv")
        rest += ["q_rope", *self._store_joined(s, first, strided, v)]
        rest += self._attention(s, many, first and strided, two_passes)
        if many:
            s.alloc("attention_rows", "q")
            rest.append("attention_rows")
        s.alloc("o_proj", "hidden")
        s.free(*rest)
        s.alloc("sum", "hidden")
        s.free("o_proj")
        s.alloc("norm2", "hidden")
        for tensor in ("gate", "silu", "up", "product"):
            s.alloc(tensor, "inner")
        s.free("silu", "up", "gate")
        s.alloc("down", "hidden")
        s.free("product")
        s.alloc("x_next", "hidden")
        s.free("down", "norm2", "sum", "norm", "x")
        s.rename("x_next", "x")

    def _store_joined(self, s: Script, first: bool, strided: bool, v: str) -> list[str]:
        """As in the other models, but a strided join is copied before it goes into the cache."""
        if first or not strided:
            return self._store(s, first, "k_rope", v)
        s.alloc("k_cat", "cache")
        s.free("k_rope")
        s.alloc("v_joined", "cache")
        s.alloc("v_cat", "cache")
        s.free("v_joined", "k_cache", "v_cache")
        s.rename("k_cat", "k_cache")
        s.rename("v_cat", "v_cache")
        return [v]

    def _attention(self, s: Script, many: bool, strided: bool, two_passes: bool) -> list[str]:
        if self.work.attention == "fused":
            self._fused(s, two_passes)
            return ["attention"]
        held = self._repeat(s, strided)
        if self.shapes.itemsize != 4:
            s.alloc("q_f32", "q_f32")
            s.alloc("k_f32", "repeated_f32")
            s.alloc("v_f32", "repeated_f32")
        s.alloc("scores", "scores_f32")
        s.alloc("scaled", "scores_f32")
        s.free("scores")
        inner = ["scaled"]
        if many:
            s.upload("minus_infinity", "scalar")
            s.alloc("masked", "scores_f32")
            s.free("minus_infinity")
            inner.append("masked")
        s.alloc(SOFTMAX, "scores_f32")
        if self.shapes.itemsize == 4:
            s.alloc("attention", "q")
        else:
            s.alloc("attention_f32", "q_f32")
            s.alloc("attention", "q")
            inner += ["v_f32", "k_f32", "q_f32", "attention_f32"]
        s.free(SOFTMAX, *inner)
        return ["attention", *held]

    def _head(self, s: Script, many: bool) -> None:
        s.alloc("final_norm", "hidden")
        s.alloc("logits_typed", "vocab")
        self._cast(s, "logits_typed", "logits", "vocab_f32")
        s.free("final_norm", "x")


FAMILIES = {"qwen2": Qwen2, "quantized-qwen2": QuantizedQwen2, "llama": Llama}
