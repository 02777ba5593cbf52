"""Huge events in a bucket: an object of their own, streamed in and out in verified chunks (docs/FORMAT.md, "Blob")."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from crc32c import crc32c

from headwater.bucket.object_place import ObjectPlace
from headwater.errors import Corrupt, HeadwaterError, Unavailable
from headwater.format import segment as format
from headwater.format.batch import corrupt, encode_blob_reference
from headwater.limits import BLOB_CHUNK_BYTES
from headwater.log.log import offset_gone, too_large

PIECES_WAITING = 8  # chunks that may wait for the store: bounded memory, and nobody waits for the other


class _DiscardedUploadError(Exception):
    """The event is not appended after all: nothing is to be put."""


class ObjectSpool:
    """A huge event on its way into an object, put by a thread of its own; bounded memory. Close it in any case."""

    def __init__(self, place: ObjectPlace) -> None:
        self.path = Path(place.clock.random_bytes(16).hex())  # the last part of the object's key
        self.reference = b""
        self.size = 0
        self._begun_s = place.clock.monotonic()
        self._place = place
        self._pending = bytearray()
        self._crcs: list[int] = []
        self._chunks: queue.Queue[bytes | None] = queue.Queue(PIECES_WAITING)
        self._discarded = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._put, name="headwater-blob", daemon=True)
        self._thread.start()

    def write(self, piece: bytes) -> None:
        """Take the next piece of the data. Raises TooLarge above the topic's limit."""
        bytes_max = self._place.limits.data_bytes_max
        if self.size + len(self._pending) + len(piece) > bytes_max:
            raise too_large(bytes_max)
        self._pending += piece
        while len(self._pending) >= BLOB_CHUNK_BYTES:
            self._send(bytes(self._pending[:BLOB_CHUNK_BYTES]))
            del self._pending[:BLOB_CHUNK_BYTES]

    def finish(self) -> None:
        """Put the rest: when it returns, all of it is durable, and `reference` can be committed."""
        if self._pending:
            self._send(bytes(self._pending))
        table = np.array(self._crcs, np.uint32)
        self._hand_over(format.encode_trailer(self.size, BLOB_CHUNK_BYTES, table))
        self._hand_over(None)
        self._thread.join()
        self._check()
        slow_s = self._place.limits.blob_orphan_s / 2
        if self._place.clock.monotonic() - self._begun_s > slow_s:
            raise Unavailable(
                f"{self._place}: the upload of a huge event took more than {slow_s:g} s",
                hint="upload it again, faster: data that no event refers to is deleted as garbage",
                code="upload_too_slow",
            )
        self.reference = encode_blob_reference(self.size, BLOB_CHUNK_BYTES, format.table_crc(table))

    def close(self) -> None:
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
            self._place.store.put_pieces(self._place.blob(self.path.name), self._taken())
        except _DiscardedUploadError:
            return
        except HeadwaterError as error:
            self._error = error

    def _taken(self) -> Iterator[bytes]:
        while (chunk := self._chunks.get()) is not None:
            if self._discarded:
                raise _DiscardedUploadError
            yield chunk
        if self._discarded:
            raise _DiscardedUploadError


def verified_chunks(
    fetch: Callable[[int, int], memoryview], reference: tuple[int, int, int], where: str, fetch_bytes: int
) -> Iterator[bytes]:
    """Yield the data of a blob in chunks, each verified before it is handed out; raises Corrupt.

    `fetch` returns bytes from a position, so many as `fetch_bytes` at once.
    """
    size, chunk_bytes, _ = reference
    trailer_bytes = -(-size // chunk_bytes) * 4 + format.FOOTER_BYTES
    trailer = fetch(size, trailer_bytes)
    try:
        crcs = format.decode_trailer(bytes(trailer), reference).tolist()
    except Corrupt as error:
        raise corrupt(error.message, where, size, trailer_bytes) from None
    step = max(1, fetch_bytes // chunk_bytes)
    for first in range(0, len(crcs), step):
        position = first * chunk_bytes
        some = fetch(position, min(size, position + step * chunk_bytes) - position)
        for number, crc in enumerate(crcs[first : first + step]):
            chunk = bytes(some[number * chunk_bytes : (number + 1) * chunk_bytes])
            if crc32c(chunk) != crc:
                at = position + number * chunk_bytes
                raise corrupt("the checksum of a chunk is wrong", where, at, len(chunk))
            yield chunk


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
        """Yield the data in pieces of at most 1 MiB, each verified before it is handed out; raises Corrupt.

        Raises NotFound if retention has deleted it.
        """
        return verified_chunks(
            self._range, self._reference, self._place.path(self._key), self._place.limits.fetch_bytes
        )

    def _range(self, start: int, length: int) -> memoryview:
        found = self._place.store.get_range(self._key, start, length)
        if found is None:
            oldest = self._start()
            if self._offset < oldest:
                raise offset_gone(self._place, self._offset, oldest)
            raise corrupt("the data of a huge event is missing", self._place.path(self._key), 0, self.size)
        return found
