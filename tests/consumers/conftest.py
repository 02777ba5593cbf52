"""`store`: a store without topics, once on each backend: a directory, a bucket on a directory and on S3, a server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headwater
from headwater.limits import Limits
from headwater.opening import open_bucket, open_directory
from headwater.store import Store
from tests.log.unsynced import UnsyncedDisk

QUICK = Limits(retry_ms=1, ack_ms=5, lease_ms=5000, bucket_ack_ms=5, follow_ms=5, follow_ms_max=20)

Opener = Callable[[], Store]


@pytest.fixture(params=["directory", "bucket", "s3", "server"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def opener(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Iterator[Opener]:
    """Open the same place again and again; all stores are closed, and its topics deleted, at the end."""
    with contextlib.ExitStack() as opened:
        if kind == "directory":
            yield lambda: opened.enter_context(open_directory(tmp_path / "data", limits=QUICK, disk=UnsyncedDisk()))
        elif kind == "server":
            url = request.getfixturevalue("server").url
            yield lambda: opened.enter_context(headwater.open(url, limits=QUICK))
            opened.close()
            with headwater.open(url) as remote:  # the next test finds none
                for topic in remote.topics():
                    remote.delete(topic)
        else:
            url = f"objects://{tmp_path}/objects" if kind == "bucket" else request.getfixturevalue("s3_url")
            yield lambda: opened.enter_context(open_bucket(url, limits=QUICK, disk=UnsyncedDisk()))


@pytest.fixture
def store(opener: Opener) -> Store:
    return opener()
