"""Whether an append may go in: the version that it expects of its key, and who its producer is.

For the process that holds the log's lock, so that nothing comes between the look and the append.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.directory.log_directory import LogDirectory
from headwater.directory.producer_memory import ProducerMemory
from headwater.errors import Conflict, HeadwaterError
from headwater.format.batch import KEY
from headwater.format.column import Column
from headwater.format.given import NO_VERSION
from headwater.format.producers import ProducerAnswer
from headwater.format.tail import TailSlot
from headwater.log.rows import Rows

VERSIONS_MAX = 65_536  # keys whose last offset is kept in memory, for entities that are appended to again and again

VersionOf = Callable[[bytes, TailSlot], int | None]


class Admission:
    """What one writer knows of keys and producers."""

    def __init__(self, place: LogDirectory, version_of: VersionOf) -> None:
        self.producers = ProducerMemory(place)
        self._place = place
        self._version_of = version_of
        self.versions: dict[bytes, int | None] = {}  # unless it is empty, `committed` must follow every commit
        self._known_at = (-1, -1)  # the generation and offset as of which `versions` is right

    def sift(self, group: list[Rows], slot: TailSlot) -> tuple[list[Rows], list[Rows]]:
        """Return those that may be committed now, and, behind them, those that depend on them.

        The others were answered already, or are refused: their `error` says why.
        """
        admitted: list[Rows] = []
        producers: set[str] = set()  # of those admitted
        keys: GroupKeys | None = None
        for number, rows in enumerate(group):
            if rows.guarded:
                producer = rows.producer
                if producer is not None and producer.id in producers:
                    return admitted, group[number:]
                if admitted and rows.expected is not None:
                    keys = keys or GroupKeys(admitted)
                    if keys.has(rows.key):
                        return admitted, group[number:]
                try:
                    if self.answered(rows, slot):
                        continue
                except HeadwaterError as error:
                    rows.error = error
                    continue
                if producer is not None:
                    producers.add(producer.id)
            admitted.append(rows)
        return admitted, []

    def answered(self, rows: Rows, slot: TailSlot) -> bool:
        """Return whether the rows are a retry, which then has its answer.

        Raises Conflict or Fenced if they may not go in.
        """
        if self.recalled(rows, slot):
            return True
        if rows.expected is not None:
            assert rows.key is not None
            actual = self._version(rows.key, slot)
            if actual != (None if rows.expected == NO_VERSION else rows.expected):
                raise self._conflict(rows, actual)
        return False

    def recalled(self, rows: Rows, slot: TailSlot) -> bool:
        """Return whether the rows are a retry, whatever version they expect.

        Raises Conflict or Fenced for an old request.
        """
        answer = self.producers.answer(rows.producer, slot) if rows.producer is not None else None
        if answer is not None:
            _answer(rows, answer)
        return answer is not None

    def committed(self, group: list[Rows], slot: TailSlot) -> None:
        """Follow what this writer has just committed, after which `slot` is the state of the log."""
        stamped = False
        followed = self._known_at == (slot.generation, group[0].offset)  # no other process came in between
        for rows in group:
            if rows.producer is not None:
                self.producers.note(rows.producer, rows.offset, rows.ticks, rows.count)
                stamped = True
            if rows.columns is not None and rows.expected is None:
                followed = False  # it may hold any keys
            elif rows.key is not None:
                self.versions[rows.key] = rows.offset + rows.count - 1
        if stamped:  # else what others brought before this commit was not read
            self.producers.read_to(slot)
        if followed and len(self.versions) <= VERSIONS_MAX:
            self._known_at = slot.generation, slot.visible_offset
        else:
            self.versions.clear()

    def _version(self, key: bytes, slot: TailSlot) -> int | None:
        now = slot.generation, slot.visible_offset
        if now != self._known_at or len(self.versions) >= VERSIONS_MAX:
            self.versions.clear()  # others have appended
            self._known_at = now
        version = self.versions.get(key, -1)
        if version is not None and version < slot.segment:  # not known; or retention may have deleted it since
            version = self.versions[key] = self._version_of(key, slot)
        return version

    def _conflict(self, rows: Rows, actual: int | None) -> Conflict:
        wanted = "no event" if rows.expected == NO_VERSION else f"version {rows.expected}"
        found = "has no events" if actual is None else f"is at version {actual}"
        return Conflict(
            f"{self._place}: key {rows.key!r} {found}; expected {wanted}",
            hint="read the key's events again, then decide",
            code="version_conflict",
            version=actual,
            expected="none" if rows.expected == NO_VERSION else rows.expected,
        )


class GroupKeys:
    """The keys of a list of rows that grows, read as they are needed: few groups have rows that expect a version."""

    __slots__ = ("_columns", "_group", "_keys", "_read")

    def __init__(self, group: list[Rows]) -> None:
        self._group = group
        self._read = 0  # so many of the group are in the two below
        self._keys: set[bytes | None] = set()
        self._columns: list[Column] = []

    def has(self, key: bytes | None) -> bool:
        """Return whether one of the rows has an event with this key."""
        for rows in self._group[self._read :]:
            column = None if rows.columns is None else rows.columns.get(KEY)
            if column is None:
                self._keys.add(rows.key)
            else:
                self._columns.append(column)
        self._read = len(self._group)
        return key in self._keys or any(column.equals(key or b"").any() for column in self._columns)


def _answer(rows: Rows, answer: ProducerAnswer) -> None:
    if answer.count != rows.count:
        assert rows.producer is not None
        raise Conflict(
            f"seq {answer.seq} of producer {rows.producer.id!r} was used for a request of {answer.count} events, "
            f"but this request has {rows.count}",
            hint="use a new seq for each request",
            code="seq_reused",
        )
    rows.offset, rows.ticks, rows.answered = answer.offset, answer.ticks, True
