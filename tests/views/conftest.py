"""A log directory for each test, and a binder in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater.views.local import Local
from tests.views.filling import Filling


@pytest.fixture
def filling(hw: Local) -> Iterator[Filling]:
    with Filling(hw) as made:
        yield made
