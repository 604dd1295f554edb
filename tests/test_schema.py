"""One registry of KV caches, and the defaults of every key: said once, in the schema, and printed
from there.
"""

import re

import pytest
from conftest import ROOT

from kvpeak.base.kv_caches import KV_CACHES, has_kv_cache, keeps_all, kv_cache, regrows
from kvpeak.experiment.schema import defaults, expected, node_at, schema
from kvpeak.runner.table_output import UNITS

# Section of config/README.md → the keys that lead to its entries in the schema.
SECTIONS = {
    "commits: one engine revision each": ("commits", "*"),
    "models": ("models", "*"),
    "prompts": ("prompts", "*"),
    "protocol": ("protocol",),
}


def documented(section: str) -> dict[str, str]:
    """Key → default, as the tables of a section of config/README.md give them."""
    text = (ROOT / "config/README.md").read_text(encoding="utf-8")
    text = re.split(r"\n### ", text.split(f"\n### {section}\n")[1])[0]
    found = {}
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
        ]
        for row in rows:
            for key in re.findall(r"`([^`]+)`", row[0]):
                found[key] = row[head.index("default")].strip("`")
    return found


@pytest.mark.parametrize("section", SECTIONS)
def test_the_tables_of_the_readme_give_the_defaults_of_the_schema(section):
    table = documented(section)
    given = {key: text for key, text in table.items() if "." not in key}
    keys = set(node_at(*SECTIONS[section])["properties"])
    assert set(given) == keys - {"output"}, "the table has other keys than the schema"
    for key, default in defaults(*SECTIONS[section]).items():
        assert given[key] == (
            str(default).lower() if isinstance(default, bool) else str(default)
        ), key


def test_a_message_says_the_default_once():
    for key, node in node_at("protocol")["properties"].items():
        assert expected(node).count("default") == 1, key


def test_every_cache_of_the_registry_may_be_asked_for_and_nothing_else():
    pattern = schema("matrix.schema.json")["$defs"]["kv_cache"]["pattern"]
    for cache in KV_CACHES:
        assert re.search(pattern, cache.name.replace("-N", "-64"))
    for name in ("quantized-2", "rotating-0", "rotating-", "cats", "cat\n", "cat|prealloc"):
        assert not re.search(pattern, name)
        assert kv_cache(name) is None


def test_every_unit_of_a_column_is_converted():
    column = schema("matrix.schema.json")["$defs"]["column"]["anyOf"][1]
    assert column["properties"]["unit"]["enum"] == list(UNITS)


def test_what_a_cache_is_follows_from_its_name():
    assert kv_cache("rotating-512").words == "the first and the last tokens, N in all"
    assert has_kv_cache("mlx", "quantized-8") and not has_kv_cache("candle-replay", "quantized-8")
    assert keeps_all("mlx-lm") and not keeps_all("rotating-512") and not keeps_all("no such")
    assert regrows("cat-contiguous") and not regrows("prealloc")
