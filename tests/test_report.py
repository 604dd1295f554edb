"""The HTML report of Snakemake: opened in a real browser, every figure and table shown."""

import base64
import html
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no chromium here (Debian: chromium)"),
]

# Opens each category, each figure in it, and notes what the browser shows; its answer ends up in
# the document.
VISIT = """
<script>
const pause = () => new Promise(resolve => setTimeout(resolve, 300));
const links = () => [...document.querySelectorAll("#app a")];
const link = text => links().find(a => a.textContent.trim() === text);
(async () => {
  const seen = {figures: {}, rows: {}};
  await pause();
  for (const category of ["Figures", "Finding", "Tables"]) {
    link(category).click();
    await pause();
    const count = document.querySelectorAll("#app tbody tr").length;
    seen.rows[category] = count;
    for (let row = 0; category === "Figures" && row < count; row++) {
      const line = document.querySelectorAll("#app tbody tr")[row];
      line.querySelector("a[iconname=eye]").click();
      await pause();
      const shown = [...document.querySelectorAll("#app img")].pop();
      const box = shown.getBoundingClientRect();
      const name = line.querySelector("td").textContent;
      seen.figures[name] = [shown.naturalWidth, box.width, box.height];
    }
    link("Results").click();
    await pause();
  }
  return seen;
})().catch(error => ({error: String(error)})).then(seen => {
  const answer = document.createElement("pre");
  answer.id = "seen";
  answer.textContent = JSON.stringify(seen);
  document.body.appendChild(answer);
});
</script>
"""


def chromium(*arguments) -> subprocess.CompletedProcess:
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=True
    )


def visit(report: Path) -> dict:
    """What the browser shows when it goes through the report."""
    page = report.read_text(encoding="utf-8")
    end = page.rindex("</body>")
    visited = report.with_name("visited.html")
    visited.write_text(page[:end] + VISIT + page[end:], encoding="utf-8")
    shown = chromium("--virtual-time-budget=30000", "--dump-dom", visited.as_uri()).stdout
    return json.loads(html.unescape(re.search(r'<pre id="seen">(.*?)</pre>', shown, re.S)[1]))


def test_every_figure_and_table_can_be_opened(measured):
    assert measured.snakemake("--report", "report.html").returncode == 0
    seen = visit(measured.folder / "report.html")
    assert "error" not in seen, seen
    drawn = {path.stem for path in (measured.folder / "report/figures").glob("*.svg")}
    assert set(seen["figures"]) == drawn
    assert all(size > 50 for sizes in seen["figures"].values() for size in sizes), seen
    assert seen["rows"] == {"Figures": len(drawn), "Finding": 1, "Tables": 6}


def test_every_figure_of_the_document_is_drawn_by_a_browser(measured, tmp_path):
    """A screenshot of each SVG by itself has more than one colour in every quarter."""
    for figure in sorted((measured.folder / "report/figures").glob("*.svg")):
        picture = tmp_path / f"{figure.stem}.png"
        text = figure.read_text(encoding="utf-8")
        width, height = (
            float(v) for v in re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text).groups()
        )
        encoded = base64.b64encode(text.encode()).decode()
        page = tmp_path / "page.html"
        page.write_text(
            f'<body style="margin:0"><img width="{width:.0f}" '
            f'src="data:image/svg+xml;base64,{encoded}">'
        )
        size = f"--window-size={width:.0f},{height:.0f}"
        chromium(size, f"--screenshot={picture}", page.as_uri())
        with Image.open(picture) as opened:
            shown = opened.convert("L")
        right, bottom = shown.width // 2, shown.height // 2
        for left, top in itertools.product((0, right), (0, bottom)):
            quarter = shown.crop((left, top, left + right, top + bottom))
            assert len(quarter.getcolors()) > 1, figure.name
