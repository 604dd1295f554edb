"""What the models of Candle have in common: how a pass is divided into blocks, sizes, the cache.

A model is a subclass that writes down its own scripts: `_load`, `_embed`, `_attend`, `_attention`,
`_mlp` and `_head`, each in the order of the model's code.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from kvpeak.inputs.shapes import Shapes
from kvpeak.replay.script import OUTSIDE, Block, Script
from kvpeak.replay.workload import Workload

PROJECTIONS = {"q": "q", "k": "kv", "v": "kv"}  # tensor → the name of its size
ROTATED = {"q": "q", "k": "kv"}
SDPA_BLOCKS = 32  # partial results of the fused kernel's second pass (SDPA_2PASS_BLOCKS)
SDPA_TWO_PASSES = 1024  # keys from which it takes two passes (TWO_PASS_K_THRESHOLD)


class Pass(NamedTuple):
    """What decides how the layers of one forward pass are scripted."""

    many: bool  # several new tokens: a mask, and transposed tensors that are copied
    first: bool  # the cache is empty
    strided: bool  # v goes into the cache, or is joined there, as a transposed view
    two_passes: bool  # the fused kernel divides the keys


class Family:
    """A model that is traced; `shapes` are its sizes, `work` what the process does."""

    logits: str  # the size of what the forward pass returns

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
        half, positions = self.shapes.head_dim // 2, self.shapes.positions
        item = self.shapes.itemsize
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
        step = Pass(
            many=tokens > 1,
            first=tokens == total,
            strided=self.strided(tokens, total),
            two_passes=tokens == 1 and total >= SDPA_TWO_PASSES,
        )
        yield Block(phase, OUTSIDE, self.embed(tokens, total), sizes)
        yield Block(phase, range(self.shapes.layers), self.script("layer", step), sizes)
        yield Block(phase, OUTSIDE, self.script("head", step.many), sizes)

    def sample(self) -> Block:
        return Block("sample", OUTSIDE, self.script("sample"), self.fixed)

    def drop_logits(self) -> Block:
        return Block("prefill", OUTSIDE, self.script("drop_logits"), self.fixed)

    def reset(self) -> Block:
        return Block("reset", range(self.shapes.layers), self.script("reset"), self.fixed)

    def embed(self, tokens: int, total: int) -> Script:
        """The script from the ids to the first layer's input."""
        raise NotImplementedError

    def strided(self, tokens: int, total: int) -> bool:
        """Whether v goes into the cache as a transposed view (Pass.strided)."""
        raise NotImplementedError

    # Scripts that all models share -------------------------------------------------------------

    def _layer(self, s: Script, step: Pass) -> None:
        s.alloc("norm", "hidden")
        held = self._attend(s, step)
        if step.many:
            s.alloc("attention_rows", "q")
            held.append("attention_rows")
        s.alloc("o_proj", "hidden")
        s.free(*held)
        s.alloc("sum", "hidden")
        s.free("o_proj")
        s.alloc("norm2", "hidden")
        held = self._mlp(s)
        s.alloc("x_next", "hidden")
        s.free(*held, "sum", "norm", "x")
        s.rename("x_next", "x")

    def _attend(self, s: Script, step: Pass) -> list[str]:
        """From the norm to `attention`; returns all that is dropped after the output projection."""
        raise NotImplementedError

    def _mlp(self, s: Script) -> list[str]:
        """From `norm2` to `down`; returns those of them that still live."""
        raise NotImplementedError

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


class MaskOnce(Family):
    """A model that builds a u8 mask once for each pair of lengths and keeps it."""

    logits = "vocab_f32"

    def __init__(self, shapes: Shapes, work: Workload):
        super().__init__(shapes, work)
        self.masks: set[str] = set()

    def embed(self, tokens: int, total: int) -> Script:
        mask = f"mask_{tokens}x{total}"
        if tokens == 1 or self.work.attention == "fused" or mask in self.masks:
            return self.script("embed", None)
        self.masks.add(mask)
        return self.script("embed", mask)

    def _embed(self, s: Script, mask: str | None) -> None:
        s.upload("ids", "ids")
        if mask:
            s.upload(mask, "mask_u8")
        s.alloc("x", "hidden")
