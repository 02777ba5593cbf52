"""What hypothesis draws from: names, events, batches and indexes as the format allows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from headwater.event import CONTENTS, Content
from headwater.format import batch as batch_format
from headwater.format.batch import DATA, KEY, META, TYPE
from headwater.format.column import Column
from headwater.format.cursors import CursorsHeader, CursorSlot, MemberRecord
from headwater.format.index import Index
from headwater.format.segment import SegmentHeader
from headwater.format.settings import TopicSettings
from headwater.format.tail import TailSlot

NOW_TICKS = 139_000_000_000_000_000  # a time in 2023

unicode_text = st.text(st.characters(exclude_categories=["Cs"]))
topic_names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300).filter(
    lambda name: len(name.encode()) <= 1024
)
types = st.sampled_from(["", "placed", "paid", "päid", "a.b.c"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=20
)
few_types = st.sampled_from(["", "placed", "paid", "sent", "größer"])
keys = st.none() | st.binary(max_size=12)
few_keys = st.sampled_from([None, b"", b"a", b"b", b"o-17"])
data = st.binary(max_size=40)
metas = st.none() | st.dictionaries(unicode_text, unicode_text, min_size=1, max_size=3)
contents = st.sampled_from(CONTENTS)
ticks = st.integers(0, 2**60 - 1)
nodes = st.integers(0, 2**62 - 1)


@dataclass(frozen=True)
class Row:
    """One event before it is appended."""

    data: bytes
    type: str = ""
    key: bytes | None = None
    meta: dict[str, str] | None = None

    def raw_meta(self) -> bytes | None:
        return None if self.meta is None else msgspec.json.encode(self.meta)


rows = st.builds(Row, data, types, keys, metas)
few_rows = st.builds(Row, st.binary(max_size=8), few_types, few_keys)
row_lists = st.lists(rows, min_size=1, max_size=12)
few_row_lists = st.lists(few_rows, min_size=1, max_size=8)


@dataclass(frozen=True)
class Batch:
    """A batch to be encoded. `ticks` is None where they are consecutive."""

    base_offset: int
    base_ticks: int
    content: Content
    rows: list[Row]
    ticks: list[int] | None = None
    zstd: bool = False
    flags: int = field(default=0)

    def encode(self) -> bytes:
        columns = {
            TYPE: Column.of_repeated([row.type.encode() for row in self.rows]),
            KEY: Column.of_optional([row.key for row in self.rows]),
            DATA: Column.of([row.data for row in self.rows]),
            META: Column.of_optional([row.raw_meta() for row in self.rows]),
        }
        return batch_format.encode(
            self.base_offset,
            self.base_ticks,
            len(self.rows),
            self.content,
            columns,
            ticks=None if self.ticks is None else np.array(self.ticks, np.int64),
            zstd=self.zstd,
        )

    def meaning(self) -> list[tuple[Any, ...]]:
        """Offset, ticks, type, key, data and meta of each event."""
        ticks = self.ticks or range(self.base_ticks, self.base_ticks + len(self.rows))
        return [
            (self.base_offset + i, tick, row.type, row.key, row.data, row.raw_meta())
            for i, (tick, row) in enumerate(zip(ticks, self.rows, strict=True))
        ]


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    drawn = draw(row_lists)
    base_ticks = draw(st.integers(0, 2**59))
    gaps = draw(st.sampled_from([st.integers(1, 1000), st.sampled_from([1, 1, 1, 9])]))  # the latter give runs
    steps = draw(st.none() | st.lists(gaps, min_size=len(drawn) - 1, max_size=len(drawn) - 1))
    ticks = None if steps is None else np.cumsum([base_ticks, *steps]).tolist()
    zstd = draw(st.booleans())
    if zstd:  # long enough to be compressed
        drawn[0] = Row(drawn[0].data * 40 + b"x" * 600, drawn[0].type, drawn[0].key, drawn[0].meta)
    return Batch(draw(st.integers(0, 2**60)), base_ticks, draw(contents), drawn, ticks, zstd)


i64 = st.integers(0, 2**63 - 1)
u32 = st.integers(0, 2**32 - 1)
segment_headers = st.builds(SegmentHeader, u32, st.binary(min_size=16, max_size=16), i64, i64, i64, st.booleans())
slots = st.builds(
    TailSlot,
    st.integers(1, 2**64 - 1),
    st.binary(min_size=16, max_size=16),
    i64,
    i64,
    i64,
    i64,
    i64,
    i64,
    st.integers(0, 2**64 - 1),
    st.integers(0, 4),
)
ids = st.binary(min_size=16, max_size=16).filter(any)
cursors_headers = st.builds(
    CursorsHeader,
    st.binary(min_size=16, max_size=16),
    st.integers(1, 4096),
    st.binary(min_size=16, max_size=16),
)
members = st.builds(MemberRecord, ids, i64)
cursor_slots = st.builds(
    CursorSlot,
    st.integers(1, 2**64 - 1),
    i64,
    st.integers(0, 2**64 - 1),
    st.binary(min_size=16, max_size=16),
    st.binary(min_size=16, max_size=16),
    i64,
    i64,
    i64,
    u32,
)


@st.composite
def indexes(draw: st.DrawFn) -> Index:
    count = draw(st.integers(1, 20))
    numbers = [np.sort(np.array(draw(st.lists(i64, min_size=count, max_size=count)), np.int64)) for _ in range(3)]
    batches_of_type = st.lists(st.integers(0, count - 1), min_size=1, unique=True).map(
        lambda found: np.array(sorted(found), np.int32)
    )
    kept = draw(st.none() | st.dictionaries(st.binary(max_size=20), batches_of_type, max_size=6))
    offsets, tick_numbers, positions = numbers
    entries = st.integers(0, 2**32 - 1).map(lambda upper: upper << 32) | st.integers(0, 2**64 - 1)
    pages = st.integers(1, 2**40).map(lambda step: range(0, 3000 * step, step))
    drawn = draw(st.none() | st.lists(entries, max_size=30) | pages)
    keys = None if drawn is None else np.unique(np.array(drawn, np.uint64))
    return Index(draw(u32), draw(i64), draw(i64), draw(i64), offsets, tick_numbers, positions, kept, keys)


sizes = st.integers(0, 2**40)
topic_settings = st.builds(
    TopicSettings,
    segment_bytes=sizes,
    segment_age_ms=sizes,
    data_bytes_max=sizes,
    compression=st.sampled_from(["none", "zstd"]),
    retention_bytes=sizes,
    retention_segments=sizes,
    retention_age_ms=sizes,
    retention_consumers=st.booleans(),
    retention_bytes_hard=sizes,
    overflow=st.sampled_from(["delete", "refuse"]),
)
