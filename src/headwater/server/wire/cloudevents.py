"""CloudEvents 1.0, as the HTTP binding has them, on their way in.

    structured(body) -> Item              one event in JSON          application/cloudevents+json
    batch(body, limits) -> Parsed         an array of them           application/cloudevents-batch+json
    binary(headers, body) -> Item         attributes in ce- headers, the body is the data
    is_binary(headers) -> bool

`type` is the event's type, `subject` its key, `data` its data. What a log has no place for, `id`, `source`, `time` and
all other attributes, is kept in meta under its name in a header: `ce-id`. Bytes only; safe from any thread.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import UNSET, Raw, UnsetType

from headwater.errors import Invalid
from headwater.event import Content
from headwater.format import given
from headwater.limits import Limits
from headwater.server.wire.decoding import ParsedEvents, decoded, more_than, too_many

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
PREFIX = "ce-"
REQUIRED = ("id", "source", "specversion", "type")
VERSION = "1.0"
_NAME = re.compile(r"[a-z0-9]{1,64}").fullmatch  # of an attribute; ours, so not a user's pattern
_JSON = re.compile(r"(?:[^/]+/json|[^/]+/[^/]+\+json)").fullmatch

NONE = "this is not a CloudEvent"
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_array = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_decode_value = msgspec.json.Decoder(str | bool | int | None).decode
_decode_text = msgspec.json.Decoder(str).decode


class Item(NamedTuple):
    """One event as a log has it."""

    type: str
    key: bytes | None
    data: bytes
    content: Content
    meta: dict[str, str]


def structured(body: bytes) -> Item:
    """Return one event in JSON; raises Invalid."""
    return _item(decoded(_decode_object, body, NONE))


def batch(body: bytes, limits: Limits) -> ParsedEvents:
    """Return an array of events, of one content; raises Invalid, and TooLarge for too many."""
    if more_than(body, limits.batch_events_max):
        raise too_many(limits.batch_events_max + 1, limits)
    found = decoded(_decode_array, body, NONE)
    if len(found) > limits.batch_events_max:
        raise too_many(len(found), limits)
    items = [_item(each) for each in found]
    contents = {item.content for item in items}
    if len(contents) > 1:
        raise Invalid(
            f"the events have different contents: {', '.join(sorted(contents))}",
            hint="send each content in its own request",
            code="bad_body",
        )
    if not items:
        return ParsedEvents("json", {}, 0)
    content, columns = given.encode_many(
        [item.data for item in items],
        items[0].content,
        [item.type for item in items],
        [item.key for item in items] if any(item.key is not None for item in items) else None,
        [item.meta for item in items],
        limits,
    )
    return ParsedEvents(content, columns, len(items))


def is_binary(headers: Mapping[str, str]) -> bool:
    """Return whether the headers say that the body is the data of one event."""
    return f"{PREFIX}specversion" in headers


def binary(headers: Mapping[str, str], body: bytes) -> Item:
    """Return one event whose attributes are headers; raises Invalid."""
    attributes = {
        name.removeprefix(PREFIX): _unquoted(name, value) for name, value in headers.items() if name.startswith(PREFIX)
    }
    media = headers.get("content-type", "")
    if media:
        attributes["datacontenttype"] = media
    return _made(attributes, body, _content_of(media, "bytes"))


def _item(fields: dict[str, Raw]) -> Item:
    data, encoded = fields.pop("data", UNSET), fields.pop("data_base64", UNSET)
    attributes = {}
    for name, raw in fields.items():
        value = decoded(_decode_value, raw, NONE)
        if value is not None:
            attributes[name] = str(value).lower() if isinstance(value, bool) else str(value)
    if data is not UNSET and encoded is not UNSET:
        raise _bad("it has both data and data_base64")
    return _made(attributes, *_data(data, encoded, attributes.get("datacontenttype", "application/json")))


def _data(data: Raw | UnsetType, encoded: Raw | UnsetType, media: str) -> tuple[bytes, Content]:
    """Return the data of an event in JSON. Where it is not JSON itself, a string is meant as what it says."""
    if encoded is not UNSET:
        text = decoded(_decode_text, encoded, NONE)
        try:
            return a2b_base64(text.encode(), strict_mode=True), _content_of(media, "bytes")
        except ValueError as error:
            raise _bad(f"data_base64 is not base64: {error}") from error
    if data is UNSET:
        return b"", "bytes"
    raw = bytes(data)
    if _JSON(_type_of(media)) or raw[:1] != b'"':
        return raw, "json"
    return decoded(_decode_text, raw, NONE).encode(), "text"


def _made(attributes: dict[str, str], data: bytes, content: Content) -> Item:
    for name in attributes:
        if not _NAME(name):
            raise _bad(f"{name[:80]!r} is not an attribute name", "use lower-case letters and digits")
    missing = [name for name in REQUIRED if not attributes.get(name)]
    if missing:
        raise _bad(f"{', '.join(missing)} is missing", "id, source, specversion and type are required")
    if attributes["specversion"] != VERSION:
        raise _bad(f"unsupported specversion {attributes['specversion'][:20]!r}", f"use {VERSION}")
    type, subject = attributes.pop("type"), attributes.pop("subject", None)
    meta = {f"{PREFIX}{name}": value for name, value in attributes.items()}
    return Item(type, None if subject is None else subject.encode(), data, content, meta)


def _content_of(media: str, default: Content) -> Content:
    type = _type_of(media)
    return "json" if _JSON(type) else "text" if type.startswith("text/") else default


def _type_of(media: str) -> str:
    return media.partition(";")[0].strip().lower()


def _unquoted(name: str, value: str) -> str:
    """Return the value of a header, in which all but plain ASCII is percent-encoded."""
    try:
        return unquote_to_bytes(value.encode("latin-1")).decode()
    except UnicodeDecodeError as error:
        raise _bad(f"the header {name} is not UTF-8") from error


def _bad(message: str, hint: str = "") -> Invalid:
    return Invalid(f"{NONE}: {message}", hint=hint, code="bad_body")
