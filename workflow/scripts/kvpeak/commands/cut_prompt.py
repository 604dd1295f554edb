"""Cut a corpus to an exact number of a model's tokens and write them as JSON."""

from pathlib import Path

from kvpeak.base.files import write_json
from kvpeak.inputs.prompts import prompt_record


def arguments(parser) -> None:
    parser.add_argument("--corpus", type=Path, required=True, help="text file, UTF-8")
    parser.add_argument("--model-folder", type=Path, required=True, help="models/NAME")
    parser.add_argument("--tokens", type=int, required=True, help="how many, exactly")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")


def run(given) -> None:
    write_json(given.out, prompt_record(given.corpus, given.model_folder, given.tokens))
