"""Names and manifests of archives, and ids that are made many at once."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headwater.errors import Corrupt, Unsupported
from headwater.event import id_of
from headwater.format import arrow, settings
from headwater.format import history as format
from headwater.format.history import ArchivedBlob, ArchivedFile, HistoryFile, HistoryManifest, LocalManifest
from headwater.format.names import log_uuid
from headwater.format.settings import TopicRecord
from tests.strategies import topic_names

TOPIC = TopicRecord(name="t", uuid="12345678-1234-5678-1234-567812345678", partitions=2)
LOG = log_uuid(UUID(TOPIC.uuid), 1)


def named(start: int, end: int, suffix: str = "parquet", partition: int = 1) -> ArchivedFile:
    return ArchivedFile(format.file_name(partition, start, end, suffix), 7, "ab" * 32)


def part(start: int, end: int, ticks: int, **changes: Any) -> HistoryFile:
    bounds = start, end, end - start, ticks - 1, ticks, ticks + end - start, ticks + end - start, 100
    return replace(HistoryFile(*bounds, named(start, end), named(start, end, "index")), **changes)


def manifest(*parts: HistoryFile) -> HistoryManifest:
    return replace(format.nothing(TOPIC, 1), parts=[*parts])


def test_a_manifest_that_can_be_is_taken() -> None:
    format.check(manifest(), LOG, "here")
    lost = part(9, 12, 110, rows=0, first_ticks=0, last_ticks=0, lost=[(9, 12)])
    blob = ArchivedBlob(13, (5, 5, 5), named(13, 14, "blob"))
    last = part(12, 14, 200, blobs=[blob], producers=named(12, 14, "producers"))
    sound = manifest(part(4, 9, 100), lost, last)
    format.check(sound, LOG, "here")
    assert (sound.start, sound.end, sound.end_ticks) == (4, 14, 202)
    assert (manifest().start, manifest().end, manifest().end_ticks) == (-1, -1, 0)
    assert (sound.at(9), sound.at(10), manifest().at(0)) == (lost, None, None)


def test_a_manifest_has_a_segment_if_files_begin_and_end_with_it() -> None:
    found = manifest(part(0, 5, 1), part(5, 9, 10), part(9, 12, 20))
    assert found.has(0, 5, 0, 6)
    assert found.has(5, 12, 9, 23)
    for other in ((0, 6, 0, 6), (1, 5, 0, 6), (0, 5, 1, 6), (0, 5, 0, 7), (9, 13, 19, 23), (12, 13, 23, 24)):
        assert not found.has(*other)


@pytest.mark.parametrize(
    "wrong",
    [
        manifest(part(0, 5, 1), part(6, 7, 90)),
        manifest(part(0, 5, 1), part(4, 7, 90)),
        manifest(part(0, 5, 50), part(5, 7, 20)),
        manifest(part(5, 5, 50)),
        manifest(part(-1, 5, 50)),
        manifest(part(0, 5, 50, rows=6)),
        manifest(part(0, 5, 50, lost=[(0, 1)])),
        manifest(part(0, 5, 50, file=named(0, 5, partition=0))),
        manifest(part(0, 5, 50, index=named(0, 4, "index"))),
        manifest(part(0, 5, 50, producers=named(0, 5, "index"))),
        manifest(part(0, 5, 50, file=ArchivedFile("../x.parquet", 7, "ab" * 32))),
        manifest(part(0, 5, 50, file=replace(named(0, 5), sha256="../" * 21 + "x"))),
        manifest(part(0, 5, 50, blobs=[ArchivedBlob(3, (5, 5, 5), ArchivedFile("3.blob", 7, "ab" * 32))])),
        manifest(part(0, 5, 50, blobs=[ArchivedBlob(7, (5, 5, 5), named(7, 8, "blob"))])),
        replace(manifest(), partition=0),
        replace(manifest(), uuid=TOPIC.uuid[::-1]),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(wrong: HistoryManifest) -> None:
    with pytest.raises(Corrupt):
        format.check(wrong, LOG, "here")


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_damaged_byte_of_the_local_manifest_is_found(at: int, bit: int) -> None:
    known = LocalManifest(topic="t", uuid=TOPIC.uuid, partition=1, parts=[part(0, 5, 1), part(5, 9, 10)])
    stored = bytearray(settings.encode(known))
    assert settings.decode(bytes(stored), LocalManifest) == known
    stored[at % len(stored)] ^= 1 << bit
    with pytest.raises((Corrupt, Unsupported)):
        settings.decode(bytes(stored), LocalManifest)


@given(name=topic_names, partition=st.integers(0, 4095), start=st.integers(0, 2**62), more=st.integers(1, 2**40))
def test_keys_tell_where_a_file_belongs(name: str, partition: int, start: int, more: int) -> None:
    log = format.nothing(replace(TOPIC, name=name), partition)
    names = [format.file_name(partition, start, start + more, suffix) for suffix in format.SUFFIXES]
    for each in (*names, format.blob_name(partition, start)):
        key = format.file_key(log, ArchivedFile(each, 1, "0123456789abcdef" * 4))
        assert format.place_in(key) == (partition, start)
        folder = format.folder_of(name)
        assert not folder.startswith(("_", "."))  # which readers of tables pass over
        assert key.startswith((f"{folder}/{TOPIC.uuid}/", f"{format.RECORDS}/{folder}/{TOPIC.uuid}/"))


@pytest.mark.parametrize("key", ["t/1-2.parquet", "t/x-2-3-4.parquet", "_headwater/t/0.json", "t/a.parquet", "t/1-2-3"])
def test_what_is_no_file_of_ours_has_no_place(key: str) -> None:
    assert format.place_in(key) is None


@given(ticks=st.lists(st.integers(0, 2**60 - 1), max_size=50), node=st.integers(0, 2**62 - 1))
def test_ids_made_together_are_those_made_one_by_one(ticks: list[int], node: int) -> None:
    found = arrow.ids(np.array(ticks, np.int64), node).to_pylist()
    assert found == [str(id_of(tick, node)) for tick in ticks]
