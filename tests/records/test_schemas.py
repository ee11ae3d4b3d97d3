"""The published schemas: they say what each field is, and what hotlap writes is as they say."""

import json
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from samples import sample

from hotlap.records.files import to_json

DOCS = Path(__file__).parents[2] / "docs"
SCHEMAS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (DOCS / "schema").glob("*.json")}
GENERATE = runpy.run_path(str(DOCS / "generate.py"))
PLAIN = {
    "command", "count", "cpu", "cuda", "device", "device_name", "dtype", "file", "function", "lever", "levers", "line",
    "name", "op", "os", "python", "rank", "risk", "settings", "shape", "title", "torch", "version", "where", "why",
}  # fmt: skip
"""Names of fields that need no words."""
STEP = (
    '{"step":42,"time":1795264749.938777,"wall_ms":387.542536,"gpu_ms":null,"phases":{"data":339.3915,"h2d":0.0000,'
    '"forward":25.5979,"backward":21.6343,"optimizer":0.4308,"other":0.4880},"loss":2.2788426876068115,"samples":64,'
    '"kind":"train"}'
)
"""As a run left it."""
RECORDS = {name: sample(kind) for name, (kind, _) in GENERATE["DOCUMENTS"].items()}
TYPES: dict[str, Any] = {
    "null": type(None), "boolean": bool, "integer": int, "number": int | float, "string": str, "array": list,
    "object": dict,
}  # fmt: skip


def wrong(value: Any, schema: dict[str, Any], top: dict[str, Any], at: str = "") -> str:
    """Where a value is not as a schema says, "" where it is: of JSON Schema as much as the files use."""
    if "$ref" in schema:
        schema = top["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        found = [wrong(value, one, top, at) for one in schema["anyOf"]]
        return "" if "" in found else found[0]
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return f"{at} is no {kind}: {value!r}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{at} is {value!r}"
    if kind == "array":
        items = schema.get("prefixItems", [schema.get("items") or {}] * len(value))
        told = [wrong(one, item, top, f"{at}[]") for one, item in zip(value, items, strict=True)]
        return next(filter(None, told), "")
    if kind != "object":
        return ""
    if "properties" not in schema:
        more = schema.get("additionalProperties")
        items = more if isinstance(more, dict) else {}
        return next(filter(None, (wrong(one, items, top, f"{at}.{key}") for key, one in value.items())), "")
    if missing := set(schema.get("required", ())) - set(value):
        return f"{at} has no {missing}"
    if strange := set(value) - set(schema["properties"]):
        return f"{at} has {strange}"
    told = [wrong(one, schema["properties"][key], top, f"{at}.{key}") for key, one in value.items()]
    return next(filter(None, told), "")


@pytest.mark.parametrize("name", RECORDS)
def test_what_is_written_is_as_its_schema_says_and_reads_back(name: str) -> None:
    written = to_json(RECORDS[name])
    assert not wrong(json.loads(written), SCHEMAS[name], SCHEMAS[name])
    assert msgspec.json.decode(written, type=type(RECORDS[name])) == RECORDS[name]


@pytest.mark.parametrize("change", [{"step": "42"}, {"kind": "test"}, {"wall": 1}, {"phases": {"data": "long"}}])
def test_what_is_not_as_its_schema_says_is_found(change: dict[str, Any]) -> None:
    assert not wrong(json.loads(STEP), SCHEMAS["step"], SCHEMAS["step"])
    assert wrong({**json.loads(STEP), **change}, SCHEMAS["step"], SCHEMAS["step"])


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_field_has_words(name: str) -> None:
    """In the docstring of its record; a record or records in it have their own."""
    schema = SCHEMAS[name]
    for record in (schema, *schema.get("$defs", {}).values()):
        silent = [key for key, told in record.get("properties", {}).items() if "description" not in told]
        silent = [key for key in silent if key not in PLAIN and "$ref" not in str(record["properties"][key])]
        assert record["description"], record["title"]
        assert not silent, f"the docstring of {record['title']} does not say what {silent} mean, as `name: text.`"


class Example(msgspec.Struct):
    """An example. a: one, with
    `b`. b, c: both; d: the rest: or None.

    Of the record: what no field is. e: last."""

    a: int
    b: int
    c: int
    d: int
    e: int


def test_a_docstring_is_divided_among_the_fields() -> None:
    told, fields = GENERATE["described"](Example)
    assert told == "An example. Of the record: what no field is."
    assert fields == {"a": "one, with `b`", "b": "both", "c": "both", "d": "the rest: or null", "e": "last"}
