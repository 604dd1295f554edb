"""The claims of a finding: those that were judged with their figures, the others with a reason."""

from collections import Counter

from kvpeak.analysis.verdicts import Verdict
from kvpeak.report.markdown import Markdown

SHOWN_OF_CLAIM = 12  # figures of one claim
SIGNS = {
    Verdict.FAILS: "✗ **fails**",
    Verdict.NOT_TESTABLE: "? not testable",
    Verdict.HOLDS: "✓ holds",
}


def claims_section(checks: list[dict]) -> dict:
    """Judged claims with all their figures, those that fail first; the others by the reason why
    they were not measured.
    """
    judged, unmeasured = {}, {}
    for row in checks:
        if row["verdict"] == Verdict.NOT_MEASURED:
            unmeasured.setdefault(row["detail"], []).append(row)
        else:
            judged.setdefault(row["claim"], []).append(row)
    order = [Verdict.FAILS, Verdict.NOT_TESTABLE, Verdict.HOLDS]
    claims = sorted(judged.values(), key=lambda rows: min(order.index(r["verdict"]) for r in rows))
    return {
        "counts": claim_counts(judged, checks),
        "judged": [
            _judged_claim(number, rows, order) for number, rows in enumerate(claims, start=1)
        ],
        "not_measured": [
            {
                "reason": reason,
                "claims": [{"text": row["claim"], "groups": row["groups"]} for row in rows],
            }
            for reason, rows in unmeasured.items()
        ],
    }


def claim_counts(judged: dict[str, list[dict]], checks: list[dict]) -> dict[str, int]:
    """How many claims have each verdict; a claim has the worst of its verdicts here."""
    counts = Counter(
        next(
            v
            for v in (Verdict.FAILS, Verdict.NOT_TESTABLE, Verdict.HOLDS)
            if any(r["verdict"] == v for r in rows)
        )
        for rows in judged.values()
    )
    every = {row["claim"] for row in checks}
    return {v: counts[v] for v in (Verdict.FAILS, Verdict.NOT_TESTABLE, Verdict.HOLDS)} | {
        Verdict.NOT_MEASURED: len(every) - len(judged)
    }


def _judged_claim(number: int, rows: list[dict], order: list[str]) -> dict:
    rows = sorted(rows, key=lambda row: order.index(row["verdict"]))
    return {
        "number": number,
        "text": rows[0]["claim"],
        "source": rows[0]["source"],
        "left_out": len(rows[SHOWN_OF_CLAIM:]),
        "rows": [
            row | {"sign": Markdown(SIGNS[row["verdict"]]), "cells": row["cells"] or "all"}
            for row in rows[:SHOWN_OF_CLAIM]
        ],
    }
