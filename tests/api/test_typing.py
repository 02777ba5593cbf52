"""Programs of users type-check against `headwater.Store`, with mypy and with pyright, both strict."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "typed_program.py"
ROOT = PROGRAM.parent.parent.parent
PYRIGHT = ROOT / "build" / "pyright" / "package" / "index.js"  # fetched by `make test`
# Each line below `main`, but the last, is a mistake.
MISTAKEN = """import headwater
from headwater import Store

def main(store: Store) -> None:
    store.append("orders", {"total": 12}, colour="red")
    store.append(1, b"")
    offset: str = store.append("orders", b"").offset
    store.read("orders", reverse="yes")
    headwater.open("data", durability="maybe")
    print(offset)
"""
MISTAKES = set(range(5, 10))


@pytest.fixture
def mistaken(tmp_path: Path) -> Path:
    path = tmp_path / "mistaken.py"
    path.write_text(MISTAKEN)
    return path


def by_mypy(path: Path, cache: Path) -> list[int]:
    """Return the lines in which mypy finds an error."""
    options = "--strict", "--config-file", "", "--cache-dir", str(cache), "--follow-imports", "silent"
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(path)], capture_output=True, text=True, check=False
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return [int(line) for line in re.findall(rf"{path.name}:(\d+): error", run.stdout)]


def by_pyright(path: Path, directory: Path) -> list[int]:
    """Return the lines in which pyright finds an error."""
    node = shutil.which("node")
    if node is None or not PYRIGHT.exists():
        pytest.skip("pyright is not installed: it needs node and npm")
    project = directory / path.stem
    project.mkdir()
    shutil.copy(path, project / path.name)
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT / "src")]}
    (project / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [node, str(PYRIGHT), "--outputjson", "--project", str(project), "--pythonpath", sys.executable]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(run.stdout)
    assert found["summary"]["filesAnalyzed"] == 1, run.stdout
    return [each["range"]["start"]["line"] + 1 for each in found["generalDiagnostics"] if each["severity"] == "error"]


@pytest.mark.timeout(240)
def test_mypy_accepts_a_program_and_finds_its_mistakes(tmp_path: Path, mistaken: Path) -> None:
    assert by_mypy(PROGRAM, tmp_path) == []
    assert set(by_mypy(mistaken, tmp_path)) == MISTAKES


@pytest.mark.timeout(240)
def test_pyright_accepts_a_program_and_finds_its_mistakes(tmp_path: Path, mistaken: Path) -> None:
    assert by_pyright(PROGRAM, tmp_path) == []
    assert set(by_pyright(mistaken, tmp_path)) == MISTAKES
