"""The table of routes: of each its handler, right, parameters, responses and description, in one record.

The server dispatches by it, the OpenAPI document is built from it, and docs/SECURITY.md is compared with it. To add a
route, write a handler, and a record here.
"""

from __future__ import annotations

import msgspec

from headwater.document import Document
from headwater.event import Durability
from headwater.format import replication as replicated
from headwater.format.jsonl import EventLine
from headwater.format.replication import TopicState
from headwater.info import BinderInfo, ConsumerInfo, DeletedSegment, Split, TopicInfo, ViewInfo
from headwater.server.http import (
    appending,
    binders,
    bus,
    consumers,
    parameters,
    reading,
    replication,
    system,
    topics,
    transactions,
    views,
)
from headwater.server.http.binders import DocumentQuery, Field
from headwater.server.http.consumers import AckResult, Acks, Seek
from headwater.server.http.parameters import NUMBER, PARTITION_NUMBER, TEXT, UUID, Schema
from headwater.server.http.route import Content, Route, json_of, list_of, object_of, ref
from headwater.server.http.topics import Retain
from headwater.server.http.transactions import RefLine, TransactionRequest
from headwater.server.rights import ADMIN, APPEND, BINDER, FRAMES, OPEN, READ, USER, Right

ARROW = "application/vnd.apache.arrow.stream"
BATCHES = "application/vnd.headwater.batches"
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
BYTES: Schema = {"type": "string", "format": "binary"}


class CommitAnswer(msgspec.Struct):
    """The answer of a transaction."""

    refs: list[RefLine]
    durability: Durability


TRUE = json_of({"const": True})
_COUNTED = object_of(("count",), count=NUMBER)
_EXPLAINED = object_of(("plan",), plan=TEXT)
_PLACED = (("Headwater-Partition", PARTITION_NUMBER), ("Headwater-Id", UUID), ("Headwater-Durability", TEXT))
_APPENDED = json_of({"oneOf": [NUMBER, ref("Appended")]})
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

ROUTES = (
    Route("GET", "/topics", topics.list_topics, USER, "List the names of the topics.", json_of(list_of(TEXT))),
    Route(
        "PUT",
        "/topic/{name}",
        topics.create,
        APPEND,
        "Create a topic: true if it is new, false if it existed.",
        json_of({"type": "boolean"}),
        errors=(413, 501),
        parameters=parameters.CREATE,
    ),
    Route(
        "GET",
        "/topic/{name}",
        topics.describe,
        READ,
        "Return a topic's settings and size.",
        json_of(TopicInfo),
        errors=(404, 413),
    ),
    Route(
        "DELETE", "/topic/{name}", topics.delete, ADMIN, "Delete a topic and all its events.", TRUE, errors=(404, 413)
    ),
    Route(
        "GET",
        "/topic/{name}/version",
        topics.version,
        READ,
        "Return the offset of a key's last event, or null.",
        json_of({"oneOf": [NUMBER, {"type": "null"}]}),
        errors=(404, 413),
        parameters=parameters.VERSION,
    ),
    Route(
        "POST", "/topic/{name}/sync", topics.sync, APPEND, "Make all earlier appends durable.", TRUE, errors=(404, 413)
    ),
    Route(
        "POST",
        "/topic/{name}/retain",
        topics.retain,
        ADMIN,
        "Change the retention policy and delete segments that it no longer keeps.",
        json_of(list[DeletedSegment]),
        errors=(404, 413),
        body=json_of(Retain),
        body_required=False,
    ),
    Route(
        "POST",
        "/topic/{name}/replay",
        topics.replay,
        ADMIN,
        "Append dead-lettered events to the topic again; returns their number.",
        json_of(NUMBER),
        errors=(404, 409, 413),
        parameters=parameters.REPLAY,
    ),
    Route(
        "POST",
        "/topic/{name}/items",
        appending.append,
        APPEND,
        "Append the body: one event of any Content-Type, or several in a format for many.",
        _APPENDED,
        errors=(404, 409, 413, 415, 501),
        parameters=parameters.APPEND,
        body=_ITEMS_IN,
        headers=_PLACED,
        body_required=False,
    ),
    Route(
        "GET",
        "/topic/{name}/items",
        reading.read,
        READ,
        "Read events in a format named by Accept; with wait_for_more, as a live stream.",
        _ITEMS_OUT,
        errors=(404, 406, 410, 413, 501),
        parameters=parameters.READ,
    ),
    Route(
        "GET",
        "/topic/{name}/splits",
        reading.splits,
        READ,
        "Split the durable part of a topic into ranges that workers can read in parallel.",
        json_of(list[Split]),
        errors=(404, 410, 413),
        parameters=parameters.SPLITS,
    ),
    Route(
        "GET",
        "/topic/{name}/producers",
        replication.remembered,
        READ,
        "Return the producer state of a partition, for a replica.",
        {"application/octet-stream": BYTES},
        errors=(404, 413),
        parameters=parameters.PRODUCERS,
        headers=(("headwater-from", NUMBER),),
    ),
    Route(
        "GET",
        "/replication/topics",
        replication.list_topics,
        USER,
        "List the topics, for a replica.",
        json_of(list[TopicState]),
    ),
    Route(
        "POST",
        "/replication/batches",
        replication.batches,
        Right("read", "each topic"),
        "Return the next batches of several logs, for a replica.",
        {replicated.MEDIA_TYPE: BYTES},
        errors=(413, 415),
        body=json_of(replicated.ReplicationRequest),
    ),
    Route(
        "POST",
        "/transaction",
        transactions.commit,
        Right("append", "each topic"),
        "Append to several topics and acknowledge events, atomically.",
        json_of(CommitAnswer),
        errors=(404, 409, 413, 501),
        body=json_of(TransactionRequest),
        also={"with acks": Right("read", "each topic")},
    ),
    Route(
        "GET",
        "/consumers",
        consumers.list_consumers,
        USER,
        "List the consumers with their cursors and members.",
        json_of(list[ConsumerInfo]),
        errors=(404, 413),
        parameters=parameters.CONSUMERS,
    ),
    Route(
        "POST",
        "/consumer/{name}/{topic}/items",
        consumers.join,
        READ,
        "Join a consumer, and stream the new member's events until the connection ends.",
        {NDJSON: BYTES},
        errors=(404, 406, 410, 413, 501),
        parameters=parameters.CONSUME,
        headers=(("Headwater-Member", TEXT), ("Headwater-Owner", TEXT), ("Headwater-Lease", NUMBER)),
    ),
    Route(
        "POST",
        "/consumer/{name}/{topic}/acks",
        consumers.settle,
        READ,
        "Acknowledge or fail events delivered to a member, or renew its lease.",
        json_of(AckResult),
        errors=(404, 409, 410, 413),
        body=json_of(Acks),
        also={"with seek": ADMIN},
    ),
    Route(
        "POST",
        "/consumer/{name}/{topic}/seek",
        consumers.seek,
        ADMIN,
        "Move a consumer; returns its new cursors.",
        json_of({"type": "object", "additionalProperties": NUMBER}),
        errors=(404, 410, 413),
        body=json_of(Seek),
    ),
    Route("DELETE", "/consumer/{name}/{topic}", consumers.forget, ADMIN, "Forget a consumer.", TRUE, errors=(404, 413)),
    Route(
        "POST",
        "/api/events",
        bus.publish,
        Right("append", "bus"),
        "Put an event on the bus. The body must be UTF-8.",
        json_of({"type": "object", "properties": {"id": UUID}, "required": ["id"]}),
        errors=(413,),
        parameters=parameters.PUBLISH,
        body={"text/plain": TEXT, "application/json": {}},
        body_required=False,
    ),
    Route(
        "GET",
        "/api/events",
        bus.follow,
        Right("read", "bus"),
        "Stream the bus as server-sent events.",
        {SSE: TEXT},
        errors=(406, 413),
        parameters=parameters.BUS,
    ),
    Route("GET", "/binders", binders.list_binders, USER, "List the binders.", json_of(list[BinderInfo])),
    Route(
        "GET",
        "/binders/{binder}",
        binders.describe,
        BINDER,
        "Return a binder's contents and the projections that fill it.",
        json_of(BinderInfo),
        errors=(404, 413),
    ),
    Route(
        "POST",
        "/binders/{binder}/query",
        binders.query,
        BINDER,
        "Find documents, count them, or explain the query plan.",
        {"application/json": {"oneOf": [list_of(ref("Document")), _COUNTED, _EXPLAINED]}, NDJSON: BYTES},
        errors=(404, 406, 413, 501),
        parameters=parameters.PASSED,
        body=json_of(DocumentQuery),
        body_required=False,
    ),
    Route(
        "GET",
        "/binders/{binder}/changes",
        binders.changes,
        BINDER,
        "Stream the changes of documents. As JSON only: the document with the id changes.",
        {"application/json": Document, SSE: TEXT, NDJSON: BYTES},
        errors=(404, 406, 413),
        parameters=parameters.CHANGES,
        headers=(("Headwater-Place", TEXT),),
    ),
    Route(
        "POST",
        "/binders/{binder}/index",
        binders.index,
        Right("admin", "binder"),
        "Create an index on a field, if there is none.",
        TRUE,
        errors=(404, 413),
        body=json_of(Field),
    ),
    Route(
        "GET",
        "/binders/{binder}/{id}",
        binders.get,
        BINDER,
        "A document.",
        json_of(Document),
        errors=(404, 413),
        parameters=parameters.PASSED,
    ),
    Route(
        "GET",
        "/views",
        views.list_views,
        USER,
        "Return the state of projections and functions.",
        json_of(list[ViewInfo]),
    ),
    Route(
        "POST",
        "/query/{query}",
        views.ask,
        Right("read", "query"),
        "Run a named query; the body has its arguments.",
        json_of({}),
        errors=(404, 409, 410, 413, 501),
        body=json_of({"type": "object"}),
        body_required=False,
    ),
    Route(
        "GET",
        "/health",
        system.health,
        OPEN,
        "Check that the log can be read and accepts appends.",
        json_of({"type": "object", "properties": {"status": {"const": "ok"}}}),
    ),
    Route("GET", "/version", system.version, OPEN, "Return the version of the server.", json_of(ref("Version"))),
    Route(
        "GET",
        "/metrics",
        system.metrics,
        Right("read", "all topics"),
        "Return metrics for Prometheus.",
        {"text/plain": TEXT},
    ),
    Route("GET", "/openapi.json", system.openapi, OPEN, "This document.", json_of({"type": "object"})),
)

RIGHTS: dict[str, Right] = {name: right for route in ROUTES for name, right in route.rights.items()} | FRAMES
"""The rights of all requests and frames, by name."""

QUERY_NAMES = frozenset(name for route in ROUTES for name in route.query_names)
"""All known parameters. Any other may hold a secret, and must not be logged."""
