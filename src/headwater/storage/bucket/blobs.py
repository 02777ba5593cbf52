"""Huge events in a bucket: an object of their own, streamed in and out in verified chunks (docs/FORMAT.md, "Blob")."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from crc32c import crc32c

from headwater.errors import Closed, Corrupt, HeadwaterError, Unavailable
from headwater.event import Content
from headwater.format import blob as format
from headwater.format.batch import corrupt, encode_blob_reference
from headwater.format.producers import Producer
from headwater.limits import BLOB_CHUNK_BYTES
from headwater.storage.blobs import too_large
from headwater.storage.bucket.place import ObjectPlace
from headwater.storage.failures import offset_gone
from headwater.storage.rows import Rows

PIECES_WAITING = 8  # chunks that may wait for the store: bounded memory, and nobody waits for the other


class _Discarded(Exception):
    """The event is not appended after all: nothing is to be put."""


class _Stream:
    """Chunks on their way to an object, put by a thread of its own."""

    def __init__(self, place: ObjectPlace) -> None:
        self.id = place.clock.random_bytes(16).hex()
        self.begun_s = place.clock.monotonic()
        self.size = 0
        self._place = place
        self._pending = bytearray()
        self._crcs: list[int] = []
        self._chunks: queue.Queue[bytes | None] = queue.Queue(PIECES_WAITING)
        self._discarded = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._put, name="headwater-blob", daemon=True)
        self._thread.start()

    def write(self, piece: bytes) -> None:
        self._pending += piece
        while len(self._pending) >= BLOB_CHUNK_BYTES:
            self._send(bytes(self._pending[:BLOB_CHUNK_BYTES]))
            del self._pending[:BLOB_CHUNK_BYTES]

    def finish(self) -> bytes:
        """Put the rest; returns the reference to all of it when it is durable."""
        if self._pending:
            self._send(bytes(self._pending))
        table = np.array(self._crcs, np.uint32)
        self._hand_over(format.encode_trailer(self.size, BLOB_CHUNK_BYTES, table))
        self._hand_over(None)
        self._thread.join()
        self._check()
        return encode_blob_reference(self.size, BLOB_CHUNK_BYTES, format.table_crc(table))

    def discard(self) -> None:
        """Stop; what was not finished is not put."""
        self._discarded = True
        while self._thread.is_alive():
            try:
                self._chunks.put(None, timeout=0.05)
            except queue.Full:
                continue
            self._thread.join(0.05)

    def _send(self, chunk: bytes) -> None:
        self._crcs.append(crc32c(chunk))
        self.size += len(chunk)
        self._hand_over(chunk)

    def _hand_over(self, chunk: bytes | None) -> None:
        while True:
            self._check()
            try:
                self._chunks.put(chunk, timeout=1.0)
            except queue.Full:
                continue
            return

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _put(self) -> None:
        try:
            self._place.store.put_pieces(self._place.blob(self.id), self._taken())
        except _Discarded:
            return
        except HeadwaterError as error:
            self._error = error

    def _taken(self) -> Iterator[bytes]:
        while (chunk := self._chunks.get()) is not None:
            if self._discarded:
                raise _Discarded
            yield chunk
        if self._discarded:
            raise _Discarded


class ObjectUpload:
    """Takes pieces with `write`, then `commit`s the event. `discard` it in any case. For one thread at a time."""

    def __init__(
        self,
        place: ObjectPlace,
        append: Callable[[Rows], None],
        content: Content,
        type: bytes,
        key: bytes | None,
        meta: bytes | None,
        *,
        sync: bool,
        guard: tuple[int | None, Producer | None] | None,
    ) -> None:
        """`append` commits rows to the log of this place."""
        self.size = 0
        self._place = place
        self._append = append
        self._content = content
        self._values = type, key, meta
        self._sync = sync
        self._guard = guard or (None, None)
        self._begun: list[bytes] = []  # until it is known to be huge
        self._stream: _Stream | None = None
        self._discarded = False

    def write(self, piece: bytes) -> None:
        """Take the next piece; raises TooLarge when it is above the topic's limit, Closed if it was discarded."""
        self._check()
        limits = self._place.limits
        self.size += len(piece)
        if self.size > limits.data_bytes_max:
            raise too_large(limits.data_bytes_max)
        if self._stream is not None:
            self._stream.write(piece)
            return
        self._begun.append(piece)
        if self.size > limits.blob_bytes_min:
            self._stream = _Stream(self._place)
            for begun in self._begun:
                self._stream.write(begun)
            self._begun.clear()

    def commit(self) -> Rows:
        """Append the event; returns when it is durable, with its offset and ticks set."""
        self._check()
        stream = self._stream
        data = b"".join(self._begun) if stream is None else stream.finish()
        if stream is not None and self._place.clock.monotonic() - stream.begun_s > self._place.limits.blob_orphan_s / 2:
            raise Unavailable(
                f"{self._place}: the upload of a huge event took more than {self._place.limits.blob_orphan_s / 2:g} s",
                hint="upload it again, faster: what no event names is deleted after some time",
                code="upload_too_slow",
            )
        rows = Rows.one(self._content, self._sync, data, *self._values)
        if stream is not None:
            rows.spooled = Path(stream.id)
        rows.guard(*self._guard)
        self._append(rows)
        return rows

    def discard(self) -> None:
        """Let go of what was not committed. May be called twice, and after `commit`."""
        self._discarded = True
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.discard()

    def _check(self) -> None:
        if self._discarded:
            raise Closed("the upload was discarded")


class ObjectBlob:
    """The data of a huge event, in its object."""

    def __init__(
        self, place: ObjectPlace, id: str, offset: int, reference: tuple[int, int, int], start: Callable[[], int]
    ) -> None:
        """`start` tells the oldest offset of the log."""
        self.size = reference[0]
        self._place = place
        self._key = place.blob(id)
        self._offset = offset
        self._reference = reference
        self._start = start

    def chunks(self) -> Iterator[bytes]:
        """The data in pieces of at most 1 MiB, each verified before it is handed out; raises Corrupt.

        Raises NotFound if retention has deleted it.
        """
        size, chunk_bytes, _ = self._reference
        trailer_bytes = -(-size // chunk_bytes) * 4 + format.FOOTER_BYTES
        trailer = self._range(size, trailer_bytes)
        try:
            crcs = format.decode_trailer(bytes(trailer), self._reference).tolist()
        except Corrupt as error:
            raise corrupt(error.message, self._place.path(self._key), size, trailer_bytes) from None
        step = max(1, self._place.limits.fetch_bytes // chunk_bytes)
        for first in range(0, len(crcs), step):
            position = first * chunk_bytes
            some = self._range(position, min(size, position + step * chunk_bytes) - position)
            for number, crc in enumerate(crcs[first : first + step]):
                chunk = bytes(some[number * chunk_bytes : (number + 1) * chunk_bytes])
                if crc32c(chunk) != crc:
                    where = position + number * chunk_bytes
                    raise corrupt("the checksum of a chunk is wrong", self._place.path(self._key), where, len(chunk))
                yield chunk

    def _range(self, start: int, length: int) -> memoryview:
        found = self._place.store.get_range(self._key, start, length)
        if found is None:
            oldest = self._start()
            if self._offset < oldest:
                raise offset_gone(self._place, self._offset, oldest)
            raise corrupt("the data of a huge event is missing", self._place.path(self._key), 0, self.size)
        return found
