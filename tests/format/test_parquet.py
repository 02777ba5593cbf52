"""Names and manifests of Parquet archives, and ids that are made many at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headwater.errors import Corrupt
from headwater.event import id_of
from headwater.format import arrow, parquet
from headwater.format.archive import ArchivedFile
from headwater.format.parquet import ParquetBlob, ParquetFile, ParquetManifest
from headwater.format.settings import TopicRecord
from tests.strategies import topic_names

TOPIC = TopicRecord(name="t", uuid="12345678-1234-5678-1234-567812345678", partitions=2)


def part(start: int, end: int, ticks: int, **changes: Any) -> ParquetFile:
    file = ArchivedFile(parquet.part_name(1, start, end), 7, "ab" * 32)
    return replace(ParquetFile(start, end, end - start, ticks, ticks + end - start, file), **changes)


def manifest(*parts: ParquetFile) -> ParquetManifest:
    return replace(parquet.nothing(TOPIC, 1), parts=[*parts])


def test_a_manifest_that_can_be_is_taken() -> None:
    parquet.check(manifest(), TOPIC, 1, "here")
    lost = part(9, 12, 0, rows=0, first_ticks=0, last_ticks=0)
    blob = ParquetBlob(13, ArchivedFile(parquet.blob_name(1, 13), 9, "cd" * 32))
    sound = manifest(part(4, 9, 100), lost, part(12, 14, 200, blobs=[blob]))
    parquet.check(sound, TOPIC, 1, "here")
    assert (sound.start, sound.end, sound.last_ticks) == (4, 14, 202)
    assert (manifest().start, manifest().end, manifest(lost).last_ticks) == (-1, -1, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        manifest(part(0, 5, 1), part(6, 7, 90)),
        manifest(part(0, 5, 1), part(4, 7, 90)),
        manifest(part(0, 5, 50), part(5, 7, 20)),
        manifest(part(5, 5, 50)),
        manifest(part(-1, 5, 50)),
        manifest(part(0, 5, 50, rows=6)),
        manifest(part(0, 5, 50, file=ArchivedFile(parquet.part_name(0, 0, 5), 7, "ab" * 32))),
        manifest(part(0, 5, 50, file=ArchivedFile("../x.parquet", 7, "ab" * 32))),
        manifest(part(0, 5, 50, file=ArchivedFile(parquet.part_name(1, 0, 5), 7, "../" * 21 + "x"))),
        manifest(part(0, 5, 50, blobs=[ParquetBlob(3, ArchivedFile("3.blob", 7, "ab" * 32))])),
        replace(manifest(), partition=0),
        replace(manifest(), uuid=TOPIC.uuid[::-1]),
        replace(manifest(), topic="u"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(wrong: ParquetManifest) -> None:
    with pytest.raises(Corrupt):
        parquet.check(wrong, TOPIC, 1, "here")


@given(name=topic_names, partition=st.integers(0, 4095), start=st.integers(0, 2**62), more=st.integers(1, 2**40))
def test_keys_tell_where_a_file_belongs(name: str, partition: int, start: int, more: int) -> None:
    for named in (parquet.part_name(partition, start, start + more), parquet.blob_name(partition, start)):
        key = parquet.file_key(name, ArchivedFile(named, 1, "0123456789abcdef" * 4))
        assert parquet.place_in(key) == (partition, start)
        folder = parquet.folder_of(name)
        assert not folder.startswith(("_", "."))  # which readers of tables pass over
        assert key.startswith((f"{folder}/", f"{parquet.RECORDS}/{folder}/"))


@pytest.mark.parametrize("key", ["t/1-2.parquet", "t/x-2-3-4.parquet", "_headwater/t/0.json", "t/a.parquet", "t/1-2-3"])
def test_what_is_no_file_of_ours_has_no_place(key: str) -> None:
    assert parquet.place_in(key) is None


@given(ticks=st.lists(st.integers(0, 2**60 - 1), max_size=50), node=st.integers(0, 2**62 - 1))
def test_ids_made_together_are_those_made_one_by_one(ticks: list[int], node: int) -> None:
    found = arrow.ids(np.array(ticks, np.int64), node).to_pylist()
    assert found == [str(id_of(tick, node)) for tick in ticks]
