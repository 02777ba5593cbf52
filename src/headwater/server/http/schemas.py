"""Schemas of the OpenAPI document in the form that generators of clients understand.

JSON Schema has several ways to say a thing. Generators know few of them: they stop at others, or make clients that
do not compile, or that keep large numbers in 32 bits. What is here says the same in a form that all of them know.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Any

import msgspec

Schema = dict[str, Any]

INT32_END = 1 << 31
_TYPES = {bool: "boolean", str: "string", int: "integer"}


def of_types(types: Iterable[Any]) -> tuple[dict[Any, Schema], dict[str, Schema]]:
    """Return the schema of each type, and those that they refer to, by name."""
    types = list(types)
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    found = dict(zip(types, map(plain, schemas), strict=True))
    return found, {name: plain(schema) for name, schema in components.items()}


def plain(schema: Schema) -> Schema:
    """Return a schema that allows the same values.

    - An array has `items`, and these are no boolean: those of a tuple are of their common type, or anything.
    - There are no defaults that are lists, objects or null.
    - Integers have the format `int64`, unless 32 bits are enough.
    - What is an enum or a constant has its type.
    - What is of one type or null has both as its type.
    - A time among other choices is a string without a format, which says nothing about the values that are allowed.
    """
    found = _nullable({name: _plain_part(name, part) for name, part in schema.items()})
    if isinstance(found.get("default", 0), list | dict | None):
        del found["default"]
    if _is(found, "array") and not isinstance(found.get("items"), dict):
        found["items"] = _common(found.get("prefixItems", []))
    if _is(found, "integer") and _end(found) > INT32_END:
        found.setdefault("format", "int64")
    values = found.get("enum", [found["const"]] if "const" in found else [])
    types = {_TYPES.get(type(value)) for value in values}
    if "type" not in found and len(types) == 1 and None not in types:
        found["type"] = types.pop()
    return found


def _nullable(schema: Schema) -> Schema:
    """Return a schema of one type or null with both as its type, which generators take for an optional value."""
    choices: list[Schema] = schema.get("anyOf") or schema.get("oneOf") or []
    others = [choice for choice in choices if choice != {"type": "null"}]
    if len(choices) != 2 or len(others) != 1 or not isinstance(others[0].get("type"), str) or "enum" in others[0]:
        return schema
    rest = {name: part for name, part in schema.items() if name not in ("anyOf", "oneOf")}
    return {**others[0], **rest, "type": [others[0]["type"], "null"]}


def _plain_part(name: str, part: Any) -> Any:
    if name == "properties":
        return {field: plain(schema) for field, schema in part.items()}
    if name in ("anyOf", "oneOf"):
        return [plain(_untimed(schema)) for schema in part]
    if name == "prefixItems":
        return [plain(schema) for schema in part]
    if name in ("items", "additionalProperties") and isinstance(part, dict):
        return plain(part)
    return part


def _untimed(schema: Schema) -> Schema:
    return {name: part for name, part in schema.items() if (name, part) != ("format", "date-time")}


def _common(schemas: list[Schema]) -> Schema:
    """Return what all of these have in common: their type, or nothing."""
    types = [schema.get("type") for schema in schemas]
    kinds: set[str | None] = {kind for type in types for kind in (type if isinstance(type, list) else [type])}
    named = [kind for kind in kinds if kind not in ("null", None)]
    if None in kinds or len(named) != 1:
        return {}
    wide = any(schema.get("format") == "int64" for schema in schemas)
    return {"type": [*named, "null"] if "null" in kinds else named[0]} | ({"format": "int64"} if wide else {})


def _end(schema: Schema) -> float:
    """Above the largest integer that it allows."""
    ends: tuple[float, float] = (schema.get("exclusiveMaximum", inf), schema.get("maximum", inf) + 1)
    return min(ends)


def _is(schema: Schema, type: str) -> bool:
    """Return whether a value may be of this type, and of no other but null."""
    return schema.get("type") in (type, [type, "null"])
