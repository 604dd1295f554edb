"""candle-transformers' quantized_qwen2.rs: quantised weights, float32 activations."""

from kvpeak.replay.family import PROJECTIONS, MaskOnce, Pass
from kvpeak.replay.script import SOFTMAX, Script


class QuantizedQwen2(MaskOnce):
    """Every name of its attention is shadowed, not dropped, so that all its tensors live to the
    end.

    It copies q, k and v after the transpose, so that cat and cat-contiguous are the same.
    """

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

    def _attend(self, s: Script, step: Pass) -> list[str]:
        held = []
        for made in ("matmul", "proj", *(["copy"] if step.many else [])):
            for tensor, size in PROJECTIONS.items():
                s.alloc(f"{tensor}_{made}", size)
                held.append(f"{tensor}_{made}")
        v = held.pop()
        s.alloc("q_rope", "q")
        s.alloc("k_rope", "kv")
        held += ["q_rope", *self._store(s, step.first, "k_rope", v)]
        return held + self._attention(s, step)

    def _attention(self, s: Script, step: Pass) -> list[str]:
        """From q and the cache to `attention`; returns what lives until after it."""
        if self.work.attention == "fused":
            self._fused(s, step.two_passes)
            return ["attention"]
        held = self._repeat(s, step.strided)
        s.alloc("scores", "scores")
        s.alloc("scaled", "scores")
        s.free("scores")
        held.append("scaled")
        if step.many:
            s.alloc("masked", "scores")
            held.append("masked")
        s.alloc(SOFTMAX, "scores")
        s.alloc("attention", "q")
        return ["attention", SOFTMAX, *held]

    def _mlp(self, s: Script) -> list[str]:
        for tensor in ("gate", "up", "silu", "product"):
            s.alloc(tensor, "inner")
        s.free("silu", "up")
        s.alloc("down", "hidden")
        s.free("product", "gate")
        return ["down", "norm2"]

    def _head(self, s: Script, many: bool) -> None:
        s.alloc("final_norm", "hidden")
        s.alloc("logits", "vocab_f32")
        s.free("final_norm", "x")
