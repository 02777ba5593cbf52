"""Helpers for tests of consumers: topics of numbers, and what is stored of a consumer."""

from __future__ import annotations

from typing import Any

from headwater.protocols import Consumer
from headwater.store import Store

PATIENCE_S = 20.0


def fill(store: Store, count: int, topic: str = "t", first: int = 0, **options: Any) -> None:
    store.append_many(topic, [b"%d" % number for number in range(first, first + count)], **options)


def numbers(events: Any) -> list[int]:
    return [int(event.data) for event in events]


def cursor(store: Store, name: str = "c", topic: str = "t", partition: int = 0) -> int:
    """The cursor that is stored."""
    [found] = [info for info in store.consumers(topic) if (info.name, info.partition) == (name, partition)]
    return found.cursor


def owners(store: Store, topic: str = "t") -> list[str | None]:
    return [info.owner for info in store.consumers(topic)]


def now(store: Store, **options: Any) -> Consumer:
    """A member that ends when there is nothing more."""
    return store.consumer("c", "t", timeout=0, **options)
