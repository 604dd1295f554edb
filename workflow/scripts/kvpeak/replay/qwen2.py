"""candle-transformers' qwen2.rs, with the three caches of fornace."""

from kvpeak.replay.family import PROJECTIONS, ROTATED, Family, Pass
from kvpeak.replay.script import SOFTMAX, Script


class Qwen2(Family):
    """Two lifetimes differ from qwen2.rs, because the finding's allocation log contradicts them:
    the bias-added v is dropped once it was copied, and so are k and v once a prealloc cache took
    them in.
    """

    logits = "vocab"
    keeps_v = False  # the choices not taken: fit.py tries them
    keeps_stored = False

    def embed(self, tokens: int, total: int) -> Script:
        return self.script("embed", tokens > 1, tokens == total)

    def strided(self, tokens: int, total: int) -> bool:
        """v of a long first chunk stays a transposed view in the cache, and so does every join."""
        return self.work.kv_cache == "cat" and self.shapes.kv_heads > 1 and self.first_chunk > 1

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

    def _attend(self, s: Script, step: Pass) -> list[str]:
        for tensor, size in PROJECTIONS.items():
            s.alloc(f"{tensor}_matmul", size)
            s.alloc(f"{tensor}_proj", size)
            s.free(f"{tensor}_matmul")
        for tensor, size in ROTATED.items():
            if step.many:
                s.alloc(f"{tensor}_copy", size)
            s.alloc(f"{tensor}_rope", size)
            if step.many:
                s.free(f"{tensor}_copy")
        held, v = ["q_rope", "q_proj", "k_proj"], "v_proj"
        if step.many and self.work.kv_cache != "cat":
            s.alloc("v_copy", "kv")
            if self.keeps_v:
                held.append("v_proj")
            else:
                s.free("v_proj")
            v = "v_copy"
        left = self._store(s, step.first, "k_rope", v)
        if self.work.kv_cache == "prealloc" and not self.keeps_stored:
            s.free(*reversed(left))
        else:
            held += left
        return held + self._attention(s, step)

    def _attention(self, s: Script, step: Pass) -> list[str]:
        """From q and the cache to `attention`; return what the function still holds then."""
        if self.work.attention == "fused":
            self._fused(s, step.two_passes)
            return ["attention"]
        held = self._repeat(s, step.strided)
        s.alloc("scores", "scores")
        s.alloc("scaled", "scores")
        s.free("scores")
        inner = ["scaled"]
        if step.many:
            s.alloc("masked", "scores")
            inner.append("masked")
        s.alloc(SOFTMAX, "scores")
        s.alloc("attention", "q")
        s.free(SOFTMAX, *inner)
        return ["attention", *held]

    def _mlp(self, s: Script) -> list[str]:
        s.alloc("gate", "inner")
        s.alloc("silu", "inner")
        s.free("gate")
        s.alloc("up", "inner")
        s.alloc("product", "inner")
        s.free("silu", "up")
        s.alloc("down", "hidden")
        s.free("product", "norm2")
        return ["down"]

    def _head(self, s: Script, many: bool) -> None:
        s.alloc("final_norm", "hidden")
        s.free("x")
        if many and self.work.attention == "naive":
            s.free("mask")
        s.alloc("logits", "vocab")
        s.free("final_norm")
