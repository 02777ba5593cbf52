"""The log in a bucket passes the suite of all logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.limits import DEFAULTS, Limits
from headwater.opening import open_bucket
from headwater.store import Store
from tests.log.conformance import Log, LogConformance
from tests.log.unsynced import UnsyncedDisk


class Objects:
    """A bucket in a directory that is opened again and again."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.opened: list[Store] = []

    def open(self, *, durability: Any = "fsync", limits: Limits = DEFAULTS) -> Store:
        self.opened.append(open_bucket(self.url, durability=durability, limits=limits, disk=UnsyncedDisk()))
        return self.opened[-1]

    def settle(self, log: Log, topic: str) -> None:
        """Compact all of it: what is read then is in segments."""
        assert isinstance(log, Store)
        log.seal(topic)


def objects_at(url: str) -> Iterator[Objects]:
    objects = Objects(url)
    yield objects
    for bucket in objects.opened:
        bucket.close()


class TestDirectory(LogConformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[Objects]:
        yield from objects_at(f"objects://{tmp_path}/bucket")


class TestS3(LogConformance):
    @pytest.fixture
    def place(self, s3_url: str) -> Iterator[Objects]:
        yield from objects_at(s3_url)
