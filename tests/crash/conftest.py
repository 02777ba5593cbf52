"""Where crashes are staged."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


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
