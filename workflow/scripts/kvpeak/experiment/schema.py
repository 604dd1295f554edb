"""The JSON Schemas of the configuration files; the defaults of their keys are said there and
nowhere else.
"""

import json
from functools import cache

from kvpeak.base.kv_caches import PATTERN, SPELLED
from kvpeak.base.shipped import shipped

SCHEMAS = shipped("workflow/schemas")
MATRIX = "matrix.schema.json"
EXPECTED = "expected.schema.json"


@cache
def schema(name: str) -> dict:
    """The schema in workflow/schemas/NAME, with the KV caches that there are filled in."""
    found = json.loads((SCHEMAS / name).read_text(encoding="utf-8"))
    if "kv_cache" in found.get("$defs", {}):
        found["$defs"]["kv_cache"] |= {
            "description": SPELLED,
            "pattern": rf"^({PATTERN})(?!\n)$",
        }
    return found


def node_at(*keys: str) -> dict:
    """The part of the matrix's schema that describes the value at these keys; any name is `*`."""
    node = schema(MATRIX)
    for key in keys:
        node = node["additionalProperties"] if key == "*" else node["properties"][key]
    return node


def defaults(*keys: str) -> dict:
    """Key → default, of the mapping at these keys; a key without one is left out."""
    properties = node_at(*keys)["properties"]
    return {key: node["default"] for key, node in properties.items() if "default" in node}


def expected(node: dict) -> str:
    """What the schema expects of a value, in words, with its default; '' if it does not say."""
    text = node.get("description", "")
    if text and "default" in node:
        default = node["default"]
        text += f" (default {default if isinstance(default, str) else json.dumps(default)})"
    return text
