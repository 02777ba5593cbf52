"""The subscriptions and queries of a connection, and the frames that acknowledge their output."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from headwater.errors import HeadwaterError
from headwater.format import protocol
from headwater.server.metrics import Metrics
from headwater.server.tcp.fields import INT32, FrameFields

HEARD = {"ACKEV": ("subID", "seqNo", "partition"), "QUERYACK": ("queryID",)}  # the first names the part


class ConnectionPart:
    """A subscription or a query of a connection. It may write frames at any time."""

    def acknowledge(self, fields: FrameFields) -> None:
        """The client has received something. Raises what is wrong with the frame, which is only counted."""

    def resume(self) -> None:
        """There is room again."""

    def stop(self) -> None:
        """Notify the client that the server stops, and release everything."""
        self.close()

    def close(self) -> None:
        """Release everything after the client has disconnected. May be called twice."""


def _head(type: str) -> bytes:
    """Return how a frame of this type begins, after its length, as nearly all clients write it."""
    return b"\x02type\0" + protocol.LENGTH.pack(len(type) + 1) + type.encode() + b"\0"


SMALL_BYTES = 128  # a frame that is worth remembering
HEADS = tuple(_head(type) for type in HEARD)


@lru_cache(maxsize=256)  # who acknowledges one by one sends the same bytes again and again
def understood(raw: bytes) -> tuple[str, FrameFields | HeadwaterError]:
    """What a small frame says that has no answer, or what is wrong with it. Raises as decoding does."""
    type, frame = protocol.decode(raw)
    try:
        return type, FrameFields(type, frame, HEARD[type])
    except HeadwaterError as error:
        return type, error


def hear_small(parts: dict[Any, ConnectionPart], raw: bytes, metrics: Metrics) -> None:
    """A small frame that has no answer and begins with one of `HEADS`. Raises what is no frame."""
    type, fields = understood(raw)
    if isinstance(fields, HeadwaterError):
        metrics.failed(fields.code)
    else:
        _hear(parts, type, fields, metrics)


def hear(parts: dict[Any, ConnectionPart], type: str, frame: dict[str, Any], metrics: Metrics) -> None:
    """A frame that has no answer: what is wrong with it is only counted."""
    try:
        fields = FrameFields(type, frame, HEARD[type])
    except HeadwaterError as error:
        metrics.failed(error.code)
    else:
        _hear(parts, type, fields, metrics)


def _hear(parts: dict[Any, ConnectionPart], type: str, fields: FrameFields, metrics: Metrics) -> None:
    try:
        part = parts.get((type, fields.integer(HEARD[type][0], least=-INT32 - 1, most=INT32, needed=True)))
        if part is not None:
            part.acknowledge(fields)
    except HeadwaterError as error:
        metrics.failed(error.code)
