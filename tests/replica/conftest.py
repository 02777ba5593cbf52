"""Replicators in the process of the tests look around often, so that nobody waits for them."""

from __future__ import annotations

import pytest

from headwater.replication import replicator


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicator, "LOOK_EVERY_S", 0.05)
