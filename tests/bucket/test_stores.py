"""Both stores pass the suite of all stores."""

from __future__ import annotations

import pytest

from tests.bucket.store_conformance import Contention, StoreConformance


class TestStores(StoreConformance):
    @pytest.fixture
    def contention(self, store_url: str) -> Contention:
        return Contention(3, 40, 20, 3) if store_url.startswith("s3:") else Contention(8, 40, 1, 20)
