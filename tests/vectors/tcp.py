"""The golden frames of the protocol over TCP, both ways, and what a server says to those of a client.

Those of a client are sent over one connection to a server with an empty log, in their order; those that end it, over
one of their own, after CONNECT if they say so.
"""

from __future__ import annotations

import json
import struct
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import bson
from bson import json_util
from bson.binary import Binary
from bson.int64 import Int64

from headwater.errors import Conflict, Denied, HeadwaterError, Invalid, NotFound, TooLarge, Unavailable, Unsupported
from headwater.event import Content, Event
from headwater.format import protocol
from headwater.limits import FRAME_BYTES_MAX
from headwater.server.tcp import recev
from headwater.server.tcp.frames import emitted, failure, response, told

TICKS = 139_271_094_615_000_000  # 2024-02-13T09:31:01.500000Z
NODE = 0x1234567890ABCDE
ID = Binary(UUID("6e8bc430-9c3a-61d9-9669-0800200c9a66").bytes, 4)
LOG = "6e8bc430-9c3a-41d9-9669-0800200c9a66"
ANY = {"$any": True}  # in an answer: whatever it is, also nothing

Vector = tuple[bytes, dict[str, Any]]


def vectors() -> dict[str, Vector]:
    """The bytes and the meaning of every golden frame, by its name."""
    found = {**_client(), **_ending(), **_server()}
    return {f"tcp-{name}": vector for name, vector in found.items()}


# Frames of a client


def _client() -> dict[str, Vector]:
    found = {}
    for order, (name, what, type, body, answers) in enumerate(_ASKED):
        raw = protocol.encode(type, body)
        meaning = {"what": what, "direction": "client", "order": order, **_meant(raw)}
        found[name] = raw, {**meaning, "answers": [{"type": each, "frame": fields} for each, fields in answers]}
    return found


def _failed(code: str, kind: str, type: str = "RESPONSE") -> list[tuple[str, dict[str, Any]]]:
    return [(type, {"ok": False, "errCode": code, "errKind": kind, "errMsg": ANY, "errHint": ANY, "errFacts": ANY})]


def _long(number: int) -> dict[str, str]:
    return {"$numberLong": str(number)}


def _int(number: int) -> dict[str, str]:
    return {"$numberInt": str(number)}


def _placed(offset: int) -> list[tuple[str, dict[str, Any]]]:
    return [("RESPONSE", {"ok": True, "offset": _long(offset), "partition": _int(0), "id": ANY})]


_OK: list[tuple[str, dict[str, Any]]] = [("RESPONSE", {"ok": True})]
_EVENT = {"total": 12, "of": [{"sku": "a", "n": Int64(2)}]}
_EVENT_TOLD = {"total": _int(12), "of": [{"sku": "a", "n": _long(2)}]}


def _received(sub: int, offset: int, type: str, event: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    fields = {"subID": _int(sub), "seqNo": _long(offset), "timestamp": ANY, "partition": _int(0), "id": ANY}
    return "RECEV", {**fields, "eventType": type, **more, "event": event}


# The name, what it is for, the type, the body, and what a server says.
_ASKED: list[tuple[str, str, str, dict[str, Any], list[tuple[str, dict[str, Any]]]]] = [
    (
        *("connect", "The first frame, where nobody is asked who they are.", "CONNECT", {"version": "1.0"}),
        [("RESPONSE", {"ok": True, "version": "1.0", "server": ANY, "uuid": ANY})],
    ),
    ("ping", "Nothing but an answer.", "PING", {}, _OK),
    (
        *("emit", "The usual.", "EMIT", {"streamName": "orders", "eventType": "placed", "event": _EVENT}),
        _placed(0),
    ),
    (
        "emit-all",
        "With everything that may be said of an event, and capital letters.",
        "EMIT",
        {
            "StreamName": "orders",
            "EventType": "paid",
            "Key": "o-17",
            "ExpectedVersion": -1,
            "Partition": 0.0,
            "Meta": {"trace": "1"},
            "Durability": "fsync",
            "Producer": {"id": "shop", "epoch": 0, "seq": Int64(0)},
            "Event": {"by": "card"},
        },
        _placed(1),
    ),
    (
        *("emit-text", "An event that is no document.", "EMIT"),
        {"streamName": "orders", "eventType": "noted", "content": "text", "event": "größer"},
        _placed(2),
    ),
    (
        *("emit-bytes", "Another, with a key in bytes.", "EMIT"),
        {"streamName": "orders", "eventType": "", "content": "bytes", "key": b"\xff", "event": b"\0\1"},
        _placed(3),
    ),
    (
        *("emit-conflict", "A version that is another: nothing is stored, and the connection goes on.", "EMIT"),
        {"streamName": "orders", "eventType": "paid", "key": "o-17", "expectedVersion": -1, "event": {}},
        _failed("version_conflict", "Conflict"),
    ),
    (
        *("emit-field", "A field that the frame does not have.", "EMIT"),
        {"streamName": "orders", "eventType": "paid", "evnt": {}, "event": {}},
        _failed("bad_field", "Invalid"),
    ),
    ("starttx", "Begin a transaction.", "STARTTX", {"sessID": 7}, _OK),
    ("starttx-again", "While there is one.", "STARTTX", {"sessID": 7}, _failed("transaction_open", "Conflict")),
    (
        *("emit-session", "An event of the transaction.", "EMIT"),
        {"streamName": "orders", "eventType": "sent", "sessID": 7, "event": {"n": 1}},
        _OK,
    ),
    (
        *("committx", "Store it.", "COMMITTX", {"sessID": 7}),
        [
            (
                "RESPONSE",
                {"ok": True, "refs": [{"streamName": "orders", "partition": _int(0), "offset": _long(4), "id": ANY}]},
            )
        ],
    ),
    ("committx-none", "Where there is none.", "COMMITTX", {"sessID": 7}, _failed("no_transaction", "NotFound")),
    ("starttx-negative", "Any int32 is fine.", "STARTTX", {"sessID": -1}, _OK),
    ("aborttx", "Forget it.", "ABORTTX", {"sessID": -1}, _OK),
    (
        *("subscribe", "Events of one topic, from the beginning, whose type matches.", "SUBSCRIBE"),
        {"streamName": "orders", "startSequence": Int64(0), "typeMatcher": "p.*"},
        [
            ("SUBRESPONSE", {"ok": True, "subID": _int(1)}),
            _received(1, 0, "placed", _EVENT_TOLD),
            _received(1, 1, "paid", {"by": "card"}, key="o-17", meta={"trace": "1"}),
        ],
    ),
    ("ackev", "All up to an offset are acknowledged.", "ACKEV", {"subID": 1, "seqNo": Int64(0)}, []),
    ("ackev-one", "One more is.", "ACKEV", {"subID": 1}, []),
    ("unsubscribe", "End a subscription.", "UNSUBSCRIBE", {"subID": 1}, _OK),
    (
        *("subscribe-durable", "One that is kept, with a match.", "SUBSCRIBE"),
        {"streamName": "orders", "durableID": "billing", "startTimestamp": Int64(0), "matcher": {"n": 1}},
        [("SUBRESPONSE", {"ok": True, "subID": _int(2)}), _received(2, 4, "sent", {"n": _int(1)})],
    ),
    ("unsubscribe-delete", "End it for good.", "UNSUBSCRIBE", {"subID": 2, "delete": True}, _OK),
    (
        *("subscribe-missing", "A topic that is not there yet is waited for.", "SUBSCRIBE", {"streamName": "nothing"}),
        [("SUBRESPONSE", {"ok": True, "subID": _int(3)})],
    ),
    (
        *("query", "A binder that is not there.", "QUERY"),
        {"queryID": 1, "binder": "stock", "matcher": {"n": {"$gt": 1}}, "sort": "-n", "limit": 10, "skip": 0},
        _failed("no_such_binder", "NotFound"),
    ),
    ("queryack", "One result was received.", "QUERYACK", {"queryID": 1}, []),
]


# Frames that end the connection


def _ending() -> dict[str, Vector]:
    connect = protocol.encode("CONNECT", {"version": "1.0"})
    deep: dict[str, Any] = {}
    for _ in range(98):
        deep = {"": deep}
    event = {"eventType": "t", "event": deep}
    asked: dict[str, tuple[str, bytes, bool]] = {
        "frame_too_large": ("A length above 16 MiB + 64 KiB.", struct.pack(">I", FRAME_BYTES_MAX + 1), True),
        "frame_too_large-http": ("Somebody speaks another protocol.", b"GET / HTTP/1.1\r\n\r\n", False),
        "bad_frame": ("A document that ends too late.", b"\0\0\0\6\7\0\0\0\0\0", True),
        "bad_frame-short": ("A length that no document has.", b"\0\0\0\4abcd", True),
        "bad_frame-fields": ("A frame without a body.", _framed(bson.encode({"type": "PING"})), True),
        "too_deep": ("101 levels, of which the frame is the first.", protocol.encode("EMIT", event), True),
        "unknown_frame": ("A type that no client sends.", protocol.encode("RECEV", {}), True),
        "not_connected": ("Anything before CONNECT.", protocol.encode("PING", {}), False),
        "unsupported_version": ("Another major version.", protocol.encode("CONNECT", {"version": "2.0"}), False),
    }
    found: dict[str, Vector] = {}
    for name, (what, raw, connected) in asked.items():
        meaning = {"what": what, "direction": "client", "ends": True, "connect": connected}
        code = name.partition("-")[0]
        found[f"ends-{name}"] = raw, {**meaning, "errCode": code}
    found["ends-emit"] = (
        connect + protocol.encode("PING", {}) + _framed(b"\5\0\0\0\1"),
        {
            "what": "What came before is answered first.",
            "direction": "client",
            "ends": True,
            "connect": False,
            "before": 2,
            "errCode": "bad_frame",
        },
    )
    return found


def _framed(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


# Frames of a server


def _server() -> dict[str, Vector]:
    conflict = Conflict(
        "the key's last event is another", hint="read it, and try again", code="version_conflict", expected=-1, actual=4
    )
    refs = [{"streamName": "orders", "partition": 0, "offset": Int64(4), "id": ID}]
    gone = NotFound("the topic was deleted", code="topic_deleted", topic="orders")
    late = Unavailable("no result was acknowledged for 60 s", hint="send QUERYACK for each result", code="timeout")
    change = {"subID": 3, "eventType": "put", "seqNo": Int64(0), "timestamp": Int64(1_707_816_661_500), "place": "p-1"}
    change |= {"id": "a", "version": Int64(2), "event": {"n": 1}}
    found = {
        "response": ("It was done.", response()),
        "response-connect": ("To CONNECT.", response(version="1.0", server="headwater/1.0", uuid=LOG)),
        "response-emit": ("To EMIT: where the event is.", _emitted(4)),
        "response-committx": ("To COMMITTX: where the events are.", response(refs=refs)),
        "response-error": ("It was not done.", failure(conflict)),
        "subresponse": ("A subscription begins.", response("SUBRESPONSE", subID=1)),
        "subresponse-error": ("It does not.", failure(gone, "SUBRESPONSE")),
        "recev": ("A document.", _recev("bson", bson.encode(_EVENT))),
        "recev-all": ("With a key and meta.", _recev("bson", bson.encode({}), b"o-17", b'{"trace":"1"}')),
        "recev-key": ("A key that is no text.", _recev("bson", bson.encode({}), b"\xff")),
        "recev-json": ("A JSON object is a document.", _recev("json", b'{"n": 1, "x": [1.5, null]}')),
        "recev-json-value": ("Any other JSON is not.", _recev("json", b"[1]")),
        "recev-text": ("Text.", _recev("text", "größer".encode())),
        "recev-bytes": ("Bytes.", _recev("bytes", b"\0\1")),
        "recev-change": ("A document of a binder was changed.", protocol.encode("RECEV", change)),
        "subend": ("A subscription ended.", protocol.encode("SUBEND", {"subID": 1, **told(gone)})),
        "queryresponse": ("How many will come.", protocol.encode("QUERYRESPONSE", _QUERY | {"numResults": Int64(2)})),
        "queryresult": (
            "One of them.",
            protocol.encode_around(
                "QUERYRESULT", _QUERY | {"id": "a", "version": Int64(3)}, "result", bson.encode({"n": 1})
            ),
        ),
        "queryend": ("It breaks off.", protocol.encode("QUERYEND", _QUERY | told(late))),
        **{f"response-{error.code}": ("It ends the connection.", failure(error)) for error in _ENDS},
    }
    return {name: (raw, {"what": what, "direction": "server", **_meant(raw)}) for name, (what, raw) in found.items()}


_QUERY: dict[str, Any] = {"queryID": 1}
_ENDS: list[HeadwaterError] = [
    TooLarge("the frame is too large", code="frame_too_large", limit="frame_bytes_max", maximum=FRAME_BYTES_MAX),
    Invalid("the frame cannot be read", code="bad_frame"),
    Invalid("it is nested deeper than 100 levels", code="too_deep"),
    Invalid("there is no frame 'HELLO' that a client sends", code="unknown_frame"),
    Invalid("the first frame is CONNECT", code="not_connected"),
    Denied("the name or the password is wrong", code="unauthenticated"),
    Unavailable("there were too many failures", code="too_many_failures", retry_after_s=6.0),
    Unsupported("version '2.0' of the protocol is not spoken here", hint="it is 1.0", code="unsupported_version"),
    Unavailable("nothing was sent for too long", hint="send PING now and then", code="timeout"),
    Unavailable("there are too many connections", hint="try again soon", code="overloaded"),
    Unavailable("the server ends", hint="connect again soon", code="stopping"),
]


def _emitted(offset: int) -> bytes:
    rows = SimpleNamespace(offset=offset, ticks=TICKS, count=1)
    log = SimpleNamespace(node=NODE, place=SimpleNamespace(partition=0))
    return emitted(SimpleNamespace(rows=rows, log=log))  # type: ignore[arg-type]  # what it needs of an append


def _recev(content: Content, data: bytes, key: bytes | None = None, meta: bytes | None = None) -> bytes:
    event = Event("orders", 0, 4, TICKS, "placed", key, data, content, NODE, meta)
    (frames,) = recev.encode_events(1, [event], FRAME_BYTES_MAX).frames
    return bytes(frames.data)


def _meant(raw: bytes) -> dict[str, Any]:
    """The type and the body, in canonical Extended JSON."""
    whole = bson.decode(raw[4:])
    return {"type": whole["type"], "frame": json.loads(json_util.dumps(whole["frame"], json_options=CANONICAL))}


CANONICAL = json_util.CANONICAL_JSON_OPTIONS
