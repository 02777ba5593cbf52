"""Reading from a server: stored batches as they come, on through broken connections without a gap or a double.

A read notes how far it has come in each partition. When the connection breaks, it asks again from there, to the end
that it had at first. Each object belongs to one thread; only `RemoteFollow.stop` may be called from others.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from struct import Struct
from typing import Any, Self
from uuid import UUID

import numpy as np
from crc32c import crc32c

from headwater import position
from headwater.errors import Corrupt, HeadwaterError, NotFound, out_of_memory, within_memory
from headwater.event import Blob, Event
from headwater.format import segment as format
from headwater.format.batch import Batch
from headwater.format.events import EventBatch
from headwater.format.frames import MEDIA_TYPE, Decoder
from headwater.format.losses import warn
from headwater.format.names import log_uuid, node_of
from headwater.limits import BLOB_CHUNK_BYTES
from headwater.position import Positions
from headwater.remote import failures
from headwater.remote.connection import BrokenConnectionError
from headwater.remote.transport import ResponseStream, Transport

_by_time = attrgetter("ticks", "partition")


class RemoteLog:
    """One partition on a server, as its batches need it."""

    def __init__(self, transport: Transport, topic: str, uuid: UUID, partition: int, blob_bytes_in_memory: int) -> None:
        self.topic = topic
        self.partition = partition
        self.node = node_of(log_uuid(uuid, partition))
        self.blob_bytes_in_memory = blob_bytes_in_memory
        self._transport = transport

    def blob(self, batch: Batch) -> Blob:
        """Return the data of a huge event."""
        reference = batch.blob_reference()
        return RemoteBlob(self._transport, self.topic, self.partition, batch.base_offset, reference)


@within_memory()
class RemoteBatches(Iterator[EventBatch]):
    """The batches of one read. It sends the request when it is made, and raises then what is wrong with it."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        query: dict[str, Any],
        partition: int | None,
        blob_bytes_in_memory: int,
        uuid: UUID | None = None,
    ) -> None:
        """`uuid` is that of the topic, where it must be the same as before."""
        self.uuid = uuid
        self._transport = transport
        self._topic = topic
        self._query = {**query, "partition": partition}
        self._partition = partition
        self._in_memory = blob_bytes_in_memory
        self._reverse = bool(query.get("reverse"))
        self._found: deque[EventBatch] = deque()
        self._tries = 0
        self._failed_s = 0.0
        self._cut = False
        self._lost: list[tuple[int, int, int]] = []  # that are not passed yet: partition, first offset and end
        self._open()

    @property
    def ends(self) -> list[int]:
        """Return where it ends in each partition; empty if it waits for more."""
        return self._ends

    @property
    def several(self) -> bool:
        """Return whether they are of several partitions."""
        return len(self._next) > 1

    def __next__(self) -> EventBatch:
        while not self._found:
            if not self.more(None):
                raise StopIteration
        return self._handed(self._found.popleft())

    def more(self, wait_s: float | None) -> bool:
        """Take what comes within so many seconds, in any case before the next batch; False when that is all."""
        try:
            pieces = self._stream.more(wait_s)
            if pieces is not None:
                for piece in pieces:
                    self._take(piece)
                return True
            self._stream.close()
            self._decoder.finish()
            if self._query.get("wait_for_more"):
                raise BrokenConnectionError(
                    "the server ended the response", sent=True
                )  # because it stops, or the topic is gone
            self._warn(self._lost)
        except BrokenConnectionError as error:
            self._stream.close()
            if not self._cut:
                self._begin_again(error)
                return True
        return False

    def found(self) -> EventBatch | None:
        """Return the next batch, if it is there."""
        return self._handed(self._found.popleft()) if self._found else None

    def cut(self) -> None:
        """End what it waits for, from any thread, for good."""
        self._cut = True
        self._stream.cut()

    def close(self) -> None:
        self._stream.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it may not have come so far as to have one
            self._stream.close()

    def _open(self) -> None:
        stream = self._transport.stream(("topic", self._topic, "items"), self._query, accept=MEDIA_TYPE)
        try:
            self._begun(stream.headers)
        except BaseException:
            stream.close()
            raise
        self._stream: ResponseStream = stream
        self._decoder = Decoder()
        if self._cut:  # meanwhile
            stream.cut()

    def _begun(self, headers: dict[str, str]) -> None:
        """Note which topic it is, and from where to where the answer goes in each partition."""
        try:
            uuid = UUID(headers["headwater-topic"])
            self._next = _offsets(headers["headwater-from"])
            self._ends = _offsets(headers.get("headwater-to", ""))
            lost = _lost_ranges(headers.get("headwater-lost", ""))
        except (KeyError, ValueError) as error:
            raise failures.not_headwater(self._transport.address) from error
        if self.uuid is not None and uuid != self.uuid:
            raise NotFound(
                f"topic {self._topic!r} was deleted, and another topic has its name now",
                code="topic_deleted",
                topic=self._topic,
            )
        self.uuid = uuid
        self._lost = sorted({*self._lost, *lost})  # some lie before what has come, and was not handed out yet
        numbers = range(len(self._next)) if self._partition is None else (self._partition,)
        self._logs = {n: RemoteLog(self._transport, self._topic, uuid, n, self._in_memory) for n in numbers}

    def _take(self, piece: bytes) -> None:
        for frame in self._decoder.feed(piece):
            log = self._logs[frame.partition]
            batch = EventBatch(log, frame.batch, frame.lo, frame.hi, frame.rows)
            at = 0 if self._partition is not None else frame.partition
            if self._reverse:
                self._ends[at] = int(batch.offsets()[0])
            else:
                self._next[at] = int(batch.offsets()[-1]) + 1
            self._found.append(batch)
            self._tries = 0

    def _handed(self, batch: EventBatch) -> EventBatch:
        """Warn of lost events that lie before a batch, on the way to it."""
        if self._lost:
            number, offsets = batch.partition, batch.offsets()
            first, last = int(offsets[0]), int(offsets[-1])
            self._warn(
                [
                    each
                    for each in self._lost
                    if each[0] == number and (each[1] > last if self._reverse else each[2] <= first)
                ]
            )
        return batch

    def _warn(self, lost: list[tuple[int, int, int]]) -> None:
        for number, lo, hi in lost:
            warn(f"topic {self._topic!r}, partition {number}", [(lo, hi)])
        self._lost = [each for each in self._lost if each not in lost]

    def _begin_again(self, error: BrokenConnectionError) -> None:
        """Ask for the rest. Raises Unavailable when that has been tried for too long without anything coming."""
        if self._tries == 0:
            self._failed_s = time.monotonic()
        if not self._transport.pause(self._tries, self._failed_s):
            raise failures.cut_short(self._transport.address, str(error)) from error
        self._tries += 1
        self._query.pop("end_before", None)
        self._query["from"] = ",".join(map(str, self._next))
        if self._ends:
            self._query["end_before"] = ",".join(map(str, self._ends))
        self._open()


@within_memory()
class RemoteFollow(Iterator[Event]):
    """An endless read. Belongs to one thread; only `stop` may be called from others.

    Ends when `timeout` seconds pass without a wanted event, when it is stopped, or the log is closed; raises NotFound
    when the topic is deleted. It goes on after a broken connection, and raises Unavailable when that takes too long.
    Events of one partition come in order; those of several as they are found.
    """

    def __init__(
        self,
        there: RemoteBatches,
        wait: Callable[[list[int]], RemoteBatches],
        timeout: float | None,
        transport: Transport,
    ) -> None:
        """`there` is what is there at the call, for which it does not wait; `wait` gives what comes from its end on."""
        self._batches = there
        self._wait = wait
        self._waits = False
        self._timeout = timeout
        self._transport = transport
        self._stopped = False
        self._events: Iterator[Event] = iter(())

    def __next__(self) -> Event:
        for event in self._events:
            return event
        deadline_s: float | None = None
        while not self._over:
            batch = self._batches.found()
            if batch is not None:
                self._events = iter(batch.events())
                return next(self._events)
            try:
                if not self._waits:
                    self._catch_up()
                    continue
                now_s = time.monotonic()
                if self._timeout is not None and deadline_s is None:
                    deadline_s = now_s + self._timeout
                if deadline_s is not None and deadline_s <= now_s:
                    break
                self._batches.more(None if deadline_s is None else deadline_s - now_s)
            except HeadwaterError:
                if not self._over:
                    raise
        raise StopIteration

    def __iter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        self._batches.close()

    def stop(self) -> None:
        """End the iteration, from any thread; events that were not handed out are not lost."""
        self._stopped = True
        self._batches.cut()

    def _catch_up(self) -> None:
        """Take what was there; at its end, ask for what comes."""
        if not self._batches.more(None) and not self._over:
            self._batches = self._wait(self._batches.ends)
            self._waits = True

    @property
    def _over(self) -> bool:
        return self._stopped or self._transport.closed


def events_of(batches: RemoteBatches, *, reverse: bool) -> Iterator[Event]:
    """Yield the events of batches, in the order of their times over all partitions.

    Batches of several partitions come by the time of their first event (in reverse, of their last): what is earlier
    than the newest batch begins is complete, and the rest waits.
    """
    try:
        if not batches.several:
            for batch in batches:
                yield from batch.reversed() if reverse else batch.events()
            return
        waiting: list[Event] = []
        for batch in batches:
            more = batch.reversed() if reverse else batch.events()
            first = _by_time(more[0])
            ready = 0
            while ready < len(waiting) and (_by_time(waiting[ready]) > first) == reverse:
                ready += 1
            yield from waiting[:ready]
            waiting = sorted((*waiting[ready:], *more), key=_by_time, reverse=reverse)
        yield from waiting
    except MemoryError as error:
        raise out_of_memory("a batch of events cannot be read") from error


def position_query(start: Positions, end: Positions) -> dict[str, Any]:
    """Return where a read begins and ends, as parameters; the server refuses what is not a position."""
    query = {"from": position.format(start)}
    return query if end == "latest" else query | {"end_before": position.format(end)}


def _lost_ranges(text: str) -> list[tuple[int, int, int]]:
    """Partition, first offset and end of each range of lost events, as `0:100-199,…` says them."""
    found = []
    for each in text.split(",") if text else ():
        partition, _, offsets = each.partition(":")
        lo, _, last = offsets.partition("-")
        found.append((int(partition), int(lo), int(last) + 1))
    return found


def _offsets(text: str) -> list[int]:
    return [int(each) for each in text.split(",")] if text else []


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
