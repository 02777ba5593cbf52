"""`server` and `process`: one server for all tests of a module, with settings, options and data that a module can set.

A module that needs other settings, options or data defines `server_settings`, `process_options` or `server_path`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.store import Store
from tests.log.unsynced import open_unsynced
from tests.server.process import ServerProcess, served
from tests.server.serving import Server, serving


@pytest.fixture(scope="module")
def server_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the log to serve; a module that needs topics or events in it creates them here."""
    return tmp_path_factory.mktemp("server") / "data"


@pytest.fixture(scope="module")
def server_settings() -> dict[str, Any]:
    """Return the settings of `server`, as JSON has them."""
    return {}


@pytest.fixture(scope="module")
def server(server_path: Path, server_settings: dict[str, Any]) -> Iterator[Server]:
    """Serve HTTP and TCP with `server_settings`; the tests of a module use topics of their own."""
    with serving(server_path, **server_settings) as running:
        yield running


@pytest.fixture
def server_url(server: Server) -> str:
    """Return the URL of a server that speaks HTTP: `server`, unless a module defines another."""
    return server.url


@pytest.fixture(scope="module")
def local(server: Server) -> Iterator[Store]:
    """Open the log of `server` beside it, as another process of the same machine does."""
    with open_unsynced(server.path) as opened:
        yield opened


@pytest.fixture(scope="module")
def process_options() -> list[str]:
    """Return the command line options of `process`."""
    return []


@pytest.fixture(scope="module")
def process(server_path: Path, process_options: list[str]) -> Iterator[ServerProcess]:
    """Run `headwater serve` with `process_options`; the tests of a module use topics of their own."""
    with served(server_path, *process_options) as running:
        yield running
