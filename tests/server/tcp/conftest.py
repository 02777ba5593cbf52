"""A server for the tests of a module, and a connection to it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.serving import Server, serving
from tests.server.tcp.wire import Wire, wire


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests of a module, which use topics of their own."""
    with serving(tmp_path_factory.mktemp("tcp") / "data") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Wire]:
    with wire(server.tcp_url) as made:
        yield made


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"topic of {request.node.name}"
