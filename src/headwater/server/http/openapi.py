"""Builds the OpenAPI document from the table of routes.

Schemas come from the types that are encoded and decoded, or are written out in the routes. A test asks the server
whether it keeps to the document.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

import headwater
from headwater.server.http import parameters, schemas
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
            "schemas": {**_of_types()[1], **{name: schemas.plain(schema) for name, schema in _WRITTEN.items()}},
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
        "schema": schemas.plain(parameter.schema),
    }


def _content(content: Content) -> dict[str, Any]:
    return {media: {} if schema is None else {"schema": _schema(schema)} for media, schema in content.items()}


def _schema(schema: Any) -> Schema:
    return schemas.plain(schema) if isinstance(schema, dict) else _of_types()[0][schema]


def _headers(headers: Iterable[tuple[str, Schema]]) -> dict[str, Any]:
    return {name: {"schema": schemas.plain(schema)} for name, schema in headers}


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
    return schemas.of_types(schema for schema in used if not isinstance(schema, dict | None))
