"""The program, run inside the test's process; `data` is where it may put a log."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from headwater.cli.app import cli

PROGRAM = [sys.executable, "-m", "headwater.cli"]


class Ran(msgspec.Struct):
    code: int
    out: str
    err: str
    raw: bytes

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def objects(self) -> list[Any]:
        return [msgspec.json.decode(line) for line in self.lines]


Run = Callable[..., Ran]


@pytest.fixture
def run() -> Run:
    def run(*words: str | Path, stdin: bytes | None = None, code: int = 0) -> Ran:
        result = CliRunner().invoke(cli, [str(word) for word in words], input=stdin, prog_name="headwater")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        ran = Ran(result.exit_code, result.stdout, result.stderr, result.stdout_bytes)
        assert ran.code == code, (ran.code, ran.out, ran.err)
        return ran

    return run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def program() -> Sequence[str]:
    """What starts the program as a process of its own."""
    return PROGRAM
