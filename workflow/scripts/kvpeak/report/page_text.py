"""The finding's Markdown as HTML for the page: headings with anchors, pictures inside, numbers
linked.
"""

import base64
import functools
import html
import itertools
import re
from collections.abc import Callable

from markdown_it import MarkdownIt
from markdown_it.token import Token

from kvpeak.base.errors import UserError
from kvpeak.base.files import inside
from kvpeak.base.numbers import MIB
from kvpeak.base.untrusted import Root, read_bytes
from kvpeak.report.page_data import is_own
from kvpeak.report.page_links import LEAST_DIGITS, NUMBER, Links

MOST_PICTURES = 64 * MIB  # of one document; one picture may be shown many times
MOST_PICTURE = MOST_PICTURES * 3 // 4  # bytes of a file, which the page spells in 4/3 as many
Anchor = Callable[[str], str | None]  # a number as shown → the anchor of its row


def to_html(
    markdown: str,
    folder: Root,
    links: Links,
    name: str = "",
    documents: tuple[str, ...] = (),
    results: Root | None = None,
) -> str:
    """The HTML of the document `name`; its pictures lie in its `folder` or below `results`, both
    without a link in their path.

    `documents` are those on the same page: links to them become links to their anchors, which are
    the headings' own in the first document, and begin with the document's name in the others.
    """
    parser = reader()
    tokens = parser.parse(markdown)
    for token in tokens:
        _only_folds(token)
    _name_headings(tokens, prefix(name, documents), tuple(map(slug, documents)))
    _link_numbers(tokens, links)
    room = MOST_PICTURES
    for token in tokens:
        for child in token.children or []:
            if child.type == "image":
                room -= _put_inside(child, folder, results)
                if room < 0:
                    most = f"{MOST_PICTURES // MIB} MiB"
                    raise UserError(f"{folder.path / name}: its pictures take more than {most}")
            elif child.type == "link_open":
                _stay_here(child, name, documents)
    return _scrollable(parser.renderer.render(tokens, parser.options, {}), name)


def reader() -> MarkdownIt:
    """What reads Markdown as kvpeak writes it. Without references, of which a few characters each
    can repeat an address of megabytes.
    """
    return MarkdownIt("commonmark", {"html": True}).enable("table").disable("reference")


def prefix(name: str, documents: tuple[str, ...]) -> str:
    """What the anchors of a document's headings begin with."""
    return "" if name in documents[:1] or not name else f"{slug(name)}-"


def _scrollable(shown: str, name: str) -> str:
    """What is wider than the page can be scrolled, with the keyboard too; a header without words is
    no header.
    """
    numbers, where = itertools.count(1), html.escape(name or "the text")
    shown = re.sub(
        "<table>",
        lambda _: (
            '<div class="wide" tabindex="0" role="region" '
            f'aria-label="Table {next(numbers)} of {where}"><table>'
        ),
        shown,
    )
    shown = shown.replace("</table>", "</table></div>").replace("<pre>", '<pre tabindex="0">')
    return re.sub(r"<th([^>]*)></th>", r"<td\1></td>", shown)


def slug(text: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def plain(token: Token) -> str:
    """The text of an inline token without its marks."""
    return "".join(child.content for child in token.children or [] if child.type != "image")


FOLD = re.compile(r"(</?details>|<summary>[^<]*</summary>)")


def _only_folds(token: Token) -> None:
    """Of HTML only a block that a reader opens passes (markdown.fold); the rest is shown as
    text.
    """
    for each in [token, *(token.children or [])]:
        if each.type in ("html_block", "html_inline"):
            parts = map(str.strip, FOLD.split(each.content))
            each.content = "\n".join(
                part if FOLD.fullmatch(part) else html.escape(part) for part in parts
            )


def _name_headings(tokens: list[Token], start: str, articles: tuple[str, ...]) -> None:
    """Give each heading an anchor: none that is another heading's, an article's or the page's."""
    numbers: dict[str, int] = {}
    taken = set()
    for token, inline in itertools.pairwise(tokens):
        if token.type == "heading_open":
            words = slug(plain(inline))
            if not start and (is_own(words) or words.startswith(articles)):
                words = f"heading:{words}"  # no words make a colon
            anchor = first = start + words
            while anchor in taken:
                numbers[first] = numbers.get(first, 0) + 1
                anchor = f"{first}-{numbers[first]}"
            taken.add(anchor)
            token.attrSet("id", anchor)


def _put_inside(image: Token, folder: Root, results: Root | None) -> int:
    """Put the file of a picture into the page; how many characters it takes. Raises UserError where
    it is not there, leads out of both folders, or is no picture.
    """
    source = str(image.attrGet("src"))
    given = folder.path / source
    path, root = given.resolve(), results
    if not (root and path.is_relative_to(root.path)):
        path, root = inside(folder.path, source), folder
    if path.suffix != ".svg":
        raise UserError(f"{given}: expected a picture (.svg)")
    try:
        svg = read_bytes(path, MOST_PICTURE, root)
    except OSError as error:
        raise UserError(f"{given}: {error.strerror}") from None
    encoded = base64.b64encode(svg).decode()
    image.attrSet("src", f"data:image/svg+xml;base64,{encoded}")
    image.attrSet("loading", "lazy")
    return len(encoded)


def _stay_here(link: Token, name: str, documents: tuple[str, ...]) -> None:
    target, _, anchor = str(link.attrGet("href")).partition("#")
    document = target or name
    if anchor and (not target or document in documents):
        link.attrSet("href", f"#{prefix(document, documents)}{anchor}")
    elif target in documents:
        link.attrSet("href", f"#{slug(target)}")


def _link_numbers(tokens: list[Token], links: Links) -> None:
    """Link the numbers of paragraphs and of table rows."""
    heading, row = frozenset(), None
    for position, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = links.names_in([plain(tokens[position + 1])])
        elif token.type == "tr_open":
            row = []
        elif token.type == "tr_close":
            _link_row(row, links, heading)
            row = None
        elif token.type == "inline" and row is not None:
            row.append(token)
        elif token.type == "inline" and tokens[position - 1].type != "heading_open":
            _link_sentence(token, links)


def _link_row(cells: list[Token], links: Links, heading: frozenset[str]) -> None:
    """A table's row: its names are those in its cells, or it is one row of a table as a whole."""
    texts = [plain(cell) for cell in cells]
    names = links.names_in(texts)
    whole = links.whole_row([shown for text in texts for shown in NUMBER.findall(text)])
    for cell in cells:
        _link(cell, lambda shown: whole or links.target(shown, names, names | heading))


def _link_sentence(inline: Token, links: Links) -> None:
    """A paragraph: all names in it are around, and a row has to have none of them in particular."""
    names = links.names_in([plain(inline)])
    _link(inline, lambda shown: links.said(shown, names))


def _link(inline: Token, anchor: Anchor) -> None:
    """Replace the numbers in the text of an inline token by links, where they have a row."""
    anchor = functools.cache(anchor)
    linked, inside_link = [], 0
    for child in inline.children or []:
        inside_link += child.type == "link_open"
        inside_link -= child.type == "link_close"
        if child.type != "text" or inside_link:
            linked.append(child)
            continue
        raw = Token("html_inline", "", 0)
        raw.content = _with_links(child.content, anchor)
        linked.append(raw)
    inline.children = linked


def _with_links(text: str, anchor: Anchor) -> str:
    parts, done = [], 0
    for found in NUMBER.finditer(text):
        long_enough = len(re.sub(r"\D", "", found[0])) >= LEAST_DIGITS
        target = anchor(found[0]) if long_enough else None
        if target:
            parts += [html.escape(text[done : found.start()])]
            parts += [f'<a class="figure" href="#{target}">{found[0]}</a>']
            done = found.end()
    return "".join([*parts, html.escape(text[done:])])
