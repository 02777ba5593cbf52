"""Builds the OpenAPI document from the table of routes and the operations described in this module.

Parameters come from the routes, schemas from the types that are encoded and decoded. The rest of docs/HTTP.md is in
`OPERATIONS`: what a body may be, and what the answers are. A test compares the two tables, and asks the server.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import msgspec

import headwater
from headwater.document import Document
from headwater.event import Durability
from headwater.format import replication
from headwater.format.jsonl import EventLine
from headwater.format.replication import TopicState
from headwater.info import BinderInfo, ConsumerInfo, DeletedSegment, Split, TopicInfo, ViewInfo
from headwater.server.http import parameters, schemas
from headwater.server.http.binders import DocumentQuery, Field
from headwater.server.http.consumers import AckResult, Acks, Seek
from headwater.server.http.parameters import NUMBER, PARTITION_NUMBER, TEXT, UUID, Parameter, Schema
from headwater.server.http.routes import ROUTES, Route
from headwater.server.http.topics import Retain
from headwater.server.http.transactions import RefLine, TransactionRequest

Content = dict[str, Any]
"""Schemas by media type: written here, or the type that is encoded and decoded; None for what has none."""

ARROW = "application/vnd.apache.arrow.stream"
BATCHES = "application/vnd.headwater.batches"
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
BYTES: Schema = {"type": "string", "format": "binary"}

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


class Operation(NamedTuple):
    """Describes a route. `errors` are the statuses besides those that any request may return."""

    summary: str
    answer: Content
    errors: tuple[int, ...] = ()
    body: Content | None = None
    headers: tuple[tuple[str, Schema], ...] = ()
    body_required: bool = True


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: Any) -> Content:
    return {"application/json": schema}


def _list(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _object(required: Iterable[str] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


class CommitAnswer(msgspec.Struct):
    """The answer of a transaction."""

    refs: list[RefLine]
    durability: Durability


TRUE = _json({"const": True})
_COUNTED = _object(("count",), count=NUMBER)
_EXPLAINED = _object(("plan",), plan=TEXT)
_PLACED = (("Headwater-Partition", PARTITION_NUMBER), ("Headwater-Id", UUID), ("Headwater-Durability", TEXT))
_APPENDED = _json({"oneOf": [NUMBER, _ref("Appended")]})
# Generated clients take the first media type that they know, so JSON comes first; of several bodies with schemas, one
# of which may be anything, some make a client that fails.
_ITEMS_IN: Content = {
    "application/json": {},
    "text/plain": TEXT,
    "application/octet-stream": None,
    NDJSON: None,
    ARROW: None,
    "application/cloudevents+json": None,
    "application/cloudevents-batch+json": None,
    "application/bson": None,
    BATCHES: None,
}
_ITEMS_OUT: Content = {
    "application/json": list[EventLine],
    "application/octet-stream": BYTES,
    SSE: TEXT,
    NDJSON: BYTES,
    ARROW: BYTES,
    BATCHES: BYTES,
}

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "/topics"): Operation("List the names of the topics.", _json(_list(TEXT))),
    ("PUT", "/topic/{name}"): Operation(
        "Create a topic: true if it is new, false if it existed.", _json({"type": "boolean"}), (413, 501)
    ),
    ("GET", "/topic/{name}"): Operation("Return a topic's settings and size.", _json(TopicInfo), (404, 413)),
    ("DELETE", "/topic/{name}"): Operation("Delete a topic and all its events.", TRUE, (404, 413)),
    ("GET", "/topic/{name}/version"): Operation(
        "Return the offset of a key's last event, or null.", _json({"oneOf": [NUMBER, {"type": "null"}]}), (404, 413)
    ),
    ("POST", "/topic/{name}/sync"): Operation("Make all earlier appends durable.", TRUE, (404, 413)),
    ("POST", "/topic/{name}/retain"): Operation(
        "Change the retention policy and delete segments that it no longer keeps.",
        _json(list[DeletedSegment]),
        (404, 413),
        _json(Retain),
        body_required=False,
    ),
    ("POST", "/topic/{name}/replay"): Operation(
        "Append dead-lettered events to the topic again; returns their number.", _json(NUMBER), (404, 409, 413)
    ),
    ("POST", "/topic/{name}/items"): Operation(
        "Append the body: one event of any Content-Type, or several in a format for many.",
        _APPENDED,
        (404, 409, 413, 415, 501),
        _ITEMS_IN,
        _PLACED,
        body_required=False,
    ),
    ("GET", "/topic/{name}/items"): Operation(
        "Read events in a format named by Accept; with wait_for_more, as a live stream.",
        _ITEMS_OUT,
        (404, 406, 410, 413, 501),
    ),
    ("GET", "/topic/{name}/splits"): Operation(
        "Split the durable part of a topic into ranges that workers can read in parallel.",
        _json(list[Split]),
        (404, 410, 413),
    ),
    ("GET", "/topic/{name}/producers"): Operation(
        "Return the producer state of a partition, for a replica.",
        {"application/octet-stream": BYTES},
        (404, 413),
        headers=(("headwater-from", NUMBER),),
    ),
    ("GET", "/replication/topics"): Operation("List the topics, for a replica.", _json(list[TopicState])),
    ("POST", "/replication/batches"): Operation(
        "Return the next batches of several logs, for a replica.",
        {replication.MEDIA_TYPE: BYTES},
        (413, 415),
        _json(replication.ReplicationRequest),
    ),
    ("POST", "/api/events"): Operation(
        "Put an event on the bus. The body must be UTF-8.",
        _json({"type": "object", "properties": {"id": UUID}, "required": ["id"]}),
        (413,),
        {"text/plain": TEXT, "application/json": {}},
        body_required=False,
    ),
    ("GET", "/api/events"): Operation("Stream the bus as server-sent events.", {SSE: TEXT}, (406, 413)),
    ("POST", "/transaction"): Operation(
        "Append to several topics and acknowledge events, atomically.",
        _json(CommitAnswer),
        (404, 409, 413, 501),
        _json(TransactionRequest),
    ),
    ("GET", "/consumers"): Operation(
        "List the consumers with their cursors and members.", _json(list[ConsumerInfo]), (404, 413)
    ),
    ("POST", "/consumer/{name}/{topic}/seek"): Operation(
        "Move a consumer; returns its new cursors.",
        _json({"type": "object", "additionalProperties": NUMBER}),
        (404, 410, 413),
        _json(Seek),
    ),
    ("DELETE", "/consumer/{name}/{topic}"): Operation("Forget a consumer.", TRUE, (404, 413)),
    ("POST", "/consumer/{name}/{topic}/items"): Operation(
        "Join a consumer, and stream the new member's events until the connection ends.",
        {NDJSON: BYTES},
        (404, 406, 410, 413, 501),
        headers=(("Headwater-Member", TEXT), ("Headwater-Owner", TEXT), ("Headwater-Lease", NUMBER)),
    ),
    ("POST", "/consumer/{name}/{topic}/acks"): Operation(
        "Acknowledge or fail events delivered to a member, or renew its lease.",
        _json(AckResult),
        (404, 409, 410, 413),
        _json(Acks),
    ),
    ("GET", "/binders"): Operation("List the binders.", _json(list[BinderInfo])),
    ("GET", "/binders/{binder}"): Operation(
        "Return a binder's contents and the projections that fill it.", _json(BinderInfo), (404, 413)
    ),
    ("GET", "/binders/{binder}/{id}"): Operation("A document.", _json(Document), (404, 413)),
    ("POST", "/binders/{binder}/query"): Operation(
        "Find documents, count them, or explain the query plan.",
        {"application/json": {"oneOf": [_list(_ref("Document")), _COUNTED, _EXPLAINED]}, NDJSON: BYTES},
        (404, 406, 413, 501),
        _json(DocumentQuery),
        body_required=False,
    ),
    ("GET", "/binders/{binder}/changes"): Operation(
        "Stream the changes of documents. As JSON only: the document with the id changes.",
        {"application/json": Document, SSE: TEXT, NDJSON: BYTES},
        (404, 406, 413),
        headers=(("Headwater-Place", TEXT),),
    ),
    ("POST", "/binders/{binder}/index"): Operation(
        "Create an index on a field, if there is none.", TRUE, (404, 413), _json(Field)
    ),
    ("GET", "/views"): Operation("Return the state of projections and functions.", _json(list[ViewInfo])),
    ("POST", "/query/{query}"): Operation(
        "Run a named query; the body has its arguments.",
        _json({}),
        (404, 409, 410, 413, 501),
        _json({"type": "object"}),
        body_required=False,
    ),
    ("GET", "/health"): Operation(
        "Check that the log can be read and accepts appends.",
        _json({"type": "object", "properties": {"status": {"const": "ok"}}}),
    ),
    ("GET", "/version"): Operation("Return the version of the server.", _json(_ref("Version"))),
    ("GET", "/metrics"): Operation("Return metrics for Prometheus.", {"text/plain": TEXT}),
    ("GET", "/openapi.json"): Operation("This document.", _json({"type": "object"})),
}


_WRITTEN: dict[str, Schema] = {
    "Error": _object(
        ("kind", "code", "message", "hint", "facts"),
        kind=TEXT,
        code=TEXT,
        message=TEXT,
        hint=TEXT,
        facts={"type": "object"},
    ),
    "Appended": _object(
        ("count", "durability", "runs"),
        count=NUMBER,
        durability=parameters.DURABILITY.schema,
        runs=_list(
            _object(
                ("partition", "offset", "count", "id"),
                partition=PARTITION_NUMBER,
                offset=NUMBER,
                count=NUMBER,
                id=UUID,
                rows=_list(NUMBER),
            )
        ),
    ),
    "Version": _object(("version", "format", "python", "uuid"), version=TEXT, format=NUMBER, python=TEXT, uuid=TEXT),
}


def encoded(authenticates: bool, root: str = "") -> bytes:
    """Return the document as JSON. `root` is where the routes are mounted."""
    return msgspec.json.encode(_document(authenticates) | {"servers": [{"url": root or "/"}]})


@cache
def _document(authenticates: bool) -> dict[str, Any]:
    return document(ROUTES, authenticates=authenticates)


def document(routes: Iterable[Route], *, authenticates: bool) -> dict[str, Any]:
    """Return the document of these routes. Raises KeyError for one that `OPERATIONS` does not tell of."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        described = _operation(route, OPERATIONS[route.method, route.pattern], authenticates)
        paths.setdefault(route.pattern, {})[route.method.lower()] = described
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


def _operation(route: Route, operation: Operation, authenticates: bool) -> dict[str, Any]:
    guarded = authenticates and route.right.needed is not None
    statuses = sorted({*ANY, *operation.errors, *(GUARDED if guarded else FOREIGN)})
    told: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": route.handler.__module__.rpartition(".")[2] + "." + route.handler.__name__,
        "parameters": [_parameter(each) for each in (*_of_path(route.pattern), *route.parameters)],
        "responses": {
            "200": {
                "description": operation.summary,
                "content": _content(operation.answer),
                "headers": _headers(operation.headers),
            },
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in statuses},
        },
    }
    if operation.body is not None:
        told["requestBody"] = {"content": _content(operation.body), "required": operation.body_required}
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
        "content": _content(_json(_ref("Error"))),
        "headers": _headers(ERROR_HEADERS.get(status, ())),
    }


@cache
def _of_types() -> tuple[dict[Any, Schema], dict[str, Schema]]:
    """Return the schemas of the types in `OPERATIONS`, and what those refer to."""
    contents = [content for each in OPERATIONS.values() for content in (each.answer, each.body or {})]
    used = [schema for content in contents for schema in content.values()]
    return schemas.of_types(schema for schema in used if not isinstance(schema, dict | None))
