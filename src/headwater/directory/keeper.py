"""Retention over the topics of a log directory: after each roll, before one, and by command.

What a topic keeps is read from its settings each time, so that a change by any process counts from the next roll on.
Safe from any thread.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import msgspec

from headwater.directory import local_manifest, retention
from headwater.directory.catalog import DirectoryCatalog
from headwater.directory.failures import unavailable
from headwater.directory.local_log import LocalLog
from headwater.directory.local_manifest import holds
from headwater.directory.log_directory import LogDirectory
from headwater.directory.parts import LocalArchive
from headwater.directory.retention import SegmentFiles
from headwater.directory.tail import Tail
from headwater.errors import HeadwaterError
from headwater.format.history import HistoryManifest
from headwater.format.names import log_uuid
from headwater.format.settings import Retention, TopicRecord, TopicSettings
from headwater.format.tail import OPEN, TailSlot
from headwater.info import DeletedSegment
from headwater.log.failures import deleted
from headwater.log.retention_rules import Rules, Slowest, bound_of, no_consumers
from headwater.log.topic_rules import with_retention

warnings = logging.getLogger("headwater")


class Keeper:
    """Keeps the logs of one directory within the bounds of their topics."""

    def __init__(
        self,
        catalogue: DirectoryCatalog,
        slowest: Slowest = no_consumers,
        archive: LocalArchive | None = None,
        follows: Callable[[], bool] = lambda: False,
    ) -> None:
        """What is not in the `archive`, if the directory has one, is not deleted.

        `follows` tells that it is a replica, which keeps what its source keeps, whatever is said of its topics.
        """
        self.slowest = slowest
        self._follows = follows
        self._catalogue = catalogue
        self._archive = archive
        self._kept: dict[bytes, int] = {}  # of each log, the segment that had to stay when it was looked at last

    def rolled(self, place: LogDirectory) -> None:
        """Delete what a log that rolled need not keep; what cannot be deleted now is left for the next roll."""
        try:
            tail = Tail.open(place)
            slot = tail.newest() if tail is not None else None
            if slot is None or slot.boot_id != place.clock.boot_id():
                return  # another process must recover it first
            rules = self._rules(place)
            if rules.bounded:
                segments = retention.survey(place, slot)
                due = self._archived(place, retention.due(place, slot, segments, rules))
                retention.delete(place, due, wait=False)
            retention.sweep(place)
        except OSError as error:
            raise unavailable(place, "old segments cannot be deleted", error) from error

    def may_roll(self, place: LogDirectory, slot: TailSlot) -> None:
        """Raise Unavailable if the log has reached its hard bound, and its topic refuses what comes then."""
        full = None
        with contextlib.suppress(HeadwaterError, OSError):  # what cannot be read is no reason to refuse an append
            topic = self._catalogue.find(place.topic)
            if topic.settings.overflow == "refuse":
                rules = self._rules(place, topic)
                if self._archive is not None and self._archive.url() is not None:
                    # As far as the directory knows: nothing is asked over a network before an append.
                    known = local_manifest.read(place)
                    rules = msgspec.structs.replace(rules, archived=known.end if known is not None else 0)
                full = retention.full(place, slot, rules)
        if full is not None:
            raise full

    def retain(
        self,
        logs: list[LocalLog],
        *,
        changes: Retention,
        before: int | datetime | None,
        dry_run: bool,
    ) -> list[DeletedSegment]:
        """Change what the topic of these logs keeps, if there are changes, and delete what it need not keep now."""
        name = logs[0].place.topic
        bounds = [bound_of(log, before, len(logs)) for log in logs]
        topic = self._catalogue.find(name)
        if changes and dry_run:
            topic = msgspec.structs.replace(topic, settings=with_retention(topic.settings, changes))
        elif changes:
            topic = self._catalogue.change(name, changes)
        found: list[DeletedSegment] = []
        for log, (offset, ticks) in zip(logs, bounds, strict=True):
            rules = msgspec.structs.replace(self._rules(log.place, topic), before=offset, before_ticks=ticks)
            found += self._apply(log, rules, dry_run)
        return found

    def _apply(self, log: LocalLog, rules: Rules, dry_run: bool) -> list[DeletedSegment]:
        place, slot = log.place, log.state()
        segments = retention.survey(place, slot)
        due = retention.due(place, slot, segments, rules)
        if len(due) == len(segments) - 1 and slot.state == OPEN and retention.outlived(place, slot, rules):
            if dry_run:
                due.append(segments[-1])
            elif log.roll(tell=False):
                slot = log.state()
                due = retention.due(place, slot, retention.survey(place, slot), rules)
        due = self._archived(place, due)
        if dry_run:
            return [_deleted(place, segment) for segment in due]
        done = retention.delete(place, due, wait=True)
        retention.sweep(place)
        return done

    def _archived(self, place: LogDirectory, due: list[SegmentFiles]) -> list[SegmentFiles]:
        """Return those of the segments, up to the first that is not in the archive, which the store itself must say.

        All of them if the directory has no archive. Raises Unavailable if it is out of reach: then none may go.
        """
        if not due or self._archive is None or self._archive.url() is None:
            return due
        # The store is asked only if the directory knows of something: an archiver has left a copy of the manifest.
        known: HistoryManifest | None = local_manifest.read(place)
        if known is not None and holds(place, known, due[0].base, due[0].end):
            known = self._archive.covered(place, self._catalogue.find(place.topic))
        for number, segment in enumerate(due):
            if known is None or not holds(place, known, segment.base, segment.end):
                # An archiver may be a roll behind. If it is still the same one, nobody archives.
                if self._kept.get(place.uuid) == segment.base:
                    warnings.warning(
                        "%s: the segment at offset %d is not in the archive, and is kept", place, segment.base
                    )
                self._kept[place.uuid] = segment.base
                return due[:number]
        return due

    def _rules(self, place: LogDirectory, topic: TopicRecord | None = None) -> Rules:
        """Return what a log keeps; raises NotFound if its topic was deleted, also if another has its name now."""
        topic = topic or self._catalogue.find(place.topic)
        if log_uuid(UUID(topic.uuid), place.partition) != place.uuid:
            raise deleted(place)
        if self._follows():
            return Rules(TopicSettings())
        passed = self.slowest(topic, place.partition) if topic.settings.retention_consumers else None
        return Rules(topic.settings, passed)


def _deleted(place: LogDirectory, segment: SegmentFiles) -> DeletedSegment:
    return DeletedSegment(place.topic, place.partition, segment.base, segment.end, segment.bytes)
