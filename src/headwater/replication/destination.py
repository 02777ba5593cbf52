"""The directory of a replica, as the replicator uses it: topics with the uuids of their source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from headwater.directory.blobs import BlobSpool
from headwater.directory.directory import Directory
from headwater.directory.local_log import LocalLog
from headwater.directory.parts import DirectoryParts
from headwater.disk.disk import Clock, Disk
from headwater.errors import Corrupt, HeadwaterError, NotFound
from headwater.format.batch import BLOB, DATA, Batch
from headwater.format.replication import TopicState
from headwater.format.settings import TopicRecord
from headwater.limits import DATA_BYTES_CEILING, Limits
from headwater.log.open_topics import OpenTopic
from headwater.replication.source import ReplicationSource

Parts = Callable[[Path, Disk, Clock, Limits], DirectoryParts]
"""Makes what other rooms hand to a directory."""


class SourceError(Exception):
    """What the source raised while something was being written here: the copying is tried again."""

    def __init__(self, error: HeadwaterError) -> None:
        super().__init__(str(error))
        self.error = error


class ReplicaDirectory(Directory):
    """An open replica. What others are refused here, this does: it is for whoever holds the lock of the replica."""

    def __init__(self, path: Path, parts: Parts, limits: Limits, disk: Disk, clock: Clock) -> None:
        # How large data may be, the source has decided.
        limits = msgspec.structs.replace(limits, data_bytes_max=DATA_BYTES_CEILING)
        super().__init__(path, parts(path, disk, clock, limits), limits=limits, disk=disk, clock=clock)

    def here(self) -> dict[str, TopicRecord | HeadwaterError]:
        """The topics that are here, by name, with their settings as they are stored, or what is wrong with them."""
        found: dict[str, TopicRecord | HeadwaterError] = {}
        for name in self.topics():
            try:
                found[name] = self._catalogue.find(name)
            except NotFound:
                continue
            except HeadwaterError as error:
                found[name] = error
        return found

    def adopt(self, state: TopicState, here: TopicRecord | None = None) -> OpenTopic[LocalLog]:
        """Return a topic as the source has it, made if it is not `here`: its logs begin where the source's begin.

        Durable.
        """
        if here is None:
            topic = TopicRecord(name=state.name, uuid=state.uuid, partitions=len(state.logs), settings=state.settings)
            self._catalogue.make(topic, [(log.start, log.ticks_before) for log in state.logs])
        elif here.settings != state.settings:
            self._catalogue.settle(state.name, lambda _: state.settings)
        return self._topics.live(state.name)

    def drop(self, name: str) -> None:
        """Delete a topic here."""
        self._delete(self._topics.live(name))

    def forget_before(self, log: LocalLog, start: int) -> None:
        """Delete the segments of which the source has nothing any more."""
        if log.start() < start:
            self._keeper.retain([log], changes={}, before=start, dry_run=False)


def take(log: LocalLog, batches: list[Batch], source: ReplicationSource) -> None:
    """Append batches of the source, with the data of huge events, each streamed to its file and verified. Durable."""
    spools: dict[int, BlobSpool] = {}
    try:
        for batch in batches:
            if batch.flags & BLOB:
                spool = spools[batch.base_offset] = BlobSpool(log.place)
                _fill(spool, batch, _chunks(source, log, batch))
        log.take(batches, {offset: spool.path for offset, spool in spools.items()})
    finally:
        for spool in spools.values():
            spool.close()


def _chunks(source: ReplicationSource, log: LocalLog, batch: Batch) -> Iterator[bytes]:
    try:
        yield from source.blob(log.topic, log.partition, batch).chunks()
    except HeadwaterError as error:
        raise SourceError(error) from error


def _fill(spool: BlobSpool, batch: Batch, chunks: Iterator[bytes]) -> None:
    for chunk in chunks:
        spool.write(chunk)
    spool.finish()
    if spool.reference != batch.only(DATA):
        raise SourceError(Corrupt(f"the data of the event at offset {batch.base_offset} does not match its batch"))
