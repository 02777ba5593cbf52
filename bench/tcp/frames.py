"""What clients of Headwater send."""

from __future__ import annotations

from collections.abc import Sequence

from bson import encode
from bson.binary import Binary
from bson.int64 import Int64

from bench.tcp.generator import Client
from bench.work import EVENT_BYTES, TOPIC
from headwater.format import protocol

TYPE = "placed"
CONNECT = protocol.encode("CONNECT", {"version": "1.0"})
FIRST_SUBSCRIPTION = 1  # of a connection: its subID


def documents(events: Sequence[bytes]) -> list[dict[str, Binary]]:
    """Events as documents that have the usual size as BSON."""
    size = EVENT_BYTES - len(encode({"data": b""}))
    return [{"data": Binary(data[:size])} for data in events]


def emitter(events: Sequence[bytes], *, keyed: bool = False, topic: str = TOPIC) -> Client:
    """One that emits these in turn, each with a key of its own if they are keyed."""
    emits = [
        protocol.encode(
            "EMIT",
            {"streamName": topic, "eventType": TYPE, **({"key": f"key-{n:06d}"} if keyed else {}), "event": document},
        )
        for n, document in enumerate(documents(events))
    ]
    return Client(CONNECT, emits)


def subscribing(**options: object) -> bytes:
    """What has all events of the topic sent."""
    return CONNECT + protocol.encode("SUBSCRIBE", {"streamName": TOPIC, "startSequence": Int64(0), **options})


def acknowledging() -> bytes:
    """An acknowledgement, whose last field is the place up to which it is meant."""
    return protocol.encode("ACKEV", {"subID": FIRST_SUBSCRIPTION, "seqNo": Int64(0)})
