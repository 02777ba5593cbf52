"""Batches to try the encoders of the wire on: made in memory, or read from a real log."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st

import headwater
from headwater.event import Content
from headwater.format import batch as batch_format
from headwater.format.events import EventBatch
from headwater.limits import Limits
from headwater.store import Store
from tests import strategies
from tests.strategies import NOW_TICKS, Batch, Row

LIMITS = Limits(blob_bytes_min=300, blob_bytes_in_memory=2000)
NODE = 0x2BCD_EF01_2345_6789


def made(
    batch: Batch, lo: int = 0, hi: int | None = None, rows: list[int] | None = None, topic: str = "t"
) -> EventBatch:
    """Some events of a batch, as a read would give them. The log is only asked what it is."""
    stored = batch.encode()
    log: Any = SimpleNamespace(topic=topic, partition=3, node=NODE, blob_bytes_in_memory=LIMITS.blob_bytes_in_memory)
    picked = None if rows is None else np.array(rows, np.int64)
    found = batch_format.decode(memoryview(stored), 0, len(stored))
    return EventBatch(log, found, lo, found.count if hi is None else hi, picked)


def of(rows: list[Row], content: Content = "bytes") -> EventBatch:
    """A whole batch of these rows."""
    return made(Batch(1000, NOW_TICKS, content, rows))


@st.composite
def event_batches(draw: st.DrawFn) -> EventBatch:
    """Whole batches, ranges of them, and picked events."""
    batch = draw(strategies.batches())
    count = len(batch.rows)
    lo = draw(st.integers(0, count - 1))
    hi = draw(st.integers(lo + 1, count))
    kind = draw(st.sampled_from(["whole", "range", "picked"]))
    if kind == "whole":
        return made(batch)
    if kind == "range":
        return made(batch, lo, hi)
    rows = draw(st.lists(st.integers(lo, hi - 1), min_size=1, unique=True).map(sorted))
    return made(batch, lo, hi, rows)


@contextmanager
def opened(limits: Limits = LIMITS) -> Iterator[Store]:
    """An empty log."""
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path,
        headwater.open(Path(path), limits=limits) as hw,
    ):
        assert isinstance(hw, Store)
        yield hw
