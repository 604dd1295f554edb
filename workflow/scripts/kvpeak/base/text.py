"""Text of others, before it reaches a terminal, a log or a document."""

import os
import re
import shlex
import unicodedata

# How what a program prints, or the system says of one, is read, whatever the locale.
OF_PROGRAMS = {"encoding": "utf-8", "errors": "replace"}
# Control characters, lone surrogates, unassigned and private ones, and what changes the direction
# of text.
_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# Letters and marks that show nothing, although their category does not say so.
_NOTHING = frozenset(
    map(
        chr,
        (
            *(0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
            *range(0x180B, 0x1810),
            *range(0xFE00, 0xFE10),
            *range(0xE0100, 0xE01F0),
        ),
    )
)
_USER = re.compile(r"(\w://)[^/\s]*@")
_FORMULA = re.compile(r'(^|;)(?="*[=+\-@＝＋－＠\t\r])')


def plain(text: str, most: int | None = None) -> str:
    """The text as one line in which every character can be seen.

    White space is one space; a character that is not printable, and one that changes the direction
    of the text, is spelled as its code, such as \\x1b. With `most` the line has at most so many
    characters.
    """
    line = " ".join(text.split())
    if not line.isascii() or not line.isprintable():
        line = "".join(map(_seen, line))
    return line if most is None or len(line) <= most else line[: most - 1] + "…"


def without_password(text: str) -> str:
    """The text with no name and no password before the host of an address."""
    return _USER.sub(r"\1", text)


def exact(text: str) -> str:
    """The text on one line, with nothing left out: what cannot be seen is spelled as its code, and
    so are line breaks, tabs, and blanks that look like the usual one.
    """
    return "".join(each if is_seen(each) else _code(each) for each in text)


def is_seen(text: str) -> bool:
    """Whether every character of a text can be seen, a blank being one."""
    return text.isprintable() and (text.isascii() or _NOTHING.isdisjoint(text))


def seen(value):
    """The value of a JSON file; a text in it that holds what cannot be seen is as `plain` has
    it.
    """
    if isinstance(value, str):
        return value if is_seen(value) else plain(value)
    if isinstance(value, list):
        return [seen(each) for each in value]
    if isinstance(value, dict):
        return {seen(key): seen(each) for key, each in value.items()}
    return value


def shell_word(text: str) -> str:
    """The text as one word of a shell's command, in which every character can be seen."""
    if is_seen(text):
        return shlex.quote(text)
    return "$'" + "".join(map(_in_shell, text)) + "'"


def _in_shell(character: str) -> str:
    if is_seen(character):
        return "\\" * (character in "\\'") + character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def brief(value, most: int = 2000):
    """The value of a JSON file, each text in it with at most so many characters."""
    if isinstance(value, str):
        return value if len(value) <= most else value[: most - 1] + "…"
    if isinstance(value, list):
        return [brief(each, most) for each in value]
    if isinstance(value, dict):
        return {brief(key, most): brief(each, most) for key, each in value.items()}
    return value


def csv_safe(text: str) -> str:
    """The text such that a spreadsheet takes nothing of it for a formula: an apostrophe before =,
    +, - and @, at its beginning and after a semicolon, which begins a field in many countries;
    quotes may stand between, and the wide signs of East Asia count.
    """
    return _FORMULA.sub(r"\1'", text)


def _seen(character: str) -> str:
    hidden = unicodedata.category(character) in _UNSEEN or character in _NOTHING
    return _code(character) if hidden else character


def _code(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
