"""Topics with a bit of everything in them, as batches: what the encoders of the wire are tried on."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import headwater
from headwater.engine.batches import EventBatch
from headwater.engine.engine import Engine
from headwater.event import Content
from headwater.limits import Limits
from tests.strategies import Row

LIMITS = Limits(blob_bytes_min=300, blob_bytes_in_memory=2000)


@contextmanager
def opened(limits: Limits = LIMITS) -> Iterator[Engine]:
    """An empty log."""
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as path,
        headwater.open(path, limits=limits) as hw,
    ):
        yield hw


def append(hw: Engine, topic: str, rows: list[Row], content: Content = "bytes", partition: int | None = None) -> None:
    """Append rows together, as one batch."""
    hw.append_many(
        topic,
        [row.data for row in rows],
        types=[row.type for row in rows],
        keys=[row.key for row in rows],
        metas=[row.meta for row in rows],
        content=content,
        durability="os",
        partition=partition,
    )


def batches(hw: Engine, topic: str, **wanted: object) -> list[EventBatch]:
    """The batches of a topic."""
    return list(hw.read_batches(topic, **wanted))  # type: ignore[arg-type]  # filters as they are
