"""The log in a bucket: one partition that any number of processes, on any machines, append to and read.

Ties together the chain of its objects, the appender and the reader. Safe from any thread. Everything that is appended
is durable when it is acknowledged, whatever durability was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

from headwater.bucket.appender import Appender, Unit
from headwater.bucket.chain import Chain, ObjectCache
from headwater.bucket.object_blobs import ObjectBlob, ObjectSpool
from headwater.bucket.object_place import ObjectPlace
from headwater.bucket.object_reader import MissingObject, ObjectCursor, ObjectReader, TypeTest
from headwater.disk.open_files import open_files
from headwater.errors import Unsupported
from headwater.event import Blob, Content
from headwater.format.batch import Batch
from headwater.format.losses import Ranges
from headwater.format.object import known
from headwater.format.producers import Producer, ProducerState
from headwater.log.log import Extents
from headwater.log.rows import Rows
from headwater.log.upload import BlobUpload


class ObjectState(NamedTuple):
    """How far a log has come."""

    visible_offset: int
    secured_offset: int
    last_ticks: int


class ObjectLog:
    """An open log."""

    def __init__(
        self,
        place: ObjectPlace,
        cache: ObjectCache,
        pool: Callable[[], Executor],
        *,
        patient: bool = False,
        was_put: Callable[[ObjectLog], None] = lambda _: None,
    ) -> None:
        """`pool` gives the threads that fetch; `patient` and `was_put` as in `Appender`."""
        self.place = place
        self.topic = place.topic
        self.partition = place.partition
        self.node = place.node
        self.blob_bytes_in_memory = place.limits.blob_bytes_in_memory
        self.chain = Chain(place, cache)
        self._reader = ObjectReader(place, self.chain, pool)
        self.used = open_files.turn
        self._appender = Appender(place, self.chain, patient=patient, was_put=partial(was_put, self))

    # Appending

    def append(self, rows: Rows) -> None:
        """Append rows; returns when they are durable, with their offset and ticks set."""
        self.used = open_files.turn
        self._appender.append([rows])

    def append_all(self, group: list[Rows]) -> None:
        """Append the rows of many requests; each has then its offset and ticks, or its `error`."""
        self.used = open_files.turn
        self._appender.append_all(group)

    def append_together(self, group: list[Rows]) -> None:
        """Append rows as one: all of them are there, or none."""
        self.used = open_files.turn
        self._appender.append(group)

    def append_later(self, rows: Rows) -> Unit:
        """Have rows appended with what else comes soon; waits while too much waits already."""
        self.used = open_files.turn
        return self._appender.submit([rows])

    def flush(self) -> None:
        """Append what waits; returns when all of it is durable. Raises an error that nobody was told of."""
        self._appender.flush()

    def upload(
        self,
        content: Content,
        type: bytes,
        key: bytes | None,
        meta: bytes | None,
        *,
        sync: bool,
        guard: tuple[int | None, Producer | None] | None = None,
    ) -> BlobUpload:
        """Return one event whose pieces arrive in their own time: bounded memory."""
        return BlobUpload(
            self.place.limits,
            partial(ObjectSpool, self.place),
            self.append,
            content,
            type,
            key,
            meta,
            sync=sync,
            guard=guard,
        )

    def sync(self) -> None:
        """Everything that is there is durable."""

    def producers(self) -> tuple[int, dict[str, ProducerState]]:
        """Return what is remembered of producers now, and the offset as of which that is."""
        tip = self.chain.advance()
        return tip.end, known(tip.producers)

    # Reading

    def start(self) -> int:
        """Return the oldest readable offset."""
        self.used = open_files.turn
        return self._reader.start()

    def end(self) -> int:
        """Return the offset that the next event will get."""
        self.used = open_files.turn
        return self.chain.advance().end

    def seen(self) -> int:
        """Return the end as `end` does, for callers that poll: looks ever more rarely while nothing comes."""
        self.used = open_files.turn
        return self.chain.seen()

    def pause_s(self) -> float:
        """In how many seconds `seen` looks again."""
        return self.chain.until_look_s()

    def state(self) -> ObjectState:
        """Return how far it has come now; raises NotFound if its topic was deleted."""
        self.used = open_files.turn
        tip = self.chain.advance()
        return ObjectState(tip.end, tip.end, tip.ticks)

    def secured(self) -> int:
        """All that is known is durable."""
        return self.chain.tip.end

    def batches(
        self,
        start: int,
        stop: int,
        *,
        backwards: bool = False,
        types: TypeTest | None = None,  # noqa: ARG002  # there is no index in a bucket
        key: bytes | None = None,  # noqa: ARG002
    ) -> Iterator[Batch]:
        """Yield batches that hold the offsets from `start` to `stop`, whole, whatever types and keys are wanted."""
        self.used = open_files.turn
        return self._reader.batches(start, stop, backwards=backwards)

    def version(self, key: bytes) -> int | None:
        """Not to be had: raises Unsupported."""
        raise Unsupported(
            f"a bucket has no index of keys, and so no version of {key!r}",
            hint="read(key=…) finds its events with a full scan; a directory and a server have versions",
        )

    def cursor(self, offset: int) -> ObjectCursor:
        """Return a place that moves forward through the log."""
        self.used = open_files.turn
        return ObjectCursor(self._reader, offset)

    def ticks_before_start(self) -> int:
        """Return the ticks of the last event before the oldest readable one; 0 if there never was one."""
        return self.chain.knowledge.meta().trim.ticks

    def offset_at(self, ticks: int) -> int:
        """Return the first offset whose event has these ticks or later ones; the end if there is none."""
        return self._reader.offset_at(ticks)

    def lost(self, _start: int, _stop: int) -> Ranges:
        """Return the offsets whose events are lost: none, as a bucket is never repaired."""
        return []

    def extents(self, start: int, stop: int, whole: int) -> Extents:
        """Return where the offsets from `start` to before `stop` can be cut: at objects, or ranges of segments."""
        return self._reader.extents(start, stop, whole)

    def blob(self, batch: Batch) -> Blob:
        """Return the data of a huge event."""
        try:
            id = self._reader.head(batch.path).blobs.get(str(batch.base_offset), "missing")
        except MissingObject:  # its object was compacted since: the segment says it, too
            self._reader.recover(batch.base_offset)
            (again,) = (each for each in self._reader.batches(batch.base_offset, batch.end_offset, backwards=False))
            id = self._reader.head(again.path).blobs.get(str(batch.base_offset), "missing")
        return ObjectBlob(self.place, id, batch.base_offset, batch.blob_reference(), self.start)

    # Waiting and ending

    def wait_on(self) -> Chain:
        """Return what to sleep on until there is more."""
        return self.chain

    def stop_followers(self) -> None:
        """Wake the threads that sleep on this log, so that they look around."""
        self.chain.wake()

    def settle(self) -> None:
        """Nobody can die in the middle of an append: an object is there or it is not."""

    def finish(self) -> None:
        """Close the log for all: its topic is deleted. Raises NotFound if another process has done so."""
        self._appender.finish_log()

    def idle(self) -> bool:
        """Return whether nobody waits for an append: then it can be rebuilt when needed."""
        return self._appender.idle()

    def close(self) -> None:
        """Append what waits, and release it."""
        self._appender.close()

    def after_fork(self) -> None:
        """In a forked child: nothing is to be had of what the parent opened."""
