"""From staged files to the log, once: whatever dies, and however often a batch is run again. Needs no Spark.

1. A manifest of the staged files is created, if there is none: from then on, it is what counts.
2. Its chunks are appended, partition after partition, each as a request of a producer with the next seq. The log knows
   which of them it has, so that a rerun skips those.
3. All is synced, and the manifest is marked as finished.
4. The files go, and what was remembered of the batches before.

Each step may be the last of a process. A run that finds a manifest goes on with 2., one that finds it finished with 4.;
its own files go with the others.

A log forgets a producer that was silent for long, or when too many others came. Where it may have, and events came
since the manifest was made, it cannot be told whether a chunk is there: then publishing stops with an error, and does
not guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from headwater.bucket.records import RecordVersion
from headwater.errors import Conflict, Corrupt, NotFound
from headwater.format import batch
from headwater.format.batch import DATA, KEY, META, TYPE, Batch
from headwater.limits import DEFAULTS
from headwater.requests import AppendMany
from headwater.spark.writing.spreading import TopicTarget
from headwater.spark.writing.staging import (
    JOB_S_MAX,
    StagedBatch,
    StagedPartition,
    StagedWrite,
    StagingArea,
    WriteManifest,
)

if TYPE_CHECKING:
    from headwater.info import TopicInfo
    from headwater.store import Store

SEQ_BITS = 24  # of a batch's chunks in one partition; the batch's number is above them
PARTITIONS_AT_ONCE = 4  # that are appended to; each holds a chunk or two in memory
SWEEP_EVERY = 64  # batches of a query: looking for orphans lists all files


class PublishedBatch(msgspec.Struct, frozen=True):
    """A chunk, and where it goes."""

    target: TopicTarget
    partition: int
    chunk: StagedBatch


def publish(
    hw: Store, staging: StagingArea, write: StagedWrite, sent: Sequence[PublishedBatch], title: str = ""
) -> int:
    """Append what was staged, once; returns how many events are there by this write, in this run or another."""
    found = staging.manifest(write)
    again = found is not None
    if found is None and not sent and write.streaming:
        return 0
    if found is None and not staging.passed(write):
        manifest = _manifest(hw, staging, write, sent, title)
        found = staging.create(write, manifest)
        if found is None:  # another run was first
            found, again = staging.manifest(write), True
    if found is None:  # a batch of long ago: a later one was begun since
        staging.drop(write)
        return 0
    if not found.record.finished:
        _finish(hw, staging, write, found, again=again)
    _tidy(staging, write)
    return found.record.events


def abandon(staging: StagingArea, write: StagedWrite, files: Iterable[str]) -> None:
    """Delete the staged files of a failed run, except those that a manifest names: another run publishes them.

    Of a write that cannot be run again, everything is deleted.
    """
    found = staging.manifest(write)
    if found is not None and not write.repeatable:
        staging.drop_manifest(write)
    if write.repeatable:  # another run of it may be under way, and has files of its own
        staging.drop_files(set(files) - (found.record.files() if found is not None else set()))
    else:
        staging.drop(write)


def _manifest(
    hw: Store, staging: StagingArea, write: StagedWrite, sent: Sequence[PublishedBatch], title: str
) -> WriteManifest:
    """Return the manifest to publish; raises before anything is published if that is impossible."""
    chunks: dict[tuple[str, int], list[StagedBatch]] = {}
    targets: dict[str, TopicTarget] = {}
    for each in sent:
        chunks.setdefault((each.target.name, each.partition), []).append(each.chunk)
        known = targets.setdefault(each.target.name, each.target)
        if known.uuid != each.target.uuid:
            raise _made_anew(each.target.name)
    _check_files(staging, write, {each.chunk.file for each in sent})
    infos = {name: _same_topic(hw, name, target.uuid) for name, target in targets.items()}
    destinations = [
        StagedPartition(
            name,
            targets[name].uuid,
            targets[name].partitions,
            partition,
            infos[name].partitions[partition].end,
            chunks[name, partition],
        )
        for name, partition in sorted(chunks)
    ]
    created_ms = int(staging.now().timestamp() * 1000)
    return WriteManifest(created_ms, sum(each.chunk.count for each in sent), destinations, title)


def _check_files(staging: StagingArea, write: StagedWrite, files: set[str]) -> None:
    there = staging.files(write)
    missing = files - there.keys()
    if missing:
        raise NotFound(
            f"{len(missing)} of {len(files)} staged files are missing, such as {min(missing)}",
            hint="all tasks and the driver must share a directory or bucket: give the option 'staging'",
            code="staged_missing",
        )
    now = staging.now()
    if any((now - there[file].modified).total_seconds() > JOB_S_MAX for file in files):
        raise Conflict(
            f"files were staged more than {JOB_S_MAX / 86_400:g} days ago, and may have been removed",
            hint="write in several parts",
            code="staged_too_old",
        )


def _same_topic(hw: Store, topic: str, uuid: str) -> TopicInfo:
    told = hw.describe(topic)
    if told.uuid != uuid:
        raise _made_anew(topic)
    return told


def _made_anew(topic: str) -> Conflict:
    return Conflict(
        f"topic {topic!r} was deleted and recreated while events for it were staged",
        hint="run the write again under another transaction, or with another checkpoint",
        code="topic_made_anew",
    )


def _finish(
    hw: Store, staging: StagingArea, write: StagedWrite, found: RecordVersion[WriteManifest], *, again: bool
) -> None:
    """Append what is missing of a manifest, and mark it. `again`: another run may have begun with it."""
    topics: dict[str, TopicInfo] = {}
    for destination in found.record.destinations:
        told = topics.get(destination.topic)
        if told is None:
            told = topics[destination.topic] = _same_topic(hw, destination.topic, destination.topic_uuid)
        if again:
            _check_memory(hw, staging, write, found.record, destination, told)
    if _append_all(hw, staging, write, found.record.destinations):
        for topic in topics:
            hw.sync(topic)
        staging.finish(write, found)


def _append_all(hw: Store, staging: StagingArea, write: StagedWrite, destinations: Sequence[StagedPartition]) -> bool:
    """Append to all partitions, some at once; return False if another process has finished it and deleted the files."""
    if not destinations:
        return True
    with ThreadPoolExecutor(min(PARTITIONS_AT_ONCE, len(destinations)), "headwater-publish") as pool:
        running = [pool.submit(_append, hw, staging, write, each) for each in destinations]
        try:
            return all(each.result() for each in running)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _append(hw: Store, staging: StagingArea, write: StagedWrite, destination: StagedPartition) -> bool:
    """Append the chunks of one partition, each a request."""
    chunks = destination.chunks
    for number, read in enumerate(_read_all(staging, write, chunks)):
        if read is None:
            return False
        columns = {kind: read.column(kind) for kind in (TYPE, KEY, DATA, META)}
        last = number + 1 == len(chunks)  # with it, all before it become durable, while other partitions are written
        where: dict[str, Any] = {"durability": "fsync" if last else "os", "partition": destination.partition}
        if write.repeatable:
            where["producer"] = (_producer(write), 0, write.batch << SEQ_BITS | number)
        try:
            request = AppendMany.of(
                destination.topic, read.content, columns, read.count, hw.limits, checked=True, create=False, **where
            )
            hw.backend.append_many(request)
        except Conflict as error:
            if error.code != "seq_forgotten":  # which says that a later chunk is there, and so this one
                raise
    return True


def _read_all(staging: StagingArea, write: StagedWrite, chunks: Sequence[StagedBatch]) -> Iterator[Batch | None]:
    """Yield the chunks in order. From a remote store, the next one is prefetched; locally that does not pay."""
    if not staging.far:
        yield from (_read(staging, write, chunk) for chunk in chunks)
        return
    with ThreadPoolExecutor(1, "headwater-read") as ahead:
        following = ahead.submit(_read, staging, write, chunks[0])
        for chunk in chunks[1:]:
            read = following.result()
            following = ahead.submit(_read, staging, write, chunk)
            yield read
        yield following.result()


def _read(staging: StagingArea, write: StagedWrite, chunk: StagedBatch) -> Batch | None:
    """Return a chunk, verified; None if its file is gone because all of it was published."""
    stored = staging.read(chunk)
    if stored is None:
        found = staging.manifest(write)
        if found is None or found.record.finished:
            return None
        raise NotFound(f"the staged file {chunk.file} is missing", code="staged_missing")
    read = batch.decode(stored, 0, len(stored), chunk.file)
    read.validate()
    if read.count != chunk.count:
        raise Corrupt(f"{chunk.file}: a batch has {read.count} events instead of {chunk.count}")
    return read


def _producer(write: StagedWrite) -> str:
    return f"spark-{write.name}"


def _check_memory(
    hw: Store,
    staging: StagingArea,
    write: StagedWrite,
    manifest: WriteManifest,
    destination: StagedPartition,
    told: TopicInfo,
) -> None:
    """Raise Conflict if the log may have forgotten what it has of a manifest that another run began with."""
    if told.partitions[destination.partition].end == destination.end:
        return  # there were no appends since
    age_ms = staging.now().timestamp() * 1000 - manifest.created_ms
    fresh = age_ms < DEFAULTS.producer_age_ms / 2
    known = hw.backend.producers(destination.topic, destination.partition)
    if known is not None:  # else only time counts
        if _producer(write) in known.ids:
            return
        fresh = fresh and len(known.ids) < known.most
    if not fresh:
        raise Conflict(
            f"topic {destination.topic!r}, partition {destination.partition}: the log may no longer know which events"
            f" of a write that was interrupted {age_ms / 86_400_000:.1f} days ago it has",
            hint=f"check the events since offset {destination.end}; the manifest is {write.key}",
            code="publishing_unknown",
        )


def _tidy(staging: StagingArea, write: StagedWrite) -> None:
    """Drop what is not needed any more. Whatever is left by a crash here is dropped by the next, or swept."""
    staging.drop(write)
    if not write.repeatable:
        staging.drop_manifest(write)
    staging.drop_earlier(write)
    if write.batch % SWEEP_EVERY == 0:
        staging.sweep()
