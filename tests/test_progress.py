"""The progress lines fit a terminal of 80 columns."""

from kvpeak.protocol.events import Conversation
from kvpeak.runner.progress import Progress, figures
from kvpeak.runner.watched import Watched


def test_the_longest_usual_line_fits_in_80_columns():
    watched = Watched(Conversation(1, 3))
    run = {
        "event": "run",
        "prompt_tokens": 4097,
        "prefill_s": 0.04,
        "generated_tokens": 128,
        "decode_s": 0.1,
    }
    watched.conversation.runs.append(run)
    line = figures("cell 10000 of 10000  prefill-3", watched, 14848.4)
    assert line.endswith("14848 MiB  prefill 102425.0, decode 1270.0 tok/s")
    assert len(line) <= 80


def test_without_a_position_a_line_is_about_the_cell(capsys, tmp_path):
    progress = Progress("a/b/r1", None)
    progress.start(tmp_path)
    assert capsys.readouterr().err == "cell: a/b/r1\n"
    assert (tmp_path / "runner.log").read_text() == "cell: a/b/r1\n"
