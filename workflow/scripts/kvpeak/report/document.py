"""The templates: Jinja that refuses undefined variables and escapes every value for Markdown."""

import functools
import shlex

import jinja2

from kvpeak.analysis.comparisons import PRACTICAL
from kvpeak.analysis.pooled import MIN_BLOCKS
from kvpeak.base.errors import UserError
from kvpeak.base.fields import split_texts
from kvpeak.base.numbers import percent
from kvpeak.base.text import plain
from kvpeak.report import markdown
from kvpeak.report.doubts import cell_path
from kvpeak.report.markdown import Markdown, code, number
from kvpeak.report.tables import SHOWN

TEMPLATES = "report/templates"
FOLD_FROM = 8  # rows of a table that is folded
MOST_CLAIMS = 12  # lines in finding.md; details.md has them all
MOST_DOUBTS = 3
MOST_MISSING = 10  # cells that failed, with their causes; the others are in the details


def rendered(template: str, values: dict, templates: str = TEMPLATES) -> str:
    """A document. Raises UserError, which names the template, where it cannot be made."""
    try:
        return environment(templates).get_template(template).render(values)
    except jinja2.TemplateError as error:
        raise UserError(f"{templates}/{template}: {error}") from None


@functools.cache  # it compiles each template once
def environment(templates: str = TEMPLATES) -> jinja2.Environment:
    """Jinja that refuses undefined variables and escapes every value for Markdown."""
    jinja = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        finalize=markdown.escape,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters |= {
        "code": code,
        "number": number,
        "times": markdown.times,
        "percent": percent,
        "listed": listed,
        "cell_path": cell_path,
        "picture": picture,
        "verbatim": verbatim,
        "texts": texts,
        "shell": shell,
    }
    jinja.globals |= {
        "table": markdown.table,
        "SHOWN": SHOWN,
        "PRACTICAL": PRACTICAL,
        "fold": markdown.fold,
        "link": markdown.link,
        "MIN_BLOCKS": MIN_BLOCKS,
        "FOLD_FROM": FOLD_FROM,
        "MOST_CLAIMS": MOST_CLAIMS,
        "MOST_DOUBTS": MOST_DOUBTS,
        "MOST_MISSING": MOST_MISSING,
    }
    return jinja


def listed(values) -> Markdown:
    """'a, b and c' in code marks."""
    *first, last = [code(value) for value in values]
    return Markdown(f"{', '.join(first)} and {last}" if first else last)


def picture(figure: dict) -> Markdown:
    """A drawn figure, its alt text escaped."""
    return Markdown(f"![{markdown.escape(figure['alt'])}](figures/{figure['file']})")


def texts(field: str | None) -> str | None:
    """The texts of a field that holds several, to be read."""
    return "; ".join(split_texts(field)) or None


def shell(value) -> Markdown:
    """One word of a command line inside a block of code."""
    return verbatim(shlex.quote(plain(str(value))))


def verbatim(value) -> Markdown:
    """One line inside a block of code, where nothing is markup."""
    return Markdown(plain(str(value)))
