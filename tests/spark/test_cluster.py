"""What only shows with executors in processes of their own: they find the source, and share nothing but the log."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.clusters import COUNT, FLAKY, SLOW, TASKS
from tests.spark.staged import files, manifests
from tests.spark.test_sink import numbers, read


@pytest.mark.usefixtures("java_classes")
@pytest.mark.timeout(600)  # three JVMs are started
def test_executors_write_once_and_read(tmp_path: Path) -> None:
    """One task fails at first, and of another two attempts run at once."""
    data, attempts = tmp_path / "data", tmp_path / "attempts"
    attempts.mkdir()
    command = [sys.executable, "-m", "tests.spark.clusters", str(data), str(attempts)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=500)
    assert json.loads(done.stdout.splitlines()[-1]) == {"count": COUNT, "distinct": COUNT}
    noted = [path.name.split("-") for path in attempts.iterdir() if "worker" not in path.name]
    assert {(int(task), int(attempt)) for task, attempt, _ in noted} >= {
        *((task, 0) for task in range(TASKS)),
        (SLOW, 1),
        (FLAKY, 1),
    }
    assert len({executor for _, _, executor in noted}) == 2
    assert sorted(numbers(read(data))) == list(range(COUNT))
    assert len(files(data)) <= 1  # of the attempt that lost: it may have been staged when all was over
    assert not manifests(data)
