"""The claims of a finding: a line each, and all their figures; the others by a reason."""

from collections import Counter

from kvpeak.analysis.verdicts import Verdict
from kvpeak.base.fields import split_texts
from kvpeak.report.markdown import Markdown, escape

SHOWN_OF_CLAIM = 12  # figures of one claim
SIGNS = {
    Verdict.FAILS: "✗ **fails**",
    Verdict.NOT_REPEATED: "∿ does not repeat",
    Verdict.NOT_TESTABLE: "? not testable",
    Verdict.HOLDS: "✓ holds",
}
ORDER = list(SIGNS)


def claims_section(checks: list[dict], models: list[str]) -> dict:
    """Judged claims with all their figures, those that fail first; the others by the reason why
    they were not measured. `models`: that of each cell of the finding.
    """
    judged, unmeasured = {}, {}
    for row in checks:
        if row["verdict"] in SIGNS:
            judged.setdefault(row["claim"], []).append(row)
        else:
            unmeasured.setdefault(row["detail"], []).append(row)
    claims = sorted(judged.values(), key=lambda rows: ORDER.index(worst(rows)))
    return {
        "counts": claim_counts(judged, checks),
        "lines": [claim_line(rows, models) for rows in claims],
        "judged": [_judged_claim(number, rows) for number, rows in enumerate(claims, start=1)],
        "not_measured": [
            {
                "reason": reason,
                "claims": [{"text": row["claim"], "groups": row["groups"]} for row in rows],
            }
            for reason, rows in unmeasured.items()
        ],
    }


def worst(rows: list[dict]) -> Verdict:
    """The verdict of a claim: the first of ORDER that one of its rows has."""
    return next(verdict for verdict in ORDER if any(row["verdict"] == verdict for row in rows))


def claim_counts(judged: dict[str, list[dict]], checks: list[dict]) -> dict[str, int]:
    """How many claims have each verdict; a claim has the worst of its verdicts here."""
    counts = Counter(map(worst, judged.values()))
    every = {row["claim"] for row in checks}
    return {verdict: counts[verdict] for verdict in ORDER} | {
        Verdict.NOT_MEASURED: len(every) - len(judged)
    }


def claim_line(rows: list[dict], models: list[str]) -> Markdown:
    """One claim in a line: its verdict, its sentence, of how many combinations of cells, how many
    of the finding's cells it was held against, and of which model, if that is one of several.
    """
    verdict = worst(rows)
    groups = sum(int(row["groups"]) for row in rows)
    found = sum(int(row["groups"]) for row in rows if row["verdict"] == verdict)
    count = f" ({found} of {groups})" if groups > 1 else ""
    held = sum(int(row.get("held") or 0) for row in rows)
    against = f" ({held:,}/{len(models):,} cells{_model(rows, models)})" if held else ""
    return Markdown(f"{SIGNS[verdict]}{count}: {escape(rows[0]['claim'])}{against}")


def _model(rows: list[dict], models: list[str]) -> str:
    """The one model of several that a claim was held against, where its words do not say it."""
    names = {
        name for row in rows for cell in split_texts(row["cells"]) for name in cell.split(", ")
    }
    held = names & set(models)
    if len(held) != 1 or len(set(models)) == 1 or (model := held.pop()) in rows[0]["claim"]:
        return ""
    return f", {escape(model)}"


def _judged_claim(number: int, rows: list[dict]) -> dict:
    rows = sorted(rows, key=lambda row: ORDER.index(Verdict(row["verdict"])))
    return {
        "number": number,
        "text": rows[0]["claim"],
        "source": rows[0]["source"],
        "left_out": len(rows[SHOWN_OF_CLAIM:]),
        "rows": [
            row
            | {
                "sign": Markdown(SIGNS[Verdict(row["verdict"])]),
                "cells": "; ".join(split_texts(row["cells"])) or "all",
            }
            for row in rows[:SHOWN_OF_CLAIM]
        ],
    }
