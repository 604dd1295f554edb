"""Judge the claims of config/expected.yaml by the result tables: results/checks.csv.

Failing claims are listed. They make the program fail only with --read, which judges nothing and
reads the checks.
"""

import sys
from pathlib import Path

from kvpeak.analysis.checks import check, checks_csv, fails, read_checks, spelled
from kvpeak.base.files import write_together


def arguments(parser) -> None:
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


def run(given) -> int:
    if given.read:
        checks = read_checks(given.read)
    else:
        checks, absent = check(given.expected, given.plan, given.summary, given.runs)
        for line in absent:
            print(line, file=sys.stderr)
        write_together(given.out.parent, {given.out.name: checks_csv(checks)})
    print(spelled(checks))
    return int(bool(given.read) and fails(checks))
