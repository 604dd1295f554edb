"""candle-transformers' llama.rs: its attention casts q, k and v to float32."""

from kvpeak.replay.family import PROJECTIONS, ROTATED, MaskOnce, Pass
from kvpeak.replay.script import SOFTMAX, Script


class Llama(MaskOnce):
    """Its own cache is cat. After the first join it copies a strided v, so that the cache is
    contiguous from then on. The mask is built in the first layer, which here comes before it:
    uploads never reuse a buffer.
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

    def _attend(self, s: Script, step: Pass) -> list[str]:
        held = ["q_proj", "k_proj"]
        for tensor, size in PROJECTIONS.items():
            s.alloc(f"{tensor}_proj", size)
        for tensor, size in ROTATED.items() if step.many else ():
            s.alloc(f"{tensor}_copy", size)
            held.append(f"{tensor}_copy")
        v = "v_proj"
        if step.many and self.work.kv_cache != "cat":
            s.alloc("v_copy", "kv")
            held.append("v_proj")
            v = "v_copy"
        s.alloc("q_rope", "q")
        s.alloc("k_rope", "kv")
        held += ["q_rope", *self._store_joined(s, step, v)]
        return held + self._attention(s, step)

    def _store_joined(self, s: Script, step: Pass, v: str) -> list[str]:
        """As in the other models, but a strided join is copied before it goes into the cache."""
        if step.first or not step.strided:
            return self._store(s, step.first, "k_rope", v)
        s.alloc("k_cat", "cache")
        s.free("k_rope")
        s.alloc("v_joined", "cache")
        s.alloc("v_cat", "cache")
        s.free("v_joined", "k_cache", "v_cache")
        s.rename("k_cat", "k_cache")
        s.rename("v_cat", "v_cache")
        return [v]

    def _attention(self, s: Script, step: Pass) -> list[str]:
        """From q and the cache to `attention`; returns what the function still holds then."""
        if self.work.attention == "fused":
            self._fused(s, step.two_passes)
            return ["attention"]
        held = self._repeat(s, step.first and step.strided)
        if self.shapes.itemsize != 4:
            s.alloc("q_f32", "q_f32")
            s.alloc("k_f32", "repeated_f32")
            s.alloc("v_f32", "repeated_f32")
        s.alloc("scores", "scores_f32")
        s.alloc("scaled", "scores_f32")
        s.free("scores")
        inner = ["scaled"]
        if step.many:
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

    def _mlp(self, s: Script) -> list[str]:
        for tensor in ("gate", "silu", "up", "product"):
            s.alloc(tensor, "inner")
        s.free("silu", "up", "gate")
        s.alloc("down", "hidden")
        s.free("product")
        return ["down", "norm2"]

    def _head(self, s: Script, many: bool) -> None:
        s.alloc("final_norm", "hidden")
        s.alloc("logits_typed", "vocab")
        self._cast(s, "logits_typed", "logits", "vocab_f32")
        s.free("final_norm", "x")
