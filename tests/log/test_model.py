"""Two engines on one directory against a plain list: whatever is done, in any order, both tell what the list tells."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headwater.errors import NotFound
from headwater.event import Event
from headwater.limits import Limits
from headwater.store import Store
from tests import strategies
from tests.log.unsynced import open_unsynced
from tests.strategies import Row

LIMITS = Limits(blob_bytes_min=300, pack_bytes=2000, pack_events=20)
engines = st.integers(0, 1)
durabilities = st.sampled_from(["fsync", "os"])
patterns = st.none() | st.sampled_from(["", "p.*", "placed|sent", "größer"])


def row_of(event: Event) -> Row:
    assert event.data is not None
    return Row(event.data, event.type, event.key, event.meta or None)


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.engines = [self.open(), self.open()]
        self.model: list[Row] | None = None  # None: there is no topic
        self.ids: list[Any] = []

    def open(self) -> Store:
        return open_unsynced(self.path / "data", limits=LIMITS)

    def teardown(self) -> None:
        if self.model is not None:
            assert not self.engines[0].check().damaged
        for engine in self.engines:
            engine.close()
        shutil.rmtree(self.path)

    def appended(self, refs: Any, rows: list[Row]) -> None:
        if self.model is None:
            self.model, self.ids = [], []
        assert [ref.offset for ref in refs] == list(range(len(self.model), len(self.model) + len(rows)))
        self.model += rows
        self.ids += [ref.id for ref in refs]

    @initialize(compression=st.sampled_from(["none", "zstd"]))
    def create(self, compression: Any) -> None:
        assert self.engines[0].create("t", segment_bytes=4096, compression=compression)
        self.model = []

    @rule(engine=engines, row=strategies.rows, durability=durabilities)
    def append(self, engine: int, row: Row, durability: Any) -> None:
        ref = self.engines[engine].append(
            "t", row.data, type=row.type, key=row.key, meta=row.meta, durability=durability
        )
        self.appended([ref], [row])

    @rule(engine=engines, row=strategies.few_rows, size=st.integers(290, 700), stream=st.booleans())
    def append_large(self, engine: int, row: Row, size: int, stream: bool) -> None:
        data = (row.data + b".") * (size // (len(row.data) + 1))
        given = iter([data[:100], data[100:]]) if stream else data
        ref = self.engines[engine].append("t", given, type=row.type, key=row.key)
        self.appended([ref], [Row(data, row.type, row.key)])

    @rule(engine=engines, rows=strategies.few_row_lists)
    def append_many(self, engine: int, rows: list[Row]) -> None:
        refs = self.engines[engine].append_many(
            "t", [row.data for row in rows], types=[row.type for row in rows], keys=[row.key for row in rows]
        )
        self.appended(refs, rows)

    @rule(engine=engines, rows=strategies.few_row_lists)
    def append_arrow(self, engine: int, rows: list[Row]) -> None:
        table = pa.table(
            {
                "data": pa.array([row.data for row in rows], pa.binary()),
                "type": pa.array([row.type for row in rows], pa.string()),
                "key": pa.array([row.key for row in rows], pa.binary()),
            }
        )
        self.appended(self.engines[engine].append_arrow("t", table), rows)

    @precondition(lambda self: self.model is not None)
    @rule(engine=engines)
    def seal(self, engine: int) -> None:
        self.engines[engine].seal("t")

    @precondition(lambda self: self.model is not None)
    @rule(engine=engines)
    def roll(self, engine: int) -> None:
        self.engines[engine]._topics.live("t").logs[0].roll(tell=False)

    @rule(engine=engines)
    def reopen(self, engine: int) -> None:
        self.engines[engine].close()
        self.engines[engine] = self.open()

    @precondition(lambda self: self.model is not None)
    @rule(engine=engines)
    def delete(self, engine: int) -> None:
        self.engines[engine].delete("t")
        self.model, self.ids = None, []

    @precondition(lambda self: self.model is None)
    @rule(engine=engines)
    def create_again(self, engine: int) -> None:
        assert self.engines[engine].create("t", segment_bytes=4096)
        self.model = []

    @precondition(lambda self: self.model is None)
    @rule(engine=engines)
    def read_nothing(self, engine: int) -> None:
        for call in (self.engines[engine].read, self.engines[engine].follow, self.engines[engine].describe):
            with pytest.raises(NotFound):
                call("t")

    @precondition(lambda self: self.model is not None)
    @rule(engine=engines, pattern=patterns, key=strategies.few_keys, reverse=st.booleans(), data=st.data())
    def read(self, engine: int, pattern: str | None, key: bytes | None, reverse: bool, data: st.DataObject) -> None:
        assert self.model is not None
        lo, hi = (data.draw(st.integers(0, len(self.model) + 1)) for _ in range(2))
        start: Any = self.ids[lo] if lo < len(self.ids) and data.draw(st.booleans()) else lo
        wanted = [
            (offset, row)
            for offset, row in list(enumerate(self.model))[lo:hi]
            if (pattern is None or re.fullmatch(pattern, row.type)) and (key is None or row.key == key)
        ]
        options: dict[str, Any] = {"start": start, "end": hi, "type": pattern, "key": key}
        found = [(event.offset, row_of(event)) for event in self.engines[engine].read("t", **options, reverse=reverse)]
        assert found == (wanted[::-1] if reverse else wanted)
        table = self.engines[engine].read_arrow("t", **options, columns=["offset", "data_bytes"])
        assert table.to_pydict() == {
            "offset": [offset for offset, _ in wanted],
            "data_bytes": [len(row.data) for _, row in wanted],
        }

    @precondition(lambda self: self.model is not None)
    @rule(engine=engines, pattern=patterns, data=st.data())
    def follow(self, engine: int, pattern: str | None, data: st.DataObject) -> None:
        assert self.model is not None
        lo = data.draw(st.integers(0, len(self.model)))
        found = [row_of(event) for event in self.engines[engine].follow("t", start=lo, type=pattern, timeout=0)]
        assert found == [row for row in self.model[lo:] if pattern is None or re.fullmatch(pattern, row.type)]

    @invariant()
    def both_know_the_end(self) -> None:
        for engine in self.engines:
            assert engine.topics() == ([] if self.model is None else ["t"])
            if self.model is not None:
                assert engine.describe("t").events == len(self.model)


LogMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestLogMachine = LogMachine.TestCase
