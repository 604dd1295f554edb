"""How memory grows with the prompt: polynomials in the number of tokens, and what a growing cache
leaves in a pool.
"""

from dataclasses import dataclass

import numpy as np

from kvpeak.analysis.statistics import t_quantile
from kvpeak.base.numbers import MIB

TERMS = {"1": 0, "T": 1, "T2": 2}  # the term's name → its power of T


@dataclass(frozen=True)
class Fit:
    """A least-squares polynomial in the number of tokens; MiB, MiB a token, MiB a token squared."""

    terms: tuple[str, ...]
    coefficients: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...] | None  # None: no more lengths than terms
    lengths: int

    def share(self, term: str, tokens: float) -> float:
        """The part of what grows at this length that one term makes up (1 = all of it).

        A constant, such as the weights, does not grow and competes with no law. Where the constant
        itself is asked for, the share is of the whole fitted value.
        """
        parts = {
            name: value * tokens ** TERMS[name]
            for name, value in zip(self.terms, self.coefficients, strict=True)
            if TERMS[name] or not TERMS[term]
        }
        whole = sum(parts.values())
        return parts[term] / whole if whole else 0.0


def fit_growth(tokens, mib, terms=("1", "T", "T2")) -> Fit | None:
    """Fit mib = a + bT + cT² (or the terms given) with 95 % intervals from Student's t.

    None if there are fewer different lengths than terms. Intervals need one more length than there
    are terms.
    """
    tokens, mib = np.asarray(tokens, float), np.asarray(mib, float)
    lengths, freedom = np.unique(tokens).size, tokens.size - len(terms)
    if lengths < len(terms):
        return None
    scale = tokens.max()  # powers of T/scale keep the normal equations well conditioned
    powers = np.array([TERMS[term] for term in terms])
    design = (tokens[:, None] / scale) ** powers
    solution, *_ = np.linalg.lstsq(design, mib)
    intervals = None
    if lengths > len(terms):
        variance = np.sum((mib - design @ solution) ** 2) / freedom
        error = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
        half = t_quantile(freedom) * error
        bounds = np.stack([solution - half, solution + half]) / scale**powers
        intervals = tuple((float(low), float(high)) for low, high in bounds.T)
    return Fit(tuple(terms), tuple(map(float, solution / scale**powers)), intervals, lengths)


def spell_fit(fit: Fit) -> str:
    """E.g. `T2: 0.000677 (0.000666 to 0.000688) MiB`, term by term."""
    return "; ".join(
        f"{term}: {value:.3g} ({low:.3g} to {high:.3g})"
        for term, value, (low, high) in zip(fit.terms, fit.coefficients, fit.intervals, strict=True)
    )


def pool_growth_mib(kv_bytes_per_token: int, prompt_tokens: int, generated_tokens: int) -> float:
    """The MiB that growing KV tensors leave in a pool which never finds a freed one large enough.

    Each of the generated − 1 decode steps i writes new tensors one token longer and frees those of
    T + i tokens, T being the prompt's: the sum over i of kv_bytes_per_token · (T + i). This holds
    where sizes are not rounded: MLX's CPU allocator. On Metal and CUDA sizes above a page are
    rounded up to 16 KiB, so that tensors of neighbouring lengths share a size.
    """
    steps = max(generated_tokens - 1, 0)
    return kv_bytes_per_token * (steps * prompt_tokens + steps * (steps - 1) // 2) / MIB
