"""What a log remembers of its producers, so that a retry gets the first answer (docs/FORMAT.md, "Producers").

The truth is in the batches of the active segment and in the snapshot that was made when it was begun. For the
thread that holds the log's lock.
"""

from __future__ import annotations

from headwater.directory.log_directory import LogDirectory
from headwater.directory.segment import SegmentFile
from headwater.errors import Corrupt
from headwater.format import producers as format
from headwater.format.batch import corrupt
from headwater.format.producers import Producer, ProducerAnswer, ProducerState, note, read_stamp, recall
from headwater.format.segment import HEADER_BYTES
from headwater.format.tail import TailSlot

TICKS_PER_MS = 10_000
GAPS = 7  # so many times must pass without any request before a producer is forgotten


class ProducerMemory:
    """The producers of one log, as far as this process has read it."""

    def __init__(self, place: LogDirectory) -> None:
        self._place = place
        self._known: dict[str, ProducerState] = {}  # in the order of their last requests, oldest first
        self._segment = -1
        self._generation = -1
        self._position = HEADER_BYTES  # up to where the active segment is read

    def answer(self, producer: Producer, slot: TailSlot) -> ProducerAnswer | None:
        """Return the answer that this request got before; None if it is new.

        Raises Fenced for an old epoch, and Conflict for an old request whose answer is forgotten.
        """
        self._absorb(slot)
        return recall(self._known, producer)

    def note(self, producer: Producer, offset: int, ticks: int, count: int) -> None:
        """Remember a request that was just committed."""
        generation, self._generation = self._generation, -1  # if this is interrupted, all is read again
        note(self._known, producer, ProducerAnswer(producer.seq, offset, ticks, count), self._place.limits)
        self._generation = generation

    def read_to(self, slot: TailSlot) -> None:
        """All up to a slot was noted: what others had brought, by `answer`, and what this process added to it."""
        if slot.segment == self._segment and slot.generation == self._generation:
            self._position = max(self._position, slot.producers_position)

    def snapshot(self, slot: TailSlot, base: int) -> bytes | None:
        """Return what to keep beside a new segment that begins at `base`.

        None if there are no producers to remember.
        """
        self._absorb(slot)
        for id in self._silent(self._known):
            del self._known[id]
        return format.encode(self._place.uuid, base, self._known) if self._known else None

    def known(self, slot: TailSlot) -> dict[str, ProducerState]:
        """Return all that is remembered; the caller may keep it."""
        self._absorb(slot)
        return {id: ProducerState(known.epoch, list(known.answers)) for id, known in self._known.items()}

    def merged(self, others: dict[str, ProducerState], slot: TailSlot) -> dict[str, ProducerState] | None:
        """Return what is remembered here and in another log that has the same events.

        None if that is no more than here.
        """
        merged = self.known(slot)
        silent = self._silent(others).difference(merged)
        for id, other in others.items():
            if id in silent:
                continue  # the next snapshot would leave it out
            mine = merged.setdefault(id, ProducerState(0, []))
            answers = {answer.offset: answer for answer in (*other.answers, *mine.answers)}
            mine.epoch = max(mine.epoch, other.epoch)
            mine.answers = [answers[offset] for offset in sorted(answers)][-self._place.limits.producer_answers_max :]
        if merged == self._known:
            return None
        order = sorted(merged, key=lambda name: merged[name].answers[-1].offset)
        return {id: merged[id] for id in order[-self._place.limits.producers_max :]}

    def learn(self, known: dict[str, ProducerState]) -> None:
        """Take this for what is remembered, up to where the log was read."""
        self._known = known

    def _silent(self, known: dict[str, ProducerState]) -> set[str]:
        """Return the producers that have been silent for too long, and are forgotten.

        A clock may step. So time in which none of them appended counts for a `GAPS`-th of that at most: a step is one
        such time, however long it looks.
        """
        age_max = self._place.limits.producer_age_ms * TICKS_PER_MS
        age, before = 0, self._place.clock.ticks()
        silent = set()
        for id in sorted(known, key=lambda each: known[each].answers[-1].ticks, reverse=True):
            ticks = known[id].answers[-1].ticks
            age += min(max(0, before - ticks), age_max // GAPS)
            before = ticks
            if age > age_max:
                silent.add(id)
        return silent

    def rolled(self, slot: TailSlot) -> None:
        """A new segment was begun with this process's snapshot."""
        self._segment, self._generation, self._position = slot.segment, slot.generation, HEADER_BYTES

    def _absorb(self, slot: TailSlot) -> None:
        """Read what others have appended since this process last looked."""
        behind = slot.segment != self._segment or slot.generation != self._generation
        if not behind and self._position >= slot.producers_position:
            return
        segment = SegmentFile(self._place, slot.segment)
        self._generation = -1  # if this is interrupted, all is read again
        if behind:
            self._known = read_snapshot(self._place, slot.segment) if segment.header.producers else {}
            self._segment, self._position = slot.segment, HEADER_BYTES
        try:
            if self._position < slot.producers_position:
                window = segment.window(self._position, slot.producers_position)
                while self._position < slot.producers_position:
                    batch = window.batch(self._position)
                    stamp = batch.producer
                    if stamp is not None:
                        self.note(read_stamp(stamp), batch.base_offset, batch.base_ticks, batch.count)
                    self._position = batch.end_position
        finally:
            segment.close()
        self._generation = slot.generation


def read_snapshot(place: LogDirectory, base: int) -> dict[str, ProducerState]:
    """Return the producers as of the first offset of a segment; raises Corrupt if that is not to be had."""
    path = place.producers(base)
    try:
        return format.decode(place.disk.read_file(path), place.uuid, base)
    except FileNotFoundError:
        raise corrupt("the snapshot of producers is missing", str(path), 0, 0) from None
    except Corrupt as error:
        reason = error.facts.get("reason") or error.message
        raise corrupt(reason, str(path), error.position, error.size) from None
