"""`restore` from an archive of Parquet files: events are appended anew, with the offsets, times and ids that they had.

As with any archive, the directory is built under a hidden name, and an interrupted restore goes on where it was.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from headwater.engine.archiving import Progress, advancing
from headwater.engine.catalogue import TOPIC_FILE, DirectoryCatalog
from headwater.engine.restoring import bound_of, building_at, finishing
from headwater.errors import HeadwaterError
from headwater.format import settings
from headwater.format.losses import total
from headwater.format.names import directory_of
from headwater.format.settings import TopicRecord
from headwater.info import RestoreResult
from headwater.limits import DATA_BYTES_CEILING, Limits
from headwater.storage.archive.archive import reaching
from headwater.storage.disk import Clock, Disk
from headwater.storage.log import LocalLog
from headwater.storage.losses import stored_losses
from headwater.storage.parquet.archive import ParquetStore, open_parquet
from headwater.storage.parquet.restore import ParquetRestore


class _RestoreRequest(NamedTuple):
    """A topic, and what is restored of each of its logs."""

    topic: TopicRecord
    logs: list[ParquetRestore]


def restore_parquet(
    address: str,
    path: Path,
    topic: str | None,
    partition: int | None,
    to: int | datetime | None,
    limits: Limits,
    progress: Progress | None,
    disk: Disk,
    clock: Clock,
) -> list[RestoreResult]:
    """As `restore`. What is remembered of producers is not in such an archive."""
    # How large data may be, the log that was archived has decided.
    limits = msgspec.structs.replace(limits, data_bytes_max=DATA_BYTES_CEILING)
    archive = open_parquet(address, clock=clock, disk=disk, limits=limits)
    try:
        with reaching(archive.store.url):
            uuid = archive.owner()
            topics = [archive.topic(topic)] if topic is not None else archive.topics()
            wanted = [_wanted(archive, each, partition, to) for each in topics]
        with finishing(path, uuid, topics, disk, clock):
            catalogue = DirectoryCatalog(building_at(path), disk, clock, limits)
            return _restore(catalogue, wanted, limits, progress, disk)
    finally:
        archive.close()


def _wanted(
    archive: ParquetStore, topic: TopicRecord, partition: int | None, to: int | datetime | None
) -> _RestoreRequest:
    manifests = [archive.manifest(topic, number) for number in range(topic.partitions)]
    bounds = [bound_of(topic, number, partition, to) for number in range(topic.partitions)]
    logs = [ParquetRestore(archive.store, *each) for each in zip(manifests, bounds, strict=True)]
    return _RestoreRequest(topic, logs)


def _restore(
    catalogue: DirectoryCatalog, wanted: list[_RestoreRequest], limits: Limits, progress: Progress | None, disk: Disk
) -> list[RestoreResult]:
    topics = catalogue.path / "topics"
    with contextlib.suppress(FileExistsError):
        disk.mkdir(topics)
    names = {directory_of(each.topic.name) for each in wanted}
    for name, is_directory in disk.entries(topics):
        if is_directory and name not in names:  # of an earlier try, which wanted something else
            disk.remove_tree(topics / name)
    for each in wanted:
        _make(catalogue, each, disk)
    advance = advancing(sum(part.bytes for each in wanted for log in each.logs for part in log.parts), progress)
    with ThreadPoolExecutor(limits.archive_transfers, "headwater-restore") as pool:
        work = [
            (topic, log, pool.submit(log.run, catalogue.place(topic, log.manifest.partition), advance))
            for topic, logs in wanted
            for log in logs
        ]
        try:
            ends = [(topic, log, future.result()) for topic, log, future in work]
        except BaseException:
            for _, _, future in work:
                future.cancel()
            raise
    return [
        RestoreResult(
            topic.name,
            log.manifest.partition,
            *bounds,
            sum(part.bytes for part in log.parts),
            total(stored_losses(catalogue.place(topic, log.manifest.partition))),
        )
        for topic, log, bounds in ends
    ]


def _make(catalogue: DirectoryCatalog, wanted: _RestoreRequest, disk: Disk) -> None:
    """Have the topic with its logs, empty, or as far as an earlier try came; one that came too far begins anew."""
    topic, logs = wanted
    directory = catalogue.path / "topics" / directory_of(topic.name)
    if disk.inode(directory / TOPIC_FILE) is not None and not _goes_on(catalogue, wanted, disk):
        disk.remove_tree(directory)
    catalogue.make(topic, [(log.start, 0) for log in logs])


def _goes_on(catalogue: DirectoryCatalog, wanted: _RestoreRequest, disk: Disk) -> bool:
    """Whether what an earlier try has made is a beginning of what is wanted."""
    topic, logs = wanted
    try:
        stored = disk.read_file(catalogue.path / "topics" / directory_of(topic.name) / TOPIC_FILE)
        if settings.decode(stored, TopicRecord) != topic:
            return False
        for log in logs:
            there = LocalLog(catalogue.place(topic, log.manifest.partition), lambda _: None)
            try:
                state = there.state()
                if there.start() != log.start or log.too_far(state.visible_offset, state.last_ticks):
                    return False
            finally:
                there.close()
    except HeadwaterError:
        return False
    return True
