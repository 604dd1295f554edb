"""The page: self-contained, linked, and looked at in a real browser, with scripts and without."""

import re
import shutil
from pathlib import Path

import pytest
from conftest import html_of

from kvpeak.base.errors import UserError
from kvpeak.base.program import main
from kvpeak.commands import page as command
from kvpeak.report.page import datatables, title_of
from kvpeak.report.page_charts import charts
from kvpeak.report.page_data import links_of
from kvpeak.report.page_links import Links, rows_of, rows_of_texts
from kvpeak.report.page_text import slug

ROOT = Path(__file__).parents[1]
FINDING = ROOT / "docs/findings/cpu-2026-12-01"
MOST_BYTES = 3 << 20
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
no_browser = pytest.mark.skipif(not CHROMIUM, reason="no chromium here (Debian: chromium)")


def browser_here(test):
    """A test that opens the page in a real browser."""
    return pytest.mark.slow(no_browser(test))


CELLS = [
    {
        "commit": "a",
        "model": "tiny",
        "prompt": "p-512",
        "kv_cache": cache,
        "cap": cap,
        "variant": "default",
        "prompt_tokens": "513",
        "peak_mib": peak,
        "decode_tok_s": "81.94",
    }
    for cache, cap, peak in (
        ("cat", "none", "660.12"),
        ("cat", "32MiB", "104.4"),
        ("prealloc", "none", "80.6"),
        ("prealloc", "32MiB", "80.7"),
    )
]
LINKS = Links(rows_of("summary", CELLS), {"513 tokens": "p-512"})


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The page of the published finding from a CPU."""
    out = tmp_path_factory.mktemp("page") / "finding.html"
    finding, results = FINDING / "finding.md", FINDING / "results"
    given = ["--finding", str(finding), "--results", str(results), "--out", str(out)]
    assert main(command, given) == 0
    return out


def test_the_page_needs_no_network_and_is_small(made):
    text = made.read_text(encoding="utf-8")
    assert len(text.encode()) <= MOST_BYTES
    document = re.sub(r"(<script[^>]*>).*?</script>", r"\1", text, flags=re.DOTALL)
    sources = re.findall(
        r"""<(?:img|script|link|iframe)\b[^>]* (?:src|href)=["']([^"']+)""", document
    )
    assert sources
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert not re.search(r"@import|url\((?!['\"]?data:)", text[: text.index("</style>")])


def test_every_link_inside_the_page_has_its_target(made):
    text = made.read_text(encoding="utf-8")
    body = text[: text.index('<script type="application/json"')]
    ids = set(re.findall(r' id="([^"]+)"', body))
    targets = set(re.findall(r'href="#([^"]+)"', body))
    assert len(targets) > 50
    assert len(re.findall(r' id="([^"]+)"', body)) == len(ids)
    assert targets <= ids


def test_the_page_holds_the_finding_s_words_and_every_row_of_its_tables(made):
    text = made.read_text(encoding="utf-8")
    assert '<h2 id="what-this-does-not-prove">' in text
    rows = (FINDING / "results/summary.csv").read_text().count("\n") - 1
    assert len(re.findall(r'<tr id="summary-\d+">', text)) == rows


def linked(markdown: str, tmp_path: Path) -> dict[str, str]:
    """number → the anchor that it is linked to."""
    shown = html_of(markdown, tmp_path, LINKS)
    return {text: anchor for anchor, text in re.findall(r'href="#([^"]+)">([\d.,]+)</a>', shown)}


def test_a_number_of_a_table_leads_to_the_row_that_holds_it(tmp_path):
    table = """## Cap: `none` → `32MiB`

| kv cache | before | after | ratio | decode |
| --- | --: | --: | --: | --: |
| `cat` | 660 | 104 | 0.16× | 81.9 |
| `prealloc` | 81 | 80.7 | 1.00× | – |
"""
    found = linked(table, tmp_path)
    assert found["660"] == "summary-2"
    assert found["104"] == "summary-3"
    assert found["80.7"] == "summary-5"
    assert not {"0.16", "1.00"} & found.keys()
    assert "81" not in found  # two rows of prealloc hold it
    assert "81.9" not in found


def test_a_cap_in_words_is_a_name(tmp_path):
    """81.94 is the speed of all four; with its cap in words a row is one."""
    tables = {"summary.csv": CELLS}
    shown = html_of("| tiny, cat, no cap | 81.94 |\n|---|---|\n", tmp_path, links_of(tables))
    assert re.findall(r'href="#([^"]+)"', shown) == ["summary-2"]


def test_a_number_of_two_digits_has_no_link(tmp_path):
    """81 MiB is the peak of one cell, and may be anything else."""
    assert linked("With tiny, prealloc and a cap of 32MiB on 513 tokens of a: 81.", tmp_path) == {}


def test_a_number_of_a_sentence_needs_all_names_of_its_row(tmp_path):
    said = "With a cap of 32MiB, tiny with cat on 513 tokens of a peaks at 104 MiB instead of 660."
    assert linked(said, tmp_path) == {"104": "summary-3", "660": "summary-2"}
    assert linked("Something peaks at 660 MiB.", tmp_path) == {}
    assert linked("With tiny and prealloc on 513 tokens of a: 660 MiB.", tmp_path) == {}


def test_what_no_cell_s_row_holds_leads_to_its_process_or_its_claim(tmp_path):
    """660 is the cell's own, 651 one of its processes', 2.27 of a claim about two cells."""
    process = CELLS[0] | {"peak_mib": "651.2", "round": "2"}
    claim = {"cells": "tiny, p-512", "detail": "660.0 (cat) to 290.7 (prealloc) = 2.27; at least 2"}
    more = [*rows_of("processes", [process]), *rows_of_texts("checks", [claim], tuple(claim))]
    links = Links(LINKS.rows, {}, more)
    table = """| cell | peak | of one | ratio |
| --- | --: | --: | --: |
| `cat` `none` | 660 | 651 | 1.01 |
| tiny, p-512: 660.0 (cat) to 290.7 (prealloc) = 2.27 | | | |
"""
    shown = html_of(table, tmp_path, links)
    found = dict(re.findall(r'href="#([^"]+)">([\d.,]+)</a>', shown))
    assert found == {"summary-2": "660", "processes-2": "651", "checks-2": "2.27"}


def test_a_row_that_is_one_of_a_csv_s_is_linked_as_a_whole(tmp_path):
    links = Links(rows_of("replay-fit", [{"mib": "190.7", "error": "2.894"}], names=()))
    shown = html_of("| a | b |\n|---|---|\n| 190.7 | 2.9 % |\n", tmp_path, links)
    assert shown.count('href="#replay-fit-2"') == 2


def test_texts_of_others_stay_texts(tmp_path):
    shown = html_of("<script>alert(1)</script> & `<b>` 660", tmp_path, LINKS)
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    found = charts(
        [
            CELLS[0]
            | {
                "cell": "</script><script>alert(1)",
                "tokens": 1,
                "peak": 1.0,
                "processes": "",
                "outcome": "ok",
                "line": 2,
                "timeline": [],
            }
        ]
    )
    assert found["vconcat"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("../.ssh/key.svg", "leads out of"),
        ("link.svg", "leads out of"),
        ("../results/link.svg", "leads out of"),
        ("notes.txt", "expected a picture"),
    ],
)
def test_a_picture_lies_in_the_findings_folder_or_below_the_results(tmp_path, source, said):
    report, results, home = (tmp_path / name for name in ("report", "results", ".ssh"))
    for folder in (report, results, home):
        folder.mkdir()
    (home / "key.svg").write_text("secret")
    (report / "notes.txt").write_text("secret")
    (results / "drawn.svg").write_text("<svg/>")
    for folder in (report, results):
        (folder / "link.svg").symlink_to(home / "key.svg")
    assert "data:image" in html_of("![](../results/drawn.svg)", report, LINKS, results=results)
    with pytest.raises(UserError, match=said):
        html_of(f"![x]({source})", report, LINKS, results=results)


def test_two_documents_on_one_page_share_no_anchor_and_link_to_one_another(tmp_path):
    documents = ("finding.md", "details.md")
    first = html_of(
        "## Claims\n[all](details.md#claims)", tmp_path, LINKS, *documents[:1], documents
    )
    second = html_of(
        "## Claims\n[here](#claims) [up](finding.md#claims)",
        tmp_path,
        LINKS,
        *documents[1:],
        documents,
    )
    assert '<h2 id="claims">' in first
    assert 'href="#detailsmd-claims"' in first
    assert '<h2 id="detailsmd-claims">' in second
    assert 'href="#detailsmd-claims">here' in second
    assert 'href="#claims">up' in second


def test_a_fold_is_a_fold_and_other_html_is_text(tmp_path):
    shown = html_of(
        "<details>\n<summary>More &amp; more</summary>\n\n<b>x</b>\n\n</details>", tmp_path, LINKS
    )
    assert "<details>" in shown
    assert "<summary>More &amp; more</summary>" in shown
    assert "</details>" in shown
    assert "<b>" not in shown


def test_headings_have_the_anchors_of_github():
    assert slug("Cap: `none` → `32MiB`") == "cap-none--32mib"
    assert title_of("text\n# From mlx\\_a to b\n") == "From mlx_a to b"


def test_a_finding_of_workloads_alone_is_drawn_by_prompt():
    cell = CELLS[0] | {"cell": "c", "peak": 1.0, "timeline": []}
    drawn = {tokens: charts([cell | {"tokens": tokens}])["vconcat"][0] for tokens in (513, None)}
    fields = {tokens: part["encoding"]["x"]["field"] for tokens, part in drawn.items()}
    assert fields == {513: "tokens", None: "prompt"}
    assert drawn[None]["title"] == "Peak memory by prompt"


def test_without_cells_there_are_no_charts():
    assert charts([]) is None


def test_the_tables_library_is_one_module_with_a_global():
    text = datatables()
    assert "window.DataTable = " in text
    assert "export{" not in text


def opened(chromium, path: Path, width: int, **options):
    """The page in a browser of that width, and what its console said."""
    context = chromium.new_context(
        viewport={"width": width, "height": 900}, offline=True, **options
    )
    shown, said = context.new_page(), []
    shown.on("console", lambda message: said.append(message.text))
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.goto(path.as_uri())
    return shown, said


@pytest.fixture(scope="module")
def chromium():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@browser_here
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_a_browser_has_no_error_and_nothing_that_axe_finds(
    made, chromium, width, scheme
):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    shown, said = opened(chromium, made, width, color_scheme=scheme)
    shown.wait_for_selector("#chart svg")
    shown.wait_for_selector(".dt-container")
    assert said == []
    assert shown.evaluate("document.documentElement.scrollWidth") == width
    found = axe.run(shown).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found] == []


@browser_here
def test_without_scripts_text_figures_and_tables_are_there(made, chromium):
    shown, _ = opened(chromium, made, 1280, java_script_enabled=False)
    assert shown.locator("article img").count() > 5
    assert shown.locator("#tables tr[id]").count() > 100
    assert shown.locator("noscript").is_visible()


@browser_here
def test_a_link_opens_the_table_and_shows_the_row(made, chromium):
    shown, _ = opened(chromium, made, 1280)
    shown.wait_for_selector(".dt-container")
    link = shown.locator("a.figure[href^='#replay-']").first
    anchor = link.get_attribute("href")
    assert not shown.locator(anchor).is_visible()
    link.click()
    shown.locator(anchor).wait_for(state="visible")


@browser_here
def test_tables_sort_and_filter(made, chromium):
    expect = pytest.importorskip("playwright.sync_api").expect
    shown, _ = opened(chromium, made, 1280)
    shown.wait_for_selector(".dt-container")
    rows, every = shown.locator("#summary tbody tr"), shown.locator("#summary tbody tr").count()
    search, line = shown.get_by_label("Search").first, shown.locator("#summary th").first
    search.fill("prealloc")
    expect(rows).not_to_have_count(every)
    expect(rows.first).to_contain_text("prealloc")
    search.fill("")
    expect(rows).to_have_count(every)
    line.click()
    expect(line).to_have_attribute("aria-sort", "ascending")
    line.click()
    expect(line).to_have_attribute("aria-sort", "descending")
    expect(rows.first.locator("td").first).to_have_text(str(every + 1))


@browser_here
def test_choosing_a_cache_leaves_its_points_and_a_point_shows_its_processes(made, chromium):
    shown, _ = opened(chromium, made, 1280)
    points = shown.locator("#chart .mark-symbol.role-mark path[aria-label*='prompt tokens']")
    points.first.wait_for()
    every = points.count()
    shown.locator("#choices").get_by_label("KV cache").select_option(label="prealloc")
    shown.wait_for_function(
        "n => document.querySelectorAll(\"#chart .role-mark path[aria-label*='prompt "
        "tokens']\").length < n",
        arg=every,
    )
    points.last.hover(force=True)
    shown.locator("#vg-tooltip-element.visible").wait_for()
    said = shown.locator("#vg-tooltip-element").inner_text()
    assert "prealloc" in said
    assert "its processes' peaks" in said


def test_a_finding_that_is_not_there_is_one_line(tmp_path, capsys):
    assert main(command, ["--finding", str(tmp_path / "no.md")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no.md" in said
