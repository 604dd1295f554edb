"""What may be said of a claim or of a difference: one list for checks, comparisons and every text
about them.
"""

from enum import StrEnum


class Verdict(StrEnum):
    """A claim holds or fails; a speed is the same, faster or slower; the others say why neither is
    known.
    """

    FAILS = "fails"
    NOT_TESTABLE = "not testable"  # too few processes or lengths
    NOT_REPEATED = "does not repeat"  # runs of one cell gave different tokens
    HOLDS = "holds"
    NOT_MEASURED = "not measured here"
    SAME = "same within 5 %"
    FASTER = "faster"
    SLOWER = "slower"
    LOWER = "lower"
    HIGHER = "higher"
    UNCLEAR = "unclear"  # enough processes, which differ too much among themselves


# A claim's verdicts; the first that a group has decides for all of them together.
OF_CLAIMS = (
    Verdict.FAILS,
    Verdict.NOT_REPEATED,
    Verdict.NOT_TESTABLE,
    Verdict.HOLDS,
    Verdict.NOT_MEASURED,
)
