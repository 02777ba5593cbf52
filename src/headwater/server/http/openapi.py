"""Builds the OpenAPI document from the table of routes.

Schemas come from the types that are encoded and decoded, or are written out in the routes. A test asks the server
whether it keeps to the document.

JSON Schema has several ways to say a thing, and generators of clients know few of them: they stop at others, or make
clients that do not compile, or that keep large numbers in 32 bits. `plain` rewrites schemas to the forms that all know.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import inf
from typing import Any

import msgspec

import headwater
from headwater.server.http import parameters
from headwater.server.http.parameters import NUMBER, PARTITION_NUMBER, TEXT, UUID, Parameter, Schema
from headwater.server.http.route import Content, Route, json_of, list_of, object_of, ref
from headwater.server.http.routes import ROUTES

ERRORS = {
    400: "Invalid: change the request.",
    401: "Credentials are missing or invalid.",
    403: "Not allowed.",
    404: "Not found.",
    406: "No format in Accept is available.",
    408: "The request took too long to arrive.",
    409: "A conflict: another writer was first, or has taken over.",
    410: "Deleted by retention; the facts name the oldest offset.",
    413: "Above a limit that the facts name.",
    415: "Unsupported Content-Type.",
    417: "Unsupported Expect header.",
    429: "Too many wrong passwords.",
    431: "The headers are too large.",
    500: "Damage on the disk, or a bug.",
    501: "Not supported by this installation.",
    503: "Temporarily unavailable: try again.",
}
ANY = (400, 408, 417, 431, 500, 503)  # what every request may be answered with,
FOREIGN = (403,)  # also where it is a browser's, of another site,
GUARDED = (401, 403, 429)  # and one that needs a right,
LOGIN = (401, 429)  # of which these only where there are users
_RETRY = (("Retry-After", NUMBER),)
ERROR_HEADERS = {401: (("WWW-Authenticate", TEXT),), 429: _RETRY, 503: _RETRY}


_WRITTEN: dict[str, Schema] = {
    "Error": object_of(
        ("kind", "code", "message", "hint", "facts"),
        kind=TEXT,
        code=TEXT,
        message=TEXT,
        hint=TEXT,
        facts={"type": "object"},
    ),
    "Appended": object_of(
        ("count", "durability", "runs"),
        count=NUMBER,
        durability=parameters.DURABILITY.schema,
        runs=list_of(
            object_of(
                ("partition", "offset", "count", "id"),
                partition=PARTITION_NUMBER,
                offset=NUMBER,
                count=NUMBER,
                id=UUID,
                rows=list_of(NUMBER),
            )
        ),
    ),
    "Version": object_of(("version", "format", "python", "uuid"), version=TEXT, format=NUMBER, python=TEXT, uuid=TEXT),
}


def encoded(authenticates: bool, root: str = "") -> bytes:
    """Return the document as JSON. `root` is where the routes are mounted."""
    return msgspec.json.encode(_document(authenticates) | {"servers": [{"url": root or "/"}]})


@cache
def _document(authenticates: bool) -> dict[str, Any]:
    return document(ROUTES, authenticates=authenticates)


def document(routes: Iterable[Route], *, authenticates: bool) -> dict[str, Any]:
    """Return the document of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.pattern, {})[route.method.lower()] = _operation(route, authenticates)
    told: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Headwater",
            "version": headwater.__version__,
            "summary": "An event log: topics and items, and a live event bus.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {**_of_types()[1], **{name: plain(schema) for name, schema in _WRITTEN.items()}},
            "responses": {str(status): _error(status) for status in ERRORS if authenticates or status not in LOGIN},
        },
    }
    if not authenticates:
        told["security"] = []
    else:
        told["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer", "description": "A token created by `headwater auth add`."},
            "basic": {"type": "http", "scheme": "basic"},
            "certificate": {
                "type": "mutualTLS",
                "description": "A client certificate whose subject belongs to a user.",
            },
        }
    return told


def _operation(route: Route, authenticates: bool) -> dict[str, Any]:
    guarded = authenticates and route.right.needed is not None
    statuses = sorted({*ANY, *route.errors, *(GUARDED if guarded else FOREIGN)})
    told: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.handler.__module__.rpartition(".")[2] + "." + route.handler.__name__,
        "parameters": [_parameter(each) for each in (*_of_path(route.pattern), *route.parameters)],
        "responses": {
            "200": {
                "description": route.summary,
                "content": _content(route.answer),
                "headers": _headers(route.headers),
            },
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in statuses},
        },
    }
    if route.body is not None:
        told["requestBody"] = {"content": _content(route.body), "required": route.body_required}
    if guarded:
        told["x-headwater-right"] = route.right.needed
    if authenticates:
        told["security"] = [{"bearer": []}, {"basic": []}, {"certificate": []}] if guarded else []
    return told


def _of_path(pattern: str) -> tuple[Parameter, ...]:
    if pattern.startswith("/consumer/"):
        return parameters.CONSUMER_NAME, parameters.CONSUMER_TOPIC
    named = (parameters.TOPIC_NAME, parameters.BINDER_NAME, parameters.DOCUMENT_ID, parameters.QUERY_NAME)
    return tuple(each for each in named if f"{{{each.name}}}" in pattern)


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": parameter.description,
        "schema": plain(parameter.schema),
    }


def _content(content: Content) -> dict[str, Any]:
    return {media: {} if schema is None else {"schema": _schema(schema)} for media, schema in content.items()}


def _schema(schema: Any) -> Schema:
    return plain(schema) if isinstance(schema, dict) else _of_types()[0][schema]


def _headers(headers: Iterable[tuple[str, Schema]]) -> dict[str, Any]:
    return {name: {"schema": plain(schema)} for name, schema in headers}


def _error(status: int) -> dict[str, Any]:
    return {
        "description": ERRORS[status],
        "content": _content(json_of(ref("Error"))),
        "headers": _headers(ERROR_HEADERS.get(status, ())),
    }


@cache
def _of_types() -> tuple[dict[Any, Schema], dict[str, Schema]]:
    """Return the schemas of the types in the routes, and what those refer to."""
    contents = [content for each in ROUTES for content in (each.answer, each.body or {})]
    used = [schema for content in contents for schema in content.values()]
    return of_types(schema for schema in used if not isinstance(schema, dict | None))


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
