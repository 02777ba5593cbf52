"""A log and its archive side by side: whether the one goes on where the other ends. Needs no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.errors import Conflict, NotFound
from headwater.format.history import HistoryManifest
from headwater.format.settings import TopicRecord
from headwater.history.records import HistoryStore
from headwater.info import PartitionInfo, TopicInfo

if TYPE_CHECKING:
    from headwater.store import Store


def look(hw: Store, store: HistoryStore, topic: TopicRecord) -> tuple[TopicInfo, list[HistoryManifest]]:
    """A topic as it is now, and what is archived of each partition.

    The log goes on where each manifest ends, and is the one that was archived: else this raises Conflict, or NotFound
    where retention has deleted what was not archived yet. The log is looked at after its manifests, as that only grows.
    """
    before: list[HistoryManifest] | None = None
    while True:
        manifests = [store.manifest(topic, partition) for partition in range(topic.partitions)]
        info = hw.describe(topic.name)
        if info.uuid != topic.uuid:
            raise other_topic(store, topic.name)
        try:
            for there, manifest in zip(info.partitions, manifests, strict=True):
                _check(hw, there, manifest)
        except NotFound as error:
            if error.code != "offset_gone" or manifests == before:
                raise
            before = manifests  # somebody may have archived it meanwhile, and then had retention delete it
        else:
            return info, manifests


def other_topic(store: HistoryStore, name: str) -> Conflict:
    """That an archive is of an earlier topic of this name."""
    return Conflict(
        f"{store.store.url} has another topic {name!r}, which was deleted in the log and made again",
        hint="archive this one to another place, or move the folders of the old one away",
        code="archive_diverged",
    )


def _check(hw: Store, there: PartitionInfo, manifest: HistoryManifest) -> None:
    if not manifest.parts:
        return
    log = f"topic {manifest.topic!r}, partition {manifest.partition}"
    last = manifest.end - 1
    if there.start > manifest.end:
        raise NotFound(
            f"{log}: the archive ends at offset {manifest.end}, and retention has deleted all before {there.start}",
            hint="archive to another place, and more often than retention deletes",
            code="offset_gone",
            oldest=there.start,
        )
    diverged = there.durable < manifest.end
    if not diverged and last >= (there.local or there.start):  # else it would be fetched from the archive
        batches = hw.read_batches(manifest.topic, partition=manifest.partition, start=last, end=last + 1)
        ticks = [int(tick) for batch in batches for tick in batch.ticks()]
        diverged = bool(ticks) and ticks != [manifest.parts[-1].last_ticks]
    if diverged:
        raise Conflict(
            f"{log}: the archive has other events at offset {last}",
            hint="the log was restored, or changed, behind its archive; archive it to another place",
            code="archive_diverged",
        )
