"""A connection to `server` for each test, and `driven`: a log that is served to connections without sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.limits import SERVER_DEFAULTS, ServerLimits
from tests.server.serving import Server
from tests.server.tcp.driving import Driven, driving
from tests.server.tcp.wire import Wire, wire


@pytest.fixture(scope="module")
def driven_limits() -> ServerLimits:
    """Return the limits of `driven`; a module that needs others defines this fixture."""
    return SERVER_DEFAULTS


@pytest.fixture(scope="module")
def driven(server_path: Path, driven_limits: ServerLimits) -> Iterator[Driven]:
    """Serve a log to connections without sockets, in a loop that the tests of a module run."""
    with driving(server_path, driven_limits) as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[Wire]:
    with wire(server.tcp_url) as made:
        yield made
