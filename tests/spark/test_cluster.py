"""What only shows with executors in processes of their own: they find the source, and share nothing but the log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.clusters import COUNT
from tests.spark.staged import files, manifests
from tests.spark.test_sink import numbers, read


@pytest.mark.timeout(600)
def test_executors_write_once_and_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "tests.spark.clusters", str(data)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=500)  # noqa: S603
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"count": COUNT, "distinct": COUNT, "executors": 2}
    assert sorted(numbers(read(data))) == list(range(COUNT))
    assert not files(data)
    assert not manifests(data)
