"""A log to try the verbs on: once a directory, once a server of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headwater
from tests.server.serving import Server

if TYPE_CHECKING:
    from headwater.store import Store


@pytest.fixture(params=["directory", "server"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "data")
    server: Server = request.getfixturevalue("server")
    return server.url


@pytest.fixture
def opened(address: str) -> Iterator[Store]:
    with headwater.open(address) as log:
        yield log
