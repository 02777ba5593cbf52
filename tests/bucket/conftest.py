"""Buckets to try things on: one in a directory, whose store can be made to stop, to lose answers, and to count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.bucket.opening import open_store
from headwater.disk.disk import Clock
from headwater.limits import DEFAULTS, Limits
from headwater.opening import store_of
from headwater.store import Store
from tests.bucket.chaos import Chaos, chaotic
from tests.bucket.hooked import HookedStore
from tests.log.unsynced import UnsyncedDisk
from tests.opened import bucket_of
from tests.servers import Seaweed

Opener = Callable[..., Store]


def hooks_of(bucket: Store) -> HookedStore:
    """The store of a bucket that `opener` opened."""
    store = bucket_of(bucket)._store
    assert isinstance(store, HookedStore)
    return store


@pytest.fixture
def chaos_proxy(seaweed: Seaweed) -> Iterator[Chaos]:
    """Run a proxy in front of SeaweedFS that can delay, lose and count requests."""
    with chaotic(seaweed.endpoint) as proxy:
        yield proxy


@pytest.fixture
def bucket_url(tmp_path: Path) -> str:
    return f"objects://{tmp_path}/bucket"


@pytest.fixture
def opener(bucket_url: str) -> Iterator[Opener]:
    """Opens the same bucket again and again, each time with a store of its own; all are closed at the end."""
    opened: list[Store] = []

    def open(*, limits: Limits = DEFAULTS, clock: Clock | None = None, **options: Any) -> Store:
        disk, clock = UnsyncedDisk(), clock or Clock()
        store = HookedStore(open_store(bucket_url, clock=clock, disk=disk, limits=limits))
        opened.append(store_of(store, None, limits=limits, disk=disk, clock=clock, **options))
        return opened[-1]

    yield open
    for bucket in opened:
        hooks_of(bucket).calm()
        bucket.close()


@pytest.fixture
def bucket(opener: Opener) -> Store:
    return opener()
