"""Judge the claims of config/expected.yaml by the result tables: results/checks.csv.

Failing claims are listed; they make the program fail only with --read, which judges nothing and reads the checks.
"""

import argparse
import csv
import io
import sys
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path

from kvpeak.analysis.claims import (
    FAILS,
    VERDICTS,
    Verdict,
    evaluate,
    load_claims,
    planned_names,
    spell_absent,
)
from kvpeak.analysis.results import read_results
from kvpeak.base.files import write_together
from kvpeak.experiment.config_file import ConfigError

COLUMNS = tuple(field.name for field in fields(Verdict))


def check(expected: Path, plan: Path, summary: Path, runs: Path) -> list[Verdict]:
    """The verdict of every claim. Raises ConfigError for a mistake in expected.yaml.

    A name that is not in the matrix is a line on standard error.
    """
    results = read_results(plan, summary, runs)
    claims = load_claims(expected, results.plan)
    for line in spell_absent(expected, claims, planned_names(results.plan)):
        print(line, file=sys.stderr)
    return [verdict for claim in claims for verdict in evaluate(claim, results)]


def checks_csv(verdicts: list[Verdict]) -> str:
    """The verdicts as CSV text."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(verdict) for verdict in verdicts)
    return text.getvalue()


def read_checks(path: Path) -> list[Verdict]:
    """The verdicts of a checks.csv."""
    with path.open(newline="", encoding="utf-8") as file:
        return [Verdict(**row | {"groups": int(row["groups"])}) for row in csv.DictReader(file)]


def report(verdicts: list[Verdict]) -> str:
    """A count of the verdicts and a line for each claim that fails."""
    counts = Counter()
    for verdict in verdicts:
        counts[verdict.verdict] += verdict.groups
    lines = [", ".join(f"{counts[name]} {name}" for name in VERDICTS)]
    for verdict in verdicts:
        if verdict.verdict == FAILS:
            where = f" ({verdict.cells})" if verdict.cells else ""
            lines.append(f"fails: {verdict.claim}{where}: {verdict.detail}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, where in {
        "expected": "config/expected.yaml",
        "plan": "results/plan.csv",
        "summary": "results/summary.csv",
        "runs": "results/runs.csv",
        "out": "results/checks.csv",
    }.items():
        parser.add_argument(
            f"--{name}", type=Path, default=Path(where), help="default: %(default)s"
        )
    parser.add_argument("--read", type=Path, metavar="CHECKS", help="exit 1 if one of these fails")
    arguments = parser.parse_args()
    try:
        if arguments.read:
            verdicts = read_checks(arguments.read)
        else:
            verdicts = check(arguments.expected, arguments.plan, arguments.summary, arguments.runs)
            write_together(arguments.out.parent, {arguments.out.name: checks_csv(verdicts)})
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename}: {error.strerror}; make it: snakemake --cores 1", file=sys.stderr)
        return 1
    print(report(verdicts))
    return int(bool(arguments.read) and any(verdict.verdict == FAILS for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
