"""`TransferLog`: what importing and exporting need of a store (docs/TRANSFER.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from headwater.format.events import EventBatch
from headwater.info import TopicInfo


class TransferLog(Protocol):
    """The verbs that a transfer needs."""

    def describe(self, topic: str) -> TopicInfo: ...
    def sync(self, topic: str) -> None: ...
    @property
    def read_batches(self) -> Callable[..., Iterator[EventBatch]]: ...
    @property
    def append(self) -> Callable[..., object]: ...
    @property
    def backend(self) -> Any: ...
    @property
    def append_many(self) -> Callable[..., object]: ...
    @property
    def append_arrow(self) -> Callable[..., object]: ...
