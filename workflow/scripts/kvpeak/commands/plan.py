"""Say which cells run here, why others do not, and what would start.

Nothing of the matrix is started, built or installed. Read the list before you run a matrix of
somebody else's.
"""

import argparse
import json
from pathlib import Path

from kvpeak.base.axes import Cell
from kvpeak.base.errors import UserError
from kvpeak.base.files import write_together
from kvpeak.base.layout import model_folder, prompt_file
from kvpeak.base.made import FAILED
from kvpeak.commands.cut_prompt import limited
from kvpeak.experiment.matrix import Matrix, load_matrix
from kvpeak.experiment.plan import executed, plan_csv, plan_summary, read_of, told
from kvpeak.experiment.preparation import needs
from kvpeak.experiment.workloads import longest
from kvpeak.inputs.prompts import check_prompt


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--matrix", type=Path, default=Path("config/matrix.yaml"), help="default: %(default)s"
    )
    parser.add_argument(
        "--out", type=Path, help="the plan as CSV (default: only the summary is shown)"
    )
    parser.add_argument(
        "--measured",
        action="store_true",
        help="count a cell that has a result as one that runs here, wherever it was measured",
    )
    parser.add_argument(
        "--request",
        metavar="CELL",
        help="print what the engine of one cell (its path below results/cells/) is asked, as JSON",
    )


def run(given: argparse.Namespace) -> None:
    matrix = load_matrix(given.matrix, given.measured)
    if given.request:
        cell = matrix.cell(given.request)
        said = told(matrix, cell)
        if not said["not_made"] and (wrong := wrong_prompt(matrix, cell)):
            said["not_made"] = [FAILED, wrong]
        print(json.dumps(said, indent=1))
        return
    if given.out:
        write_together(given.out.parent, {given.out.name: plan_csv(matrix)})
    print(plan_summary(matrix))
    print(read_of(matrix))
    if brought := executed(matrix):
        print("It brings to be executed:", *brought, sep="\n  ")
    else:
        print("It brings no program and no package of its own.")


def wrong_prompt(matrix: Matrix, cell: Cell) -> str:
    """Why the prompt that is there for the cell is not the one that the matrix asks for, or ''."""
    file, entry = prompt_file(cell.model, cell.prompt), matrix.prompts[cell.prompt]
    if not file.exists() or file not in (need.made for need in needs(matrix, cell)):
        return ""
    corpus, folder = Path(entry["corpus"]), model_folder(cell.model)
    try:
        with limited():
            most = longest(entry, matrix.generate(cell.model))
            check_prompt(file, corpus, folder, entry["tokens"], most)
    except UserError as error:
        return str(error)
    return ""
