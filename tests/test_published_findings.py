"""What the published findings hold, rendered again: one page of at most so many words, all links
good.
"""

import shutil
from pathlib import Path

import pytest

from kvpeak.base.program import main
from kvpeak.commands import plot, render

ROOT = Path(__file__).parents[1]
FINDINGS = sorted(path.parent for path in (ROOT / "docs/findings").glob("*/config"))
MOST_WORDS = 1200


@pytest.mark.slow
@pytest.mark.parametrize("finding", FINDINGS, ids=lambda path: path.name)
def test_a_published_finding_is_one_page(finding, tmp_path, monkeypatch):
    """Its results, as they were published, give a finding of three minutes."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "config", "config")
    shutil.copytree(finding / "config", "config", dirs_exist_ok=True)
    shutil.copytree(finding / "results", "results")
    shutil.rmtree("results/replay", ignore_errors=True)  # its tables belong to their own version
    (tmp_path / "prompts").symlink_to(ROOT / "prompts")
    (tmp_path / "report").mkdir()
    (tmp_path / "report/templates").symlink_to(ROOT / "report/templates")
    assert main(plot, []) == 0
    assert main(render, []) == 0
    text = Path("report/finding.md").read_text(encoding="utf-8")
    assert len(text.split()) <= MOST_WORDS
    assert len(Path("report/details.md").read_text(encoding="utf-8")) > len(text)
