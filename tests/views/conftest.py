"""A log directory for each test, and a binder in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater.store import Store
from tests.views.filling import Filling


@pytest.fixture
def filling(hw: Store) -> Iterator[Filling]:
    with Filling(hw) as made:
        yield made
