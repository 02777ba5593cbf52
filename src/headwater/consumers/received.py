"""Lines of a server's answer as events (docs/HTTP.md, "Consumers"), from pieces that end anywhere. For one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from headwater.event import Blob, Event, ticks_and_node
from headwater.format import jsonl
from headwater.format.jsonl import EventLine
from headwater.limits import BLOB_CHUNK_BYTES
from headwater.remote.connection import BrokenConnectionError
from headwater.remote.failures import ErrorBody, cut_short, revive
from headwater.remote.transport import Transport

ITEM_HEAD_BYTES = 12  # of an item: its id and its length


class RemoteEvent(EventLine, frozen=True, gc=False, forbid_unknown_fields=False):
    """A line: an event, or why no more come."""

    error: ErrorBody | UnsetType = UNSET


_decode_lines = msgspec.json.Decoder(RemoteEvent).decode_lines
_encode_meta = msgspec.json.Encoder().encode


class Lines:
    """The events of a stream of lines; an empty line is a sign of life."""

    def __init__(self, blob: Callable[[str, int, int, int], Blob]) -> None:
        """`blob` gives the data of a huge event, by its topic, partition, offset and size."""
        self._rest = b""
        self._blob = blob

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events that end with this piece. Raises what a line says that the server raised."""
        whole, newline, rest = piece.rpartition(b"\n")
        if not newline:
            self._rest += piece
            return []
        whole, self._rest = self._rest + whole, rest
        return [self._event(line) for line in _decode_lines(whole)]

    def _event(self, line: RemoteEvent) -> Event:
        if line.error is not UNSET:
            raise revive(line.error)
        topic, partition, offset = line.topic, line.partition, line.offset
        assert topic is not UNSET
        assert partition is not UNSET
        assert offset is not UNSET
        data: bytes | None = None
        blob = None
        content = "bytes" if line.content is UNSET else line.content
        if line.data_bytes is not UNSET:
            blob = self._blob(topic, partition, offset, line.data_bytes)
        elif content == "json" and line.data is not UNSET and line.data_base64 is UNSET:
            data = bytes(line.data)
        else:
            data, content = jsonl.data_of(line, content)
        meta = _encode_meta(line.meta) if line.meta else None
        ticks, node = ticks_and_node(UUID(str(line.id)))
        return Event(topic, partition, offset, ticks, line.type, jsonl.key_of(line), data, content, node, meta, blob)


class ItemBlob:
    """The data of a huge event, read from its topic each time it is used."""

    def __init__(self, transport: Transport, topic: str, partition: int, offset: int, size: int) -> None:
        self.size = size
        self._transport = transport
        self._path = ("topic", topic, "items")
        self._query = {"partition": partition, "from": offset, "end_after": offset, "max_items": 1}

    def chunks(self) -> Iterator[bytes]:
        """Yield the data in pieces of at most 1 MiB.

        Raises NotFound if it was deleted, Unavailable if it is cut short.
        """
        with self._transport.stream(self._path, self._query, accept="application/octet-stream") as stream:
            skip, left = ITEM_HEAD_BYTES, self.size
            try:
                for piece in stream.pieces():
                    data, skip = piece[skip:], max(0, skip - len(piece))
                    left -= len(data)
                    for at in range(0, len(data), BLOB_CHUNK_BYTES):
                        yield data[at : at + BLOB_CHUNK_BYTES]
            except BrokenConnectionError as error:
                raise cut_short(self._transport.address, str(error)) from error
        if left:
            raise cut_short(self._transport.address, f"{left} bytes of a huge event are missing")
