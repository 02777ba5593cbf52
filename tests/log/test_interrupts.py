"""Calls that are interrupted anywhere leave no lock behind: the tests of `interrupts.py`, in a process of their own.

They raise out of a trace function tens of thousands of times, and what they interrupt leaves threads behind. Whatever
that does to the interpreter must not reach the tests that share a process with these.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.log.interrupts import EVERY

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("places", ["some", pytest.param("every", marks=pytest.mark.torture)])
@pytest.mark.timeout(1800)
def test_a_call_may_be_interrupted_anywhere(places: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/log/interrupts.py"]
    environment = {**os.environ, **({EVERY: "1"} if places == "every" else {})}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1700, check=False)
    assert ran.returncode == 0, ran.stdout[-10_000:]
    assert " passed" in ran.stdout
