"""Configuration files: YAML without surprises, checked against a JSON Schema, errors in one
line.
"""

import difflib
import json
import math
import re
from collections.abc import Hashable, Iterator
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, relevance
from jsonschema.validators import extend

from kvpeak.base.errors import UserError
from kvpeak.base.files import in_its_folder
from kvpeak.base.numbers import MIB
from kvpeak.base.text import plain
from kvpeak.base.untrusted import read_text
from kvpeak.experiment.schema import expected, schema

MOST_BYTES = 2 * MIB  # of which each may be an entry, that takes a KiB while it is parsed
MOST_ENTRIES = 200_000  # a matrix of 10,000 prompts has 20,000, in 400 KiB
AN_ENTRY = 64  # characters of a text that count as one more entry
MOST_TEXT = 1000  # characters of a message


def _unique(_validator, wanted: bool, items, _schema) -> Iterator[ValidationError]:
    """The keyword uniqueItems, in one pass; jsonschema's own compares all with all."""
    if wanted and isinstance(items, list) and _given_twice(items):
        yield ValidationError("has an item twice")


def _given_twice(items: list) -> list:
    """The first item that is there twice, in a list, or []; lists and mappings do not count."""
    seen = set()
    for item in items:
        if isinstance(item, Hashable):
            if (type(item), item) in seen:
                return [item]
            seen.add((type(item), item))
    return []


# JSON Schema counts 2.0 as an integer; a range does not.
_Validator = extend(
    Draft202012Validator,
    {"uniqueItems": _unique},
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    ),
)


class ConfigError(UserError):
    """A user's mistake in a configuration file; its text is one line: file, key, value, what to
    do.
    """

    def __init__(self, file: Path | str, key: str, message: str):
        key = key if len(key) <= 200 else f"{key[:200]}..."
        where = f"{file}: {key}: " if key else f"{file}: "
        super().__init__(plain(f"{where}{message}", MOST_TEXT))


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """The safe loader, but a key given twice is an error instead of the last one winning."""

    def construct_mapping(self, node, deep=False):
        seen = {}
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        for key_node, _ in pairs:
            if key_node.tag == "tag:yaml.org,2002:merge":  # <<: takes another mapping's keys over
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.MarkedYAMLError(
                    problem="a key must be text", problem_mark=key_node.start_mark
                )
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} is given twice (first in line {seen[key]}); keep one",
                    problem_mark=key_node.start_mark,
                )
            seen[key] = key_node.start_mark.line + 1
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node):
        if re.fullmatch(r"[-+]?0[0-9_]+", node.value):  # YAML 1.1 reads 010 as 8
            raise yaml.MarkedYAMLError(
                problem=f"{node.value}: a number must not begin with 0",
                problem_mark=node.start_mark,
            )
        value = super().construct_yaml_int(node)
        if abs(value) >= 1 << 63:  # thousands of digits cannot even be spelled in a message
            raise yaml.MarkedYAMLError(
                problem="a whole number beyond 64 bits", problem_mark=node.start_mark
            )
        return value

    def construct_yaml_float(self, node):
        value = super().construct_yaml_float(node)
        if not math.isfinite(value):  # it passes every limit of the schema
            raise yaml.MarkedYAMLError(
                problem=f"{node.value}: expected a finite number", problem_mark=node.start_mark
            )
        return value


for _kind in ("int", "float"):
    _Loader.add_constructor(
        f"tag:yaml.org,2002:{_kind}", getattr(_Loader, f"construct_yaml_{_kind}")
    )


def load_yaml(file: Path | str):
    """Return what the YAML file holds.

    Raises ConfigError if it cannot be read or parsed, if it is a link out of its folder (to a file
    whose content a message would show), if a mapping gives a key twice, or if aliases
    make it huge or endless.
    """
    try:
        with in_its_folder(Path(file)) as (path, root):
            text = read_text(path, MOST_BYTES, root)
    except OSError as error:
        raise ConfigError(file, "", f"cannot be read: {error.strerror}") from None
    except UserError as error:
        raise ConfigError(file, "", str(error).removeprefix(f"{file}: ")) from None
    try:
        data = yaml.load(text, _Loader)
        if _entries(data, {}) > MOST_ENTRIES:
            raise ConfigError(
                file, "", f"has more than {MOST_ENTRIES} entries when its aliases are replaced"
            )
        return data
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}" if mark else ""
        raise ConfigError(file, line, error.problem or error.context or "is not YAML") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(file, "", f"is not YAML: {error}") from None
    except (LookupError, TypeError, AttributeError):  # of PyYAML: a set of a list, for example
        raise ConfigError(
            file, "", "has a tag (!!…) that does not fit its value; leave the tag out"
        ) from None


def _entries(value, known: dict[int, float]) -> float:
    """How many values there are in `value` when every alias is replaced; infinite if one contains
    itself. A text counts by its length, because messages and checks spell it.

    known: the counts by id() of the values that were looked at.
    """
    if not isinstance(value, (dict, list)):
        return 1 + len(value) // AN_ENTRY if isinstance(value, str | bytes) else 1
    if id(value) not in known:
        known[id(value)] = float("inf")  # whoever meets it inside itself finds this
        inner = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_entries(each, known) for each in inner)
    return known[id(value)]


def key_path(parts) -> str:
    """Spell a path into nested data: ['caps', 2] → 'caps[2]'."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def did_you_mean(word, known) -> str:
    """Return ' (did you mean X?)' for the nearest known word, or ''."""
    near = difflib.get_close_matches(str(word), [str(name) for name in known], n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def shown(value) -> str:
    """Spell a value in one short line, as JSON where it can be."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def validate(data, schema_name: str, file: Path | str) -> None:
    """Check data against workflow/schemas/NAME.

    Raises ConfigError for the most telling violation.
    """
    errors = _Validator(schema(schema_name)).iter_errors(data)
    first = min(errors, key=lambda error: (len(error.path), str(error.path)), default=None)
    if first:
        raise _one_line(first, file)


def _one_line(error: ValidationError, file) -> ConfigError:
    while error.context:  # anyOf, oneOf: the alternative that came nearest
        deepest = max(error.context, key=relevance)
        if len(deepest.absolute_path) <= len(error.absolute_path):
            break
        error = deepest
    path = list(error.absolute_path)
    where = key_path(path) or "top level"
    if error.validator == "additionalProperties":
        return _unknown_key(error, path, file)
    if error.validator == "uniqueItems":
        (twice,) = _given_twice(error.instance)
        return ConfigError(file, key_path(path), f"{shown(twice)} is given twice; keep one")
    if error.validator == "required":
        key = next(key for key in error.validator_value if key not in error.instance)
        described = expected(error.schema.get("properties", {}).get(key, {}))
        return ConfigError(file, where, f"key {key} is missing{described and ': ' + described}")
    if "propertyNames" in (*error.schema_path, error.validator):
        name = error.schema.get("description", "another name")
        return ConfigError(file, key_path([*path, error.instance]), f"bad name; expected {name}")
    what = expected(error.schema) or _constraint(error)
    return ConfigError(file, where, f"{shown(error.instance)}: expected {what}")


def _unknown_key(error: ValidationError, path: list, file) -> ConfigError:
    known = sorted(error.schema.get("properties", {}))
    key = next(
        key
        for key in error.instance
        if key not in known and not any_pattern(error.schema, str(key))
    )
    return ConfigError(
        file,
        key_path([*path, key]),
        f"unknown key{did_you_mean(key, known)}; expected one of {', '.join(known)}",
    )


def any_pattern(schema: dict, key: str) -> bool:
    """Whether one of the schema's patternProperties takes the key."""
    return any(re.search(pattern, key) for pattern in schema.get("patternProperties", {}))


def _constraint(error: ValidationError) -> str:
    value = error.validator_value
    if error.validator == "type":
        return " or ".join(value) if isinstance(value, list) else f"a value of type {value}"
    if error.validator == "enum":
        return f"one of {', '.join(map(str, value))}"
    return f"{error.validator} {shown(value)}"
