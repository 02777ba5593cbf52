"""The verbs, marked in the trace: several engines on one directory, as several processes would be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headwater.directory.log_directory import LogDirectory
from headwater.directory.sealer import Sealer
from headwater.disk.disk import Clock, Disk
from headwater.errors import HeadwaterError
from headwater.event import Content, Durability, Ref
from headwater.format.names import offset_of, partition_of
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from tests.crash.expectation import (
    Acknowledged,
    Begin,
    Contents,
    Done,
    Expectation,
    Failed,
    Request,
    Verb,
    expectation_of,
)
from tests.crash.recording import Op, RecordingDisk, SteadyClock

# Small, so that a few appends roll a segment, and a few hundred bytes are a huge event.
AGE_MS = 1
LIMITS = Limits(segment_bytes=1024, blob_bytes_min=600, lock_wait_s=2.0, producer_answers_max=3)

Part = tuple[str, int, int, Content]  # of a transaction: topic, partition, size and content of an event


class QuietSealer(Sealer):
    """Seals nothing by itself: the workload says when, so that every run has the same trace."""

    def rolled(self, place: LogDirectory) -> None:
        pass

    def damaged(self, place: LogDirectory, base: int) -> None:
        pass


def open_engine(path: Path, disk: Disk, clock: Clock, *, create: bool = True) -> Store:
    engine = open_directory(path, create=create, limits=LIMITS, disk=disk, clock=clock)
    engine._sealer = QuietSealer()
    return engine


class Driver:
    """Does what a workload says, through one of several engines, and marks it."""

    def __init__(self, root: Path, disk: RecordingDisk, clock: Clock, *, writers: int = 1) -> None:
        self.disk = disk
        self.root = root
        self._clock = clock
        self._number = 0
        disk.mark(Begin("open"))
        self.engines = [open_engine(root / "data", disk, clock) for _ in range(writers)]
        disk.mark(Done("open"))

    def create(self, topic: str, partitions: int = 1, *, writer: int = 0) -> None:
        self.disk.mark(Begin("create", topic, partitions))
        self.engines[writer].create(topic, partitions=partitions)
        self.disk.mark(Done("create", topic))

    def delete(self, topic: str, *, writer: int = 0) -> None:
        self.disk.mark(Begin("delete", topic))
        self.engines[writer].delete(topic)
        self.disk.mark(Done("delete", topic))

    def append(
        self, topic: str, size: int = 40, durability: Durability = "fsync", *, partition: int = 0, writer: int = 0
    ) -> Ref:
        data = self._data(size)
        self.disk.mark(Begin("append", topic, groups=((partition, (data,)),)))
        ref = self.engines[writer].append(topic, data, durability=durability, partition=partition)
        self.disk.mark(Done("append", topic, ((_acknowledged(ref),),), ref.durability))
        return ref

    def append_many(
        self, topic: str, sizes: Sequence[int], durability: Durability = "fsync", *, partition: int = 0, writer: int = 0
    ) -> None:
        data = tuple(map(self._data, sizes))
        self.disk.mark(Begin("append", topic, groups=((partition, data),)))
        refs = self.engines[writer].append_many(topic, data, durability=durability, partition=partition)
        self.disk.mark(Done("append", topic, (tuple(map(_acknowledged, refs)),), refs.durability))

    def append_keyed(self, topic: str, count: int, partitions: int, *, writer: int = 0) -> None:
        """Events that their keys spread over the partitions."""
        data = [self._data(50) for _ in range(count)]
        keys = [b"key-%d" % number for number in range(count)]
        groups: dict[int, list[int]] = {}
        for row, key in enumerate(keys):
            groups.setdefault(partition_of(key, partitions), []).append(row)
        begun = tuple((partition, tuple(data[row] for row in rows)) for partition, rows in groups.items())
        self.disk.mark(Begin("append", topic, groups=begun))
        refs = self.engines[writer].append_many(topic, data, keys=keys)
        told = tuple(tuple(_acknowledged(refs[row]) for row in rows) for rows in groups.values())
        self.disk.mark(Done("append", topic, told, refs.durability))

    def transact(self, parts: Sequence[Part], durability: Durability = "fsync", *, writer: int = 0) -> None:
        """Append to several logs at once."""
        rows: dict[tuple[str, int], list[int]] = {}
        for number, (topic, partition, _, _) in enumerate(parts):
            rows.setdefault((topic, partition), []).append(number)
        data = [self._data(size) for _, _, size, _ in parts]
        topics = tuple(topic for topic, _ in rows)
        groups = tuple((partition, tuple(data[row] for row in rows[topic, partition])) for topic, partition in rows)
        self.disk.mark(Begin("transact", topics=topics, groups=groups))
        with self.engines[writer].transaction(durability=durability) as transaction:
            for event, (topic, partition, _, content) in zip(data, parts, strict=True):
                transaction.append(topic, event, partition=partition, content=content)
        refs = transaction.refs
        told = tuple(tuple(_acknowledged(refs[row]) for row in some) for some in rows.values())
        self.disk.mark(Done("transact", refs=told, durability=refs[0].durability, topics=topics))

    def ask(
        self,
        topic: str,
        request: Request,
        sizes: Sequence[int],
        durability: Durability = "fsync",
        *,
        partition: int = 0,
        writer: int = 0,
    ) -> None:
        """A producer's request."""
        data = tuple(map(self._data, sizes))
        self.disk.mark(Begin("append", topic, groups=((partition, data),), request=request))
        told = send(self.engines[writer], topic, partition, request, data, durability)
        self.disk.mark(Done("append", topic, (told,), durability))

    def retry(
        self, topic: str, request: Request, durability: Durability = "fsync", *, partition: int = 0, writer: int = 0
    ) -> None:
        """The same request once more, which was answered."""
        log = self.expected().topics[topic].logs[partition]
        told = send(self.engines[writer], topic, partition, request, log.requests[request], durability)
        [group] = [group for group in log.groups if group.request == request]
        events = [data for each in log.groups for data in each.data]
        answer = tuple(events[ref.offset] for ref in told), tuple(ref.ticks for ref in told)
        assert answer == (group.data, group.ticks), "a retry got another answer"
        self.disk.mark(Done("retry", topic, (told,), durability))

    def sync(self, topic: str, *, writer: int = 0) -> None:
        self.engines[writer].sync(topic)
        self.disk.mark(Done("sync", topic))

    def seal(self, topic: str, *, writer: int = 0) -> None:
        self.engines[writer].seal(topic)
        self.disk.mark(Done("sync", topic))

    def retain(self, topic: str, segments: int, *, writer: int = 0, roll: bool = False) -> None:
        """Keep so many segments of each partition: by command, or as after a roll."""
        starts = tuple(starts_of(self.engines[writer], topic, segments))
        self.disk.mark(Begin("retain", topic, starts=starts))
        engine = self.engines[writer]
        if roll:
            for log in engine._topics.get(topic).logs:
                engine._keeper.rolled(log.place)
        else:
            engine.retain(topic, retention_segments=segments)
        self.disk.mark(Done("retain", topic))

    def expire(self, topic: str, *, writer: int = 0) -> None:
        """Keep nothing, however young it is: the active segment is finished, and goes too."""
        logs = self.expected().topics[topic].logs
        starts = tuple(
            (*bases, log.events()) for bases, log in zip(starts_of(self.engines[writer], topic, 1), logs, strict=True)
        )
        for _ in range(20 * AGE_MS):
            self._clock.ticks()  # which moves it by 0.1 ms
        self.disk.mark(Begin("retain", topic, starts=starts))
        self.engines[writer].retain(topic, retention_age_ms=AGE_MS)
        self.disk.mark(Done("retain", topic))

    def read(self, topic: str, *, writer: int = 0) -> None:
        """Read all, and find all that was acknowledged."""
        for partition, log in enumerate(self.expected().topics[topic].logs):
            log.check(contents_of(self.engines[writer], topic, partition), log.events())

    def failing(self, verb: Verb, topic: str, call: Callable[[], object]) -> HeadwaterError | None:
        """Do something that may fail; the error, if it does, is marked and returned."""
        try:
            call()
        except HeadwaterError as error:
            self.disk.mark(Failed(verb, topic))
            return error
        return None

    def expected(self) -> Expectation:
        return expectation_of(self.disk.trace)

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    def _data(self, size: int) -> bytes:
        """Bytes that no other event has."""
        self._number += 1
        return (b"event %d " % self._number).ljust(size, b".")


def starts_of(engine: Store, topic: str, segments: int) -> Iterator[tuple[int, ...]]:
    """Where each partition may begin while all but so many of its segments are deleted."""
    for log in engine._topics.get(topic).logs:
        bases = sorted(base for name in os.listdir(log.place.path) if (base := offset_of(name, "log")) is not None)
        yield tuple(bases[: max(1, len(bases) - segments + 1)])


def contents_of(engine: Store, topic: str, partition: int) -> Contents:
    """All that a partition holds."""
    return Contents(engine._topics.get(topic).logs[partition].start(), events_of(engine, topic, partition))


def events_of(engine: Store, topic: str, partition: int, *, reverse: bool = False) -> list[tuple[int, int, bytes]]:
    """Offset, ticks and data of each event of a partition."""
    return [
        (event.offset, event.ticks, b"".join(event.chunks()))
        for event in engine.read(topic, partition=partition, reverse=reverse)
    ]


def send(
    engine: Store,
    topic: str,
    partition: int,
    request: Request,
    data: tuple[bytes, ...],
    durability: Durability = "fsync",
) -> tuple[Acknowledged, ...]:
    """A producer's request, and its answer."""
    if len(data) == 1:
        ref = engine.append(topic, data[0], partition=partition, producer=request, durability=durability)
        return (_acknowledged(ref),)
    refs = engine.append_many(topic, data, partition=partition, producer=request, durability=durability)
    return tuple(map(_acknowledged, refs))


def _acknowledged(ref: Ref) -> Acknowledged:
    return Acknowledged(ref.partition, ref.offset, ref.ticks)


# The workloads: each is small, so that a crash can be tried after each of its operations.


def durabilities(driver: Driver) -> None:
    """Both durabilities, alone and many, with rolls between them."""
    driver.create("a")
    driver.append("a", 40)
    driver.append("a", 100, "os")
    driver.append_many("a", [200, 30, 250], "os")
    driver.append("a", 300)
    driver.append("a", 20, "os")
    driver.append_many("a", [500, 10, 400], "os")  # rolls
    driver.append("a", 30, "os")
    driver.sync("a")
    driver.append("a", 590)  # rolls
    driver.append_many("a", [100, 100], "os")
    driver.append_many("a", [30, 40], "fsync")
    driver.append("a", 20, "os")
    driver.append("a", 21, "os")


def partitions(driver: Driver) -> None:
    """Several partitions, by number and by key."""
    driver.create("p", 3)
    driver.append("p", 40, partition=1)
    driver.append_keyed("p", 7, 3)
    driver.append("p", 600, "os", partition=2)
    driver.append("p", 500, "os", partition=2)
    driver.append("p", 50, partition=2)
    driver.append("p", 50, "os", partition=0)
    driver.read("p")


def sealing(driver: Driver) -> None:
    """Rolls, packing and indexes, with appends of both durabilities between them."""
    driver.append("s", 100)
    for number in range(9):
        driver.append("s", 90, "os" if number % 3 else "fsync")
    driver.seal("s")
    driver.append("s", 100, "os")
    driver.append("s", 110, "fsync")
    for _ in range(7):
        driver.append("s", 120, "os")
    driver.seal("s")
    driver.read("s")
    driver.append("s", 30, "os")


def topics(driver: Driver) -> None:
    """Topics made, deleted and made again."""
    driver.create("t", 2)
    driver.append("t", 40, partition=1)
    driver.append("u", 40)
    driver.delete("t")
    driver.create("t", 1)
    driver.append("t", 50)
    driver.append("t", 60, "os")
    driver.delete("u")
    driver.append("u", 70, "os")


def huge(driver: Driver) -> None:
    """Huge events in files of their own, of both durabilities, over a roll and a seal."""
    driver.append("h", 1500)
    driver.append("h", 700, "os")
    driver.append("h", 40, "fsync")
    for _ in range(4):
        driver.append("h", 210, "os")
    driver.append("h", 900, "os")
    driver.append("h", 800, "os")
    driver.sync("h")
    driver.seal("h")
    driver.append("h", 650, "os")
    driver.read("h")


def writers(driver: Driver) -> None:
    """Three engines in turn on the same logs."""
    driver.create("w", writer=0)
    for number in range(14):
        driver.append("w", 60 + 20 * (number % 4), "os" if number % 5 in (1, 2) else "fsync", writer=number % 3)
        if number == 8:
            driver.seal("w", writer=1)
    driver.append_many("w", [100, 200], "os", writer=2)
    driver.read("w", writer=0)
    driver.delete("w", writer=1)
    driver.append("w", 30, writer=2)
    driver.append("w", 30, "os", writer=0)


def retention(driver: Driver) -> None:
    """Segments deleted, sealed ones and others, with huge events and without, by two engines; at last all of them."""
    driver.create("r")
    for number in range(5):
        driver.append("r", 300, "os" if number % 3 else "fsync")
    driver.append("r", 700)
    driver.seal("r", writer=1)
    driver.append("r", 500, "os")
    driver.append("r", 500, "os")
    driver.append("r", 500, "os")
    driver.retain("r", 3)
    driver.append_many("r", [200, 300], "os", writer=1)
    driver.append("r", 510, "os", writer=1)
    driver.retain("r", 3, writer=1, roll=True)
    driver.read("r")
    driver.append("r", 50, "os")
    driver.append("r", 800, "os", writer=1)
    driver.expire("r")
    driver.append("r", 70, "os")
    driver.read("r", writer=1)


def transactions(driver: Driver) -> None:
    """Two engines in turn: transactions between appends of both durabilities, over rolls and a seal."""
    driver.create("x", 2)
    driver.create("y")
    driver.append("x", 40, "os")
    driver.transact([("y", 0, 60, "bytes"), ("x", 0, 50, "bytes")])
    driver.append("y", 30, "os")
    driver.transact(
        [("x", 1, 40, "text"), ("y", 0, 20, "bytes"), ("x", 1, 30, "bytes"), ("x", 1, 50, "text")], writer=1
    )
    driver.append("x", 45, "os", partition=1)
    driver.transact([("x", 0, 30, "bytes"), ("x", 0, 35, "text")])  # several batches of one log
    driver.transact([("y", 0, 400, "bytes"), ("x", 0, 300, "bytes"), ("x", 1, 100, "bytes")], writer=1)
    driver.append("y", 20, "os")
    driver.transact([("y", 0, 450, "bytes"), ("x", 1, 50, "bytes")])  # rolls, and begins the journal anew
    driver.seal("y", writer=1)
    driver.transact([("x", 1, 70, "bytes"), ("x", 1, 30, "bytes")], "os", writer=1)  # one batch
    driver.transact([("x", 1, 40, "bytes"), ("x", 0, 500, "bytes"), ("y", 0, 33, "bytes")], writer=1)  # rolls
    driver.append("x", 25)
    driver.transact([("x", 0, 20, "bytes"), ("y", 0, 21, "bytes")])
    driver.append("y", 22, "os", writer=1)
    driver.read("x", writer=1)
    driver.read("y")


def producers(driver: Driver) -> None:
    """Two engines that take over from each other: requests and retries, over rolls, a seal and a transaction."""
    driver.create("q", 2)
    driver.ask("q", ("p", 0, 1), [40])
    driver.ask("q", ("p", 0, 2), [30, 35], "os", writer=1)
    driver.retry("q", ("p", 0, 2), "fsync")
    driver.append("q", 50, "os")
    driver.ask("q", ("r", 0, 7), [100], "os", writer=1)
    driver.ask("q", ("p", 0, 3), [36], "os")
    driver.transact([("q", 0, 30, "bytes"), ("q", 1, 31, "bytes")], writer=1)
    driver.retry("q", ("p", 0, 3), "os", writer=1)
    driver.ask("q", ("p", 0, 4), [37])
    driver.ask("q", ("p", 0, 5), [300, 200], "os", writer=1)  # rolls
    driver.retry("q", ("r", 0, 7))
    driver.ask("q", ("s", 0, 1), [38], "os", partition=1)
    driver.seal("q", writer=1)  # rolls and packs
    driver.retry("q", ("p", 0, 5), writer=1)
    driver.ask("q", ("p", 1, 6), [39], "os")
    driver.ask("q", ("r", 0, 8), [700], writer=1)  # a huge event
    driver.ask("q", ("p", 1, 7), [590], "os", writer=1)  # rolls
    driver.retry("q", ("s", 0, 1), "os", partition=1, writer=1)
    driver.append("q", 20, "os")


Workload = Callable[[Driver], None]
WORKLOADS: dict[str, Workload] = {
    workload.__name__: workload
    for workload in (durabilities, partitions, sealing, topics, huge, writers, retention, transactions, producers)
}
ENGINES: dict[Workload, int] = {writers: 3, retention: 3, transactions: 2, producers: 2}  # how many take turns


def record(
    workload: Workload, root: Path, *, disk: type[RecordingDisk] = RecordingDisk, clock: Clock | None = None
) -> list[Op]:
    """The trace of a workload, run in a new directory that is removed again."""
    root.mkdir()
    recording = disk(root)
    driver = Driver(root, recording, clock or SteadyClock(), writers=ENGINES.get(workload, 1))
    workload(driver)
    driver.close()
    shutil.rmtree(root)
    return recording.trace
