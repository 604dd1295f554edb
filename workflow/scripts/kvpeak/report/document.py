"""The templates: Jinja that refuses undefined variables and escapes every value for Markdown."""

import jinja2

from kvpeak.analysis.comparisons import PRACTICAL
from kvpeak.analysis.statistics import MIN_OUTLIER_GROUP
from kvpeak.base.errors import UserError
from kvpeak.base.fields import split_texts
from kvpeak.base.numbers import percent
from kvpeak.report import markdown
from kvpeak.report.context import cell_path
from kvpeak.report.markdown import Markdown, code, number
from kvpeak.report.tables import SHOWN

TEMPLATES = "report/templates"
FAR_OFF_SHOWN = 12  # cells with a far-off run; the others are only counted


def rendered(template: str, values: dict, templates: str = TEMPLATES) -> str:
    """A document. Raises UserError, which names the template, where it cannot be made."""
    try:
        return environment(templates).get_template(template).render(values)
    except jinja2.TemplateError as error:
        raise UserError(f"{templates}/{template}: {error}") from None


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
    }
    jinja.globals |= {
        "table": markdown.table,
        "SHOWN": SHOWN,
        "FAR_OFF_SHOWN": FAR_OFF_SHOWN,
        "PRACTICAL": PRACTICAL,
        "MIN_OUTLIER_GROUP": MIN_OUTLIER_GROUP,
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


def verbatim(value) -> Markdown:
    """One line inside a block of code, where nothing is markup."""
    return Markdown(" ".join(str(value).split()))
