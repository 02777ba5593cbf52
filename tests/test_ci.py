"""`.ci/run` ends in time also when what it runs does not, and says where that hung."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / ".ci" / "run"


def run(tmp_path: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it with another `make`: a program in Python, started as make starts one."""
    (tmp_path / "program.py").write_text(program)
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\n"{sys.executable}" "{tmp_path}/program.py" "$@"\n')
    make.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    return subprocess.run(
        [RUN], env=os.environ | environment | {"PATH": path}, capture_output=True, text=True, timeout=30, check=False
    )


def test_a_run_that_hangs_fails_with_the_stacks_of_what_hung(tmp_path: Path) -> None:
    ran = run(tmp_path, "import time\ndef hangs():\n    time.sleep(60)\nhangs()\n", CI_LIMIT="1s")
    assert ran.returncode != 0
    assert "did not end within 1s" in ran.stderr
    assert "in hangs" in ran.stderr


@pytest.mark.parametrize("status", [0, 3])
def test_a_run_that_ends_has_the_status_of_make(tmp_path: Path, status: int) -> None:
    ran = run(tmp_path, f"import sys\nprint(*sys.argv[1:])\nsys.exit({status})\n")
    assert (ran.returncode, ran.stdout, ran.stderr) == (status, "check test\n", "")
