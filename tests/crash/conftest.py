"""Where crashes are staged."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.directory import journal


@pytest.fixture(autouse=True)
def small_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few transactions begin a journal anew, and it holds little that is only reserved."""
    monkeypatch.setattr(journal, "CHECKPOINT_BYTES", 1_500)
    monkeypatch.setattr(journal, "RESERVE_BYTES", 512)


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: the tests open thousands of logs."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="headwater-", dir=memory))
    yield path
    shutil.rmtree(path, ignore_errors=True)
