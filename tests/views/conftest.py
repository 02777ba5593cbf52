"""A log directory for each test, and a binder in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.opening import open_directory
from headwater.store import Store
from tests.views.filling import Filling


@pytest.fixture
def hw(tmp_path: Path) -> Iterator[Store]:
    with open_directory(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def filling(hw: Store) -> Iterator[Filling]:
    with Filling(hw) as made:
        yield made
