"""The consumers of a log whose cursors are in records that are swapped: in the bucket itself, or in DynamoDB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from weakref import WeakValueDictionary

from msgspec import structs

from headwater.bucket.object_store import ObjectStore
from headwater.consumers.coordinated_leases import CoordinatedLeases, Memory
from headwater.consumers.coordinator import BucketCoordinator, Coordinator, CursorRecord, CursorVersion, SharedCursors
from headwater.consumers.leases import check_name, consumer_not_found
from headwater.disk.disk import Clock
from headwater.errors import Corrupt, HeadwaterError, Unsupported
from headwater.format.settings import TopicRecord
from headwater.info import ConsumerInfo
from headwater.limits import Limits
from headwater.log.log import Log

REQUESTS = 8  # of one log that go out at once: a member of many partitions renews them within its lease


class CoordinatedConsumers:
    """All consumers of one log. Safe from any thread and machine."""

    def __init__(
        self, coordinator: Coordinator, clock: Clock, limits: Limits, topic_of: Callable[[str], TopicRecord]
    ) -> None:
        """`topic_of` returns the topic that has a name now; raises NotFound."""
        self._coordinator = coordinator
        self._clock = clock
        self._limits = limits
        self._topic_of = topic_of
        self._memories: dict[tuple[str, str], Memory] = {}
        self._members: WeakValueDictionary[str, CoordinatedLeases] = WeakValueDictionary()
        self._threads = ThreadPoolExecutor(REQUESTS, "headwater-consumers")

    def join(
        self,
        name: str,
        topic: TopicRecord,
        lease_ms: int,
        starts: Callable[[], list[int]],
        guest: Sequence[int] | None = None,
    ) -> CoordinatedLeases:
        """Return the part of a new member.

        What is missing of the consumer's records is made durably, with these starts.
        """
        cursors = self._cursors(name, topic)
        missing = set(range(topic.partitions)) - cursors.partitions()
        if missing:
            places = starts()
            for number in sorted(missing):
                cursors.create(number, CursorRecord(cursor=places[number]))
        memory = self._memories.setdefault((topic.uuid, name), Memory())
        ack_ms = self._limits.bucket_ack_ms
        leases = CoordinatedLeases(
            cursors, topic.partitions, self._clock, lease_ms, ack_ms, memory, self._threads, guest
        )
        self._members[leases.id.hex()] = leases
        return leases

    def check(self, name: str, topic: TopicRecord) -> None:
        """Raise NotFound if the topic has no such consumer."""
        if not self._cursors(name, topic).partitions():
            raise consumer_not_found(name, topic.name)

    def names(self, topic: TopicRecord) -> list[str]:
        """Return the names of all consumers of a topic, sorted."""
        return self._coordinator.names(topic)

    def infos(self, topic: TopicRecord, logs: Sequence[Log]) -> list[ConsumerInfo]:
        """Return all consumers of a topic, partition by partition.

        One look cannot find out whether an owner still lives; `lease_ms` is known of members of this process only.
        """
        found = []
        ends = [log.end() for log in logs]
        for name in self.names(topic):
            read = partial(_read, self._cursors(name, topic))
            for number, kept in enumerate(self._threads.map(read, range(topic.partitions))):
                if isinstance(kept, HeadwaterError):
                    found.append(ConsumerInfo.damaged(name, topic.name, number, kept))
                elif kept is not None:
                    record, end = kept.record, ends[number]
                    owner = None if record.free else record.owner
                    member = self._members.get(record.owner)
                    left_ms = member.left_ms(number, record.fence) if member is not None else 0
                    place = name, topic.name, number, record.cursor, end, max(0, end - record.cursor)
                    found.append(ConsumerInfo(*place, owner, record.fence, left_ms, record.failures_at(record.cursor)))
        return found

    def slowest(self, topic: TopicRecord, partition: int) -> int | None:
        """Return the lowest cursor of all consumers of a topic in a partition; None if it has none."""
        read = [self._cursors(name, topic).read(partition) for name in self.names(topic)]
        return min((kept.record.cursor if kept is not None else 0 for kept in read), default=None)

    def seek(self, name: str, topic: TopicRecord, cursors: dict[int, int]) -> None:
        """Move cursors, durably, under new fences: the process that holds a partition loses it, and it is free.

        One partition after the other: if it raises, some may be moved.
        """
        stored = self._cursors(name, topic)
        for number, cursor in cursors.items():
            while True:
                kept = stored.read(number)
                if kept is None:
                    raise consumer_not_found(name, topic.name)
                record = structs.replace(
                    kept.record,
                    cursor=cursor,
                    fence=kept.record.fence + 1,
                    owner="",
                    lease_ms=0,
                    beat=kept.record.beat + 1,
                    reached=0,
                    failing=0,
                    failures=0,
                )
                if stored.swap(number, record, kept.version) is not None:
                    break
            member = self._members.get(kept.record.owner)
            if member is not None:  # in this process: it need not wait for its next renewal to find out
                member.doubt(number)

    def forget(self, name: str, topic: str) -> None:
        """Delete a consumer's cursors of a topic, durably; raises NotFound. Its members find out and stop."""
        found = self._topic_of(topic)
        self.check(name, found)
        self._cursors(name, found).delete()

    def close(self) -> None:
        """Release threads and connections. May be called twice."""
        self._threads.shutdown()
        self._coordinator.close()

    def _cursors(self, name: str, topic: TopicRecord) -> SharedCursors:
        check_name(name)
        return self._coordinator.consumer(topic, name)


def _read(cursors: SharedCursors, partition: int) -> CursorVersion | HeadwaterError | None:
    """Return the record of a partition; None if there is none, and the error if it is damaged."""
    try:
        return cursors.read(partition)
    except (Corrupt, Unsupported) as error:
        return error


def open_coordinator(address: str | None, store: ObjectStore, clock: Clock) -> Coordinator:
    """Return where the consumers of a bucket keep their cursors: in the bucket, or at an address of their own."""
    if address is None:
        return BucketCoordinator(store, clock)
    from headwater.consumers.dynamodb import DynamoCoordinator, is_dynamodb

    if not is_dynamodb(address):
        hint = "write dynamodb://table?region=…, or leave it out to use the bucket itself"
        raise Unsupported(f"{address!r} is not a coordinator", hint=hint)
    return DynamoCoordinator(address, clock)
