"""The table of verdicts, results/checks.csv: made from the claims and the result tables, read, and
spelled.
"""

from collections import Counter
from dataclasses import asdict
from pathlib import Path

from kvpeak.analysis.claims import load_claims, planned_names, spell_absent
from kvpeak.analysis.judging import Check, evaluate
from kvpeak.analysis.results import read_results
from kvpeak.analysis.verdicts import OF_CLAIMS, Verdict
from kvpeak.base.columns import CHECKS
from kvpeak.base.errors import UserError
from kvpeak.base.tables import csv_text
from kvpeak.base.untrusted import read_csv


def check(expected: Path, plan: Path, summary: Path, runs: Path) -> tuple[list[Check], list[str]]:
    """The verdict of every claim, and a line for each name in them that the matrix does not have.

    Raises ConfigError for a mistake in expected.yaml, UserError for a table that cannot be read.
    """
    results = read_results(plan, summary, runs)
    claims = load_claims(expected, results.plan)
    absent = spell_absent(expected, claims, planned_names(results.plan))
    return [found for claim in claims for found in evaluate(claim, results)], absent


def checks_csv(checks: list[Check]) -> str:
    """The checks as CSV text."""
    return csv_text(CHECKS.names, map(asdict, checks))


def read_checks(path: Path) -> list[Check]:
    """The checks of a checks.csv. Raises OSError, and UserError for a file that is none."""
    try:
        return [
            Check(
                **row
                | {
                    "verdict": Verdict(row["verdict"]),
                    "groups": int(row["groups"]),
                    "held": int(row["held"]),
                }
            )
            for row in read_csv(path, CHECKS.names)
        ]
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: {error}; make it again: snakemake --cores 1") from None


def fails(checks: list[Check]) -> bool:
    """Whether one of the claims fails."""
    return any(check.verdict == Verdict.FAILS for check in checks)


def spelled(checks: list[Check]) -> str:
    """A count of the verdicts and a line for each claim that fails."""
    counts = Counter()
    for check in checks:
        counts[check.verdict] += check.groups
    lines = [", ".join(f"{counts[verdict]} {verdict}" for verdict in OF_CLAIMS)]
    for check in checks:
        if check.verdict == Verdict.FAILS:
            where = f" ({check.cells})" if check.cells else ""
            lines.append(f"fails: {check.claim}{where}: {check.detail}")
    return "\n".join(lines)
