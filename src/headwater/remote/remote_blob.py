"""The data of a huge event on a server, streamed each time it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import numpy as np
from crc32c import crc32c

from headwater.errors import Corrupt
from headwater.format import blob as format
from headwater.limits import BLOB_CHUNK_BYTES
from headwater.remote import failures
from headwater.remote.connection import BrokenConnectionError
from headwater.remote.transport import Transport

ITEMS = "application/octet-stream"
_ITEM = Struct(">QI")  # what stands before the data of an item


class RemoteBlob:
    """The data of a huge event. Safe to use from several threads: each reads on its own."""

    def __init__(
        self, transport: Transport, topic: str, partition: int, offset: int, reference: tuple[int, int, int]
    ) -> None:
        self.size = reference[0]
        self._transport = transport
        self._topic = topic
        self._partition = partition
        self._offset = offset
        self._reference = reference

    def chunks(self) -> Iterator[bytes]:
        """Yield the data in pieces of at most 1 MiB. What is wrong with them shows at the end: then Corrupt is raised.

        Raises NotFound if retention has deleted it, and Unavailable when the connection breaks.
        """
        size, chunk_bytes, table_crc = self._reference
        crcs: list[int] = []
        for chunk in self._rechunked(chunk_bytes):
            crcs.append(crc32c(chunk))
            for at in range(0, len(chunk), BLOB_CHUNK_BYTES):
                yield chunk[at : at + BLOB_CHUNK_BYTES]
        if format.table_crc(np.array(crcs, np.uint32)) != table_crc:
            raise Corrupt(
                f"the data of event {self._partition}:{self._offset} of topic {self._topic!r} is not what was appended",
                hint="run 'headwater check' where the directory is",
                position=0,
                size=size,
            )

    def _rechunked(self, chunk_bytes: int) -> Iterator[bytes]:
        """Yield the data in the pieces that its checksums are of."""
        pending = bytearray()
        left = self.size
        for piece in self._data():
            left -= len(piece)
            pending += piece
            while len(pending) >= chunk_bytes:
                yield bytes(pending[:chunk_bytes])
                del pending[:chunk_bytes]
        if left:
            raise failures.cut_short(self._transport.address, f"{left} bytes of a huge event are missing")
        if pending:
            yield bytes(pending)

    def _data(self) -> Iterator[bytes]:
        query = {"from": self._offset, "max_items": 1, "partition": self._partition}
        head = b""
        with self._transport.stream(("topic", self._topic, "items"), query, accept=ITEMS) as stream:
            try:
                for piece in stream.pieces():
                    if len(head) < _ITEM.size:
                        head += piece
                        if len(head) >= _ITEM.size:
                            yield head[_ITEM.size :]
                    else:
                        yield piece
            except BrokenConnectionError as error:
                raise failures.cut_short(self._transport.address, str(error)) from error
