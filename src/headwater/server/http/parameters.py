"""The parameters of requests in query and headers: each one once, with its schema and description.

The table of routes names the parameters of each route. The router refuses a query with any other, and the OpenAPI
document lists the same ones, so that neither can say what the other does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from headwater.event import CONTENTS
from headwater.limits import PARTITIONS_MAX, TYPE_BYTES_MAX

Schema = dict[str, Any]

NUMBER: Schema = {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1}
FLAG: Schema = {"type": "boolean"}
TEXT: Schema = {"type": "string"}
PARTITION_NUMBER: Schema = {"type": "integer", "minimum": 0, "maximum": PARTITIONS_MAX - 1}
EVENT_TYPE: Schema = {"type": "string", "maxLength": TYPE_BYTES_MAX}
UUID: Schema = {"type": "string", "format": "uuid"}


class Parameter(NamedTuple):
    """One parameter of a request, as OpenAPI describes it."""

    name: str
    schema: Schema
    description: str
    where: Literal["query", "header", "path"] = "query"
    required: bool = False


def names(parameters: Iterable[Parameter]) -> tuple[str, ...]:
    """Return the names that may be in the query: what `Query.only` takes."""
    return tuple(parameter.name for parameter in parameters if parameter.where == "query")


def choice(*values: str) -> Schema:
    """Return the schema of one of these."""
    return {"type": "string", "enum": list(values)}


# Of the path

TOPIC_NAME = Parameter("name", {**TEXT, "minLength": 1, "maxLength": 1024}, "A topic.", "path", True)
CONSUMER_NAME = Parameter("name", {**TEXT, "minLength": 1, "maxLength": 64}, "A consumer.", "path", True)
CONSUMER_TOPIC = Parameter("topic", TOPIC_NAME.schema, "The topic that it reads.", "path", True)

BINDER_NAME = Parameter("binder", {**TEXT, "minLength": 1, "maxLength": 64}, "A binder.", "path", True)
DOCUMENT_ID = Parameter("id", {**TEXT, "maxLength": 1024}, "A document's id.", "path", True)
QUERY_NAME = Parameter("query", {**TEXT, "minLength": 1, "maxLength": 64}, "The name of a query.", "path", True)

# Of any request about events

TYPE = Parameter("type", EVENT_TYPE, "The event's type.")
KEY = Parameter("key", TEXT, "The event's key: bytes, percent-encoded.")
PARTITION = Parameter("partition", PARTITION_NUMBER, "One partition of the topic.")
DURABILITY = Parameter(
    "durability",
    choice("fsync", "os"),
    "Respond when the event is on disk (fsync), or written to the operating system (os).",
)

# What is read

TYPE_PATTERN = Parameter("type", TEXT, "An RE2 pattern over the whole type.")
KEY_WANTED = Parameter("key", TEXT, "Only events of this key: bytes, percent-encoded.")
MATCH = Parameter(
    "match", {**TEXT, "contentMediaType": "application/json"}, "A match of fields, as JSON (docs/MATCH.md)."
)
FILTERS = (TYPE_PATTERN, KEY_WANTED, MATCH)

# Of a route each

_SETTINGS = (
    Parameter(
        "partitions", {"type": "integer", "minimum": 1, "maximum": PARTITIONS_MAX}, "Number of partitions; default 1."
    ),
    Parameter("segment_bytes", NUMBER, "Start a new segment at this size."),
    Parameter("segment_age_ms", NUMBER, "Start a new segment at this age."),
    Parameter("data_bytes_max", NUMBER, "Largest data of one event."),
    Parameter("compression", choice("none", "zstd"), "Compression of stored data."),
    Parameter("retention_bytes", NUMBER, "Keep about this many bytes of each partition."),
    Parameter("retention_segments", NUMBER, "Keep at most this many segments of each partition."),
    Parameter("retention_age_ms", NUMBER, "Keep segments whose last event is younger than this."),
    Parameter("retention_consumers", FLAG, "Keep events that the slowest consumer has not passed."),
    Parameter("retention_bytes_hard", NUMBER, "Limit of each partition, even if a consumer has not passed it."),
    Parameter(
        "overflow", choice("delete", "refuse"), "At the hard limit: delete the oldest events, or refuse appends."
    ),
)
CREATE = _SETTINGS

VERSION = (KEY._replace(description="The key: bytes, percent-encoded.", required=True), PARTITION)
PRODUCERS = (PARTITION,)
REPLAY = (Parameter("consumer", TEXT, "Only dead letters of this consumer."),)

_EXPECTED = {"oneOf": [NUMBER, {"type": "string", "const": "none"}]}
_PRODUCER = {**TEXT, "minLength": 1, "maxLength": 255}
APPEND = (
    TYPE,
    KEY,
    PARTITION,
    Parameter(
        "expected_version",
        _EXPECTED,
        "Append only if the key's last event has this offset; none: if the key has no event.",
    ),
    DURABILITY,
    Parameter("events", FLAG, "The lines or elements are whole events, as GET writes them."),
    Parameter("content", choice(*CONTENTS), "The body is one event, whose data has this content."),
    Parameter("one", FLAG, "A JSON array is one event."),
    Parameter(
        "Headwater-Meta", {**TEXT, "contentMediaType": "application/json"}, "A flat JSON object of strings.", "header"
    ),
    Parameter("Headwater-Producer", _PRODUCER, "Producer id: makes a retried request idempotent.", "header"),
    Parameter("Headwater-Epoch", NUMBER, "Producer epoch: a higher epoch fences lower ones.", "header"),
    Parameter("Headwater-Seq", NUMBER, "Sequence number of the request; must increase.", "header"),
)

_OFFSETS: Schema = {"type": "string", "pattern": "^[0-9]+(,[0-9]+)+$"}
_TIME: Schema = {"type": "string", "format": "date-time"}
_POSITION = {"anyOf": [NUMBER, choice("earliest", "latest"), _TIME, UUID, _OFFSETS]}
_FORMATS = ("items", "sse", "ndjson", "json", "arrow", "batches")
_BEGIN = (
    Parameter("from", _POSITION, "Where to start: an offset, a time, an event's id, earliest or latest."),
    Parameter("from_time", TEXT, "Instead of from: ISO 8601 with a time zone, or milliseconds since 1970."),
    Parameter("from_id", UUID, "Instead of from: an event's UUIDv6."),
)
READ = (
    *_BEGIN,
    Parameter("end_before", _POSITION, "Stop before this position; an offset, except for batches."),
    Parameter("end_after", NUMBER, "Stop after this id."),
    Parameter("max_items", NUMBER, "Maximum number of events."),
    Parameter("wait_for_more", FLAG, "Keep the response open and stream new events."),
    *FILTERS,
    PARTITION,
    Parameter(
        "order",
        choice("partition", "time"),
        "For batches of several partitions: one partition after the other, or by time.",
    ),
    Parameter("reverse", FLAG, "For batches: newest first."),
    Parameter("columns", TEXT, "For Arrow: the columns, comma-separated."),
    Parameter("format", choice(*_FORMATS), "Instead of Accept, for clients that cannot set headers."),
    Parameter("Last-Event-ID", TEXT, "For server-sent events: continue after this one.", "header"),
)

SPLITS = (
    *_BEGIN,
    Parameter("end_before", _POSITION, "Stop before this position."),
    PARTITION,
    Parameter("split_bytes", {**NUMBER, "minimum": 1}, "Approximate size of each split; default 64 MiB."),
)

PUBLISH = (TYPE._replace(required=True),)
BUS = (
    Parameter("Last-Event-ID", TEXT, "Continue after this event.", "header"),
    Parameter("lastEventId", TEXT, "Instead of Last-Event-ID, for clients that cannot set headers."),
    Parameter("typeMatcher", TEXT, "An RE2 pattern over the whole type."),
)

CONSUMERS = (Parameter("topic", TEXT, "Only consumers of this topic."),)
CONSUME = (
    Parameter("start", TEXT, "Where a new consumer begins: earliest, latest, an offset, a time, or an event's UUIDv6."),
    *FILTERS,
    Parameter(
        "lease_ms", {**NUMBER, "minimum": 50}, "How long the member keeps its partitions after it was last heard of."
    ),
    Parameter("failures_max", {**NUMBER, "minimum": 1}, "An event that failed so often is set aside."),
    Parameter("timeout", {"type": "number", "minimum": 0}, "End after this many seconds without an event."),
    Parameter("instead", TEXT, "An earlier member of this client, whose connection broke; it leaves at once."),
)

_PLACES: Schema = {"type": "string", "pattern": "^[^:,]+:[0-9]+:[0-9]+(,[^:,]+:[0-9]+:[0-9]+)*$"}
_SECONDS: Schema = {"type": "number", "minimum": 0}
PASSED = (
    Parameter(
        "at_least",
        {"oneOf": [NUMBER, _PLACES]},
        "Wait until the projections have passed these: topic:partition:offset, comma-separated; or an offset.",
    ),
    Parameter("timeout", _SECONDS, "Longest wait for at_least, in seconds; default 10."),
)
CHANGES = (
    Parameter("after", TEXT, "Continue after this place, or latest. By default, all documents come first."),
    Parameter("Last-Event-ID", TEXT, "Overrides after.", "header"),
    *PASSED,
)
