"""The finding as one page: text, figures, charts and tables in a file that needs no network."""

import json
import re
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup

from kvpeak.analysis.results import read_results
from kvpeak.base.errors import UserError
from kvpeak.base.files import inside
from kvpeak.base.layout import PLAN, RUNS, SUMMARY
from kvpeak.base.shipped import shipped
from kvpeak.base.untrusted import MOST_DOCUMENT, Root, open_root, read_text
from kvpeak.report.page_charts import charts
from kvpeak.report.page_data import cells, data_tables, links_of, read_tables
from kvpeak.report.page_text import slug, to_html

TEMPLATES = "report/templates"
DETAILS = "details.md"  # beside the finding, where there is one


def page(finding: Path, results: Path, templates: Path | None = None) -> str:
    """The HTML of the page of `finding` (report/finding.md) and of the tables in `results`.

    Raises UserError for a table or picture that cannot be read.
    """
    templates = templates or shipped(TEMPLATES)
    with open_root(finding.parent.resolve()) as folder:  # once: others may change what is there
        names = (finding.name, *([DETAILS] if (folder.path / DETAILS).exists() else []))
        texts = {
            name: read_text(inside(folder.path, name), MOST_DOCUMENT, folder) for name in names
        }
        try:
            with open_root(results.resolve()) as measured:
                return _page(texts, folder, measured, templates)
        except FileNotFoundError:
            raise UserError(f"{results}: no such folder; make it: snakemake --cores 1") from None


def _page(texts: dict[str, str], folder: Root, results: Root, templates: Path) -> str:
    """The page of the documents by name, the finding first, whose pictures lie in `folder`."""
    documents = tuple(texts)
    measured = read_results(
        *(results.path / path.name for path in (PLAN, SUMMARY, RUNS)), root=results
    )
    tables = read_tables(results)
    links = links_of(tables)
    shown = {
        slug(name): Markup(to_html(text, folder, links, name, documents, results))
        for name, text in texts.items()
    }
    specification = charts(cells(measured, results))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        title=title_of(texts[documents[0]]),
        texts=shown,
        tables=data_tables(tables),
        charts=Markup(_as_json(specification)) if specification else None,
        style=Markup(read_text(templates / "page.css")),
        script=Markup(read_text(templates / "page.js")),
        vega=Markup(_in_script(vega())),
        datatables=Markup(_in_script(datatables())),
        datatables_style=Markup(datatables_style()),
    )


def title_of(markdown: str) -> str:
    """The finding's first heading."""
    heading = next((line for line in markdown.splitlines() if line.startswith("# ")), "# kvpeak")
    return heading.removeprefix("# ").replace("\\", "")


def _as_json(value: object) -> str:
    """JSON that can stand in a script element, whatever texts it holds."""
    return json.dumps(value).replace("<", "\\u003c")


def _in_script(code: str) -> str:
    """Code that cannot end the script element that it stands in."""
    return re.sub(r"<(?=/?script)", r"<\\", code, flags=re.IGNORECASE)


@cache
def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, out of vl-convert's own copy."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


@cache
def datatables() -> str:
    """DataTables as one module, out of ITables' own copy; its exports become one global."""
    text = _itables("html/dt_bundle.js")
    start = text.rindex("export{")
    end = text.index("}", start) + 1
    exported = dict(
        reversed(each.split(" as ")) for each in text[start + len("export{") : end - 1].split(",")
    )
    return f"{text[:start]}window.DataTable = {exported['default']};\n{text[end:].lstrip(';')}"


def datatables_style() -> str:
    return _itables("html/dt_bundle.css")


def _itables(name: str) -> str:
    import itables

    return read_text(Path(itables.__file__).parent / name)
