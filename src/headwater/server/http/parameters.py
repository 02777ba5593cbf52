"""What requests may have in their query and headers: each parameter once, with its schema and what it means.

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
    """The names that may be in the query: what `Query.only` takes."""
    return tuple(parameter.name for parameter in parameters if parameter.where == "query")


def choice(*values: str) -> Schema:
    """The schema of one of these."""
    return {"type": "string", "enum": list(values)}


# Of the path

TOPIC_NAME = Parameter("name", {**TEXT, "minLength": 1, "maxLength": 1024}, "A topic.", "path", True)
CONSUMER_NAME = Parameter("name", {**TEXT, "minLength": 1, "maxLength": 64}, "A consumer.", "path", True)
CONSUMER_TOPIC = Parameter("topic", TOPIC_NAME.schema, "The topic that it reads.", "path", True)

BINDER_NAME = Parameter("binder", {**TEXT, "minLength": 1, "maxLength": 64}, "A binder.", "path", True)
DOCUMENT_ID = Parameter("id", {**TEXT, "maxLength": 1024}, "A document's id.", "path", True)
QUERY_NAME = Parameter("query", {**TEXT, "minLength": 1, "maxLength": 64}, "A query with a name.", "path", True)

# Of any request about events

TYPE = Parameter("type", EVENT_TYPE, "The event's type.")
KEY = Parameter("key", TEXT, "The event's key: bytes, percent-encoded.")
PARTITION = Parameter("partition", PARTITION_NUMBER, "One partition of the topic.")
DURABILITY = Parameter("durability", choice("fsync", "os"), "What has the event when the answer comes: disk or kernel.")

# What is read

TYPE_PATTERN = Parameter("type", TEXT, "An RE2 pattern over the whole type.")
KEY_WANTED = Parameter("key", TEXT, "Only events of this key: bytes, percent-encoded.")
MATCH = Parameter(
    "match", {**TEXT, "contentMediaType": "application/json"}, "A match of fields, as JSON (docs/MATCH.md)."
)
FILTERS = (TYPE_PATTERN, KEY_WANTED, MATCH)

# Of a route each

_SETTINGS = (
    Parameter("partitions", {"type": "integer", "minimum": 1, "maximum": PARTITIONS_MAX}, "How many; 1 unless said."),
    Parameter("segment_bytes", NUMBER, "A new segment begins at this size."),
    Parameter("segment_age_ms", NUMBER, "A new segment begins at this age."),
    Parameter("data_bytes_max", NUMBER, "The largest item."),
    Parameter("compression", choice("none", "zstd"), "Of the stored data."),
    Parameter("retention_bytes", NUMBER, "Each partition keeps about so much."),
    Parameter("retention_segments", NUMBER, "Each partition keeps so many segments."),
    Parameter("retention_age_ms", NUMBER, "Each partition keeps what is younger."),
    Parameter("retention_consumers", FLAG, "Nothing goes before the slowest consumer has passed it."),
    Parameter("retention_bytes_hard", NUMBER, "No partition keeps more, whoever has not passed it."),
    Parameter(
        "overflow", choice("delete", "refuse"), "What happens at the hard bound: the oldest go, or no more come."
    ),
)
CREATE = _SETTINGS

VERSION = (KEY._replace(description="The key: bytes, percent-encoded.", required=True), PARTITION)
PRODUCERS = (PARTITION,)
REPLAY = (Parameter("consumer", TEXT, "Only what this consumer has set aside."),)

_EXPECTED = {"oneOf": [NUMBER, {"type": "string", "const": "none"}]}
_PRODUCER = {**TEXT, "minLength": 1, "maxLength": 255}
APPEND = (
    TYPE,
    KEY,
    PARTITION,
    Parameter("expected_version", _EXPECTED, "The key's version must be this, or none at all."),
    DURABILITY,
    Parameter("events", FLAG, "The lines or elements are whole events, as GET writes them."),
    Parameter("content", choice(*CONTENTS), "The body is one event, and this is what its data is."),
    Parameter("one", FLAG, "A JSON array is one event."),
    Parameter(
        "Headwater-Meta", {**TEXT, "contentMediaType": "application/json"}, "A flat JSON object of strings.", "header"
    ),
    Parameter("Headwater-Producer", _PRODUCER, "Who appends: the same request sent again appends once.", "header"),
    Parameter("Headwater-Epoch", NUMBER, "The producer's epoch: an older one is fenced.", "header"),
    Parameter("Headwater-Seq", NUMBER, "The request's number; grows with each.", "header"),
)

_OFFSETS: Schema = {"type": "string", "pattern": "^[0-9]+(,[0-9]+)+$"}
_TIME: Schema = {"type": "string", "format": "date-time"}
_POSITION = {"anyOf": [NUMBER, choice("earliest", "latest"), _TIME, UUID, _OFFSETS]}
_FORMATS = ("items", "sse", "ndjson", "json", "arrow", "batches")
_BEGIN = (
    Parameter("from", _POSITION, "Where to begin: an offset, a time, an event's id, earliest or latest."),
    Parameter("from_time", TEXT, "Instead of from: ISO 8601 with its zone, or milliseconds since 1970."),
    Parameter("from_id", UUID, "Instead of from: an event's UUIDv6."),
)
READ = (
    *_BEGIN,
    Parameter("end_before", _POSITION, "Where to end, exclusive; for batches any position, else an offset."),
    Parameter("end_after", NUMBER, "The answer ends after this id."),
    Parameter("max_items", NUMBER, "The answer ends after so many."),
    Parameter("wait_for_more", FLAG, "The answer stays open for what comes."),
    *FILTERS,
    PARTITION,
    Parameter(
        "order", choice("partition", "time"), "For batches of several partitions: one after the other, or by time."
    ),
    Parameter("reverse", FLAG, "For batches: the last one first."),
    Parameter("columns", TEXT, "For Arrow: the columns, apart by commas."),
    Parameter("format", choice(*_FORMATS), "Instead of Accept, for readers that cannot set a header."),
    Parameter("Last-Event-ID", TEXT, "For server-sent events: go on after this one.", "header"),
)

SPLITS = (
    *_BEGIN,
    Parameter("end_before", _POSITION, "Where to end, exclusive."),
    PARTITION,
    Parameter("split_bytes", {**NUMBER, "minimum": 1}, "About how large each is; 64 MiB unless said."),
)

PUBLISH = (TYPE._replace(required=True),)
BUS = (
    Parameter("Last-Event-ID", TEXT, "Go on after this event.", "header"),
    Parameter("lastEventId", TEXT, "The same, for clients that cannot set a header."),
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
    Parameter("timeout", {"type": "number", "minimum": 0}, "Seconds after which the answer ends if nothing comes."),
    Parameter("instead", TEXT, "A member of this client that is to leave at once: its connection broke."),
)

_PLACES: Schema = {"type": "string", "pattern": "^[^:,]+:[0-9]+:[0-9]+(,[^:,]+:[0-9]+:[0-9]+)*$"}
_SECONDS: Schema = {"type": "number", "minimum": 0}
PASSED = (
    Parameter(
        "at_least",
        {"oneOf": [NUMBER, _PLACES]},
        "Answer when the projections have passed this: topic:partition:offset, apart by commas; or an offset.",
    ),
    Parameter("timeout", _SECONDS, "Seconds to wait for that; 10 unless said."),
)
CHANGES = (
    Parameter("after", TEXT, "Go on after this place, or latest; unless said, all documents come first."),
    Parameter("Last-Event-ID", TEXT, "The same; it counts more.", "header"),
    *PASSED,
)

QUERY_NAMES = frozenset(
    names((*CREATE, *VERSION, *REPLAY, *APPEND, *READ, *SPLITS, *PUBLISH, *BUS, *CONSUMERS, *CONSUME, *CHANGES))
)
"""All that a query may have. Whatever else somebody puts there may be a secret, and is not for any log."""
