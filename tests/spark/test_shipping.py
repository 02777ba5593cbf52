"""Functions of the user's in a worker: from modules, files, the main program, and never an older text of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.spark.folding.shipping import pack
from headwater.views.app import load_app

_WORKER = """
import sys
from headwater.spark.folding.shipping import unpack
for name in sys.argv[1:]:
    print(*(function(3) for function in unpack(open(name, "rb").read())))
"""


def packed(tmp_path: Path, name: str, functions: list[Callable[[Any], Any]]) -> Path:
    file = tmp_path / name
    file.write_bytes(pack(functions, functions))
    return file


def in_a_worker(tmp_path: Path, *files: Path) -> list[str]:
    words = [sys.executable, "-c", _WORKER, *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def module_of(directory: Path, factor: int) -> list[Callable[[Any], Any]]:
    """A function of a file that `--app` names, with a neighbour that it imports."""
    directory.mkdir(exist_ok=True)
    (directory / "neighbour_of_shop.py").write_text("def same(x):\n    return x\n")
    (directory / "shop_to_ship.py").write_text(
        "import neighbour_of_shop, headwater\napp = headwater.App()\n"
        f"def times(x):\n    return neighbour_of_shop.same(x) * {factor}\n"
    )
    load_app(str(directory / "shop_to_ship.py"))
    return [sys.modules["shop_to_ship"].times]


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_a_function_arrives_from_wherever_it_is(tmp_path: Path) -> None:
    factor = 5

    def local(x: int) -> int:
        return x * factor

    functions = [local, *module_of(tmp_path / "a", 7)]
    assert in_a_worker(tmp_path, packed(tmp_path, "one", functions)) == ["15 21"]


def test_another_file_of_that_name_and_a_newer_text_replace_what_a_worker_has(tmp_path: Path) -> None:
    first = packed(tmp_path, "one", module_of(tmp_path / "a", 7))
    other = packed(tmp_path, "two", module_of(tmp_path / "b", 8))
    assert in_a_worker(tmp_path, first, other, first) == ["21", "24", "21"]
    newer = packed(tmp_path, "three", module_of(tmp_path / "b", 9))
    assert in_a_worker(tmp_path, newer) == ["27"]
