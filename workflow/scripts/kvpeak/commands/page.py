"""Make the finding one page that needs no network.

The text of finding.md and details.md, figures and charts, and the tables that they were made
from, in one HTML file.
"""

import argparse
from pathlib import Path

from kvpeak.base.errors import UserError
from kvpeak.base.files import write_together
from kvpeak.base.layout import FINDING, RESULTS
from kvpeak.report.page import page


def arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--finding", type=Path, default=FINDING, help="default: %(default)s")
    option("--results", type=Path, default=RESULTS, help="default: %(default)s")
    option("--out", type=Path, help="default: the finding's name with .html")


def run(given: argparse.Namespace) -> None:
    for folder, own in ((given.finding.parent, FINDING.parent), (given.results, RESULTS)):
        if folder != own and folder.is_symlink():  # a stranger's may lead to mine
            raise UserError(f"{folder}: a link; expected a folder; remove it, or name its target")
    out = given.out or given.finding.with_suffix(".html")
    write_together(out.parent, {out.name: page(given.finding, given.results)})
