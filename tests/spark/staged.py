"""What tests of publishing share: rows as a task hands them over, staged without Spark, and what a topic holds then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

import headwater
from headwater.bucket.directory_store import DirectoryStore
from headwater.bucket.object_store import ObjectStore
from headwater.disk.disk import Clock, Disk
from headwater.spark.writing import sink
from headwater.spark.writing.publishing import PublishedBatch
from headwater.spark.writing.sink import SinkSettings
from headwater.spark.writing.spreading import Layout
from headwater.spark.writing.staging import FOLDER, StagedWrite, StagingArea
from tests.wrapped import WrappedStore

if TYPE_CHECKING:
    from headwater.store import Store

T = TypeVar("T")
CHANGES = ("create", "swap", "put", "put_pieces", "delete")


class Dies(Exception):
    """The process is gone."""


class Steps:
    """Counts what changes something, and dies before or after one of them."""

    def __init__(self, dies_at: int = -1) -> None:
        self.dies_at = dies_at
        self.taken = 0

    def step(self) -> None:
        if self.taken == self.dies_at:
            raise Dies  # and whatever else this process would do does not happen either
        self.taken += 1

    def around(self, ask: Callable[[], T]) -> T:
        self.step()
        answer = ask()
        self.step()
        return answer


class DyingStore(WrappedStore):
    """A store at whose changes a process may die."""

    def __init__(self, store: ObjectStore, steps: Steps) -> None:
        super().__init__(store)
        self._steps = steps

    def call(self, method: str, key: str, ask: Callable[[], T]) -> T:  # noqa: ARG002
        return self._steps.around(ask) if method in CHANGES else ask()


def dying_log(hw: Store, steps: Steps) -> None:
    """Make appends and syncs of an opened log steps, too."""
    for name in ("append_many", "sync"):
        verb = getattr(hw.backend, name)
        setattr(hw.backend, name, lambda *args, verb=verb, **options: steps.around(lambda: verb(*args, **options)))


def staging_at(path: Path, steps: Steps | None = None, clock: Clock | None = None) -> StagingArea:
    clock = clock or Clock()
    store: ObjectStore = DirectoryStore(path / FOLDER, Disk(), clock)
    return StagingArea(DyingStore(store, steps) if steps is not None else store, "", clock)


def rows(numbers: Iterable[int]) -> pa.RecordBatch:
    """Events of which three quarters have the same key."""
    numbers = list(numbers)
    keys = [f"k{max(0, number % 8 - 5)}" for number in numbers]
    return pa.record_batch({"data": [str(number) for number in numbers], "key": keys})


def settings(address: str | Path, schema: pa.Schema, **options: Any) -> SinkSettings:
    options = {"topic": "orders", "partitions": None, "staging": None} | options
    return SinkSettings(address=str(address), layout=Layout.of(schema, options.pop("content", None)), **options)


def stage(address: str | Path, write: StagedWrite, *batches: pa.RecordBatch, **options: Any) -> list[PublishedBatch]:
    """As tasks do, one for each batch."""
    chosen = settings(address, batches[0].schema, **options)
    return [each for turn, batch in enumerate(batches) for each in sink.stage(chosen, write, iter([batch]), turn).sent]


@contextlib.contextmanager
def opened(address: str | Path) -> Iterator[Store]:
    with headwater.open(str(address)) as hw:
        yield hw


def numbers_of(hw: Store, topic: str = "orders") -> list[int]:
    return [int(event.data or b"") for event in hw.read(topic)]


def files(path: Path) -> list[str]:
    """The staged files that are left."""
    folder = path / FOLDER / "files"
    return sorted(each.name for each in folder.iterdir()) if folder.exists() else []


def manifests(path: Path) -> list[str]:
    return sorted(each.name for each in (path / FOLDER / "manifests").iterdir())
