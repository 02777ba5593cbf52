"""No verb raises MemoryError: the tests of `short_of_memory.py`, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_memory_may_run_out_anywhere() -> None:
    plugins = ("-p", "no:cacheprovider", "-p", "no:unraisableexception")
    command = [sys.executable, "-m", "pytest", "-q", *plugins, "tests/engine/short_of_memory.py"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stdout[-10_000:]
    assert " passed" in ran.stdout
