"""What an archive and its note say: what is written is read again, and a damaged byte is found."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import Corrupt, Unsupported
from headwater.format import archive, settings
from headwater.format.archive import ArchivedFile, ArchivedSegment, ArchiveNote, file_key
from headwater.format.names import file_of, log_uuid

TOPIC = UUID("6e8bc430-9c3a-41d9-9669-0800200c9a66")
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)


@st.composite
def notes(draw: st.DrawFn) -> ArchiveNote:
    """What can be archived of a log: segments that follow each other."""
    base = draw(st.integers(0, 1 << 40))
    ticks = draw(st.integers(0, 1 << 60))
    segments = []
    for count, pause, last in draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9)))):
        names = [file_of(base, "log")]
        names += draw(st.sampled_from([[], [file_of(base, "index")]]))
        names += [archive.blob_name(base, base + count - 1)] if draw(st.booleans()) else []
        names += [file_of(base + count, "producers")] if draw(st.booleans()) else []
        files = [ArchivedFile(name, draw(st.integers(0, 1 << 40)), draw(digests)) for name in names]
        file_id = draw(st.integers(0, (1 << 32) - 1))
        segments.append(ArchivedSegment(base, base + count, ticks, ticks + pause, ticks + pause + last, file_id, files))
        base, ticks = base + count, ticks + pause + last
    return ArchiveNote(topic=draw(st.text(min_size=1, max_size=8)), uuid=str(TOPIC), partition=3, segments=segments)


@given(notes())
def test_a_note_is_read_as_it_was_written_and_is_one_that_can_be(note: ArchiveNote) -> None:
    again = settings.decode(settings.encode(note), ArchiveNote)
    assert again == note
    archive.check(again, log_uuid(TOPIC, 3), "here")
    for segment in note.segments:
        assert note.at(segment.base) == segment
        assert note.at(segment.end - 1) == (segment if segment.end - segment.base == 1 else None)
    keys = [file_key(note, file) for segment in note.segments for file in segment.files]
    assert len(set(keys)) == len(keys)


@given(notes(), st.data())
def test_a_damaged_byte_of_a_note_is_found(note: ArchiveNote, data: st.DataObject) -> None:
    stored = bytearray(settings.encode(note))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((Corrupt, Unsupported)):
        settings.decode(bytes(stored), ArchiveNote)


@given(notes().filter(lambda note: len(note.segments) > 2), st.data())
def test_a_gap_another_log_and_ticks_that_fall_are_refused(note: ArchiveNote, data: st.DataObject) -> None:
    with pytest.raises(Corrupt):
        archive.check(note, log_uuid(TOPIC, 4), "here")
    del note.segments[data.draw(st.integers(1, len(note.segments) - 2))]
    with pytest.raises(Corrupt):
        archive.check(note, log_uuid(TOPIC, 3), "here")
