"""docs/CLI.md: its reference is fresh, and its session is real."""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from headwater.cli.app import COMMANDS
from headwater.cli.reference import renewed

PAGE = Path(__file__).parent.parent.parent / "docs" / "CLI.md"
MODULES = Path(__file__).parent.parent.parent / "src" / "headwater" / "cli"
FRESH = "run: python -m headwater.cli.reference docs/CLI.md"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What differs from run to run.
CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\.\d+"), "TIME"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-6[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\((just now|\d+ s ago)\)"), "AGO"),
    (re.compile("─+"), "─"),
)


class Step(NamedTuple):
    command: str
    output: list[str]


def steps(page: str) -> list[Step]:
    """The commands of all console blocks, each with the output that the page shows."""
    found: list[Step] = []
    for block in CONSOLE.findall(page):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Step(line[2:], []))
            else:
                found[-1].output.append(line)
    return found


def masked(line: str) -> str:
    for pattern, name in CHANGING:
        line = pattern.sub(name, line)
    return line.rstrip()


def test_the_reference_is_fresh() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page), FRESH


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_documented(name: str) -> None:
    assert f"### headwater {name}\n" in PAGE.read_text(encoding="utf-8"), FRESH


def test_every_command_has_its_file_and_every_file_with_a_command_is_listed() -> None:
    commands = {path.stem for path in MODULES.glob("*.py") if "@command(" in path.read_text(encoding="utf-8")}
    assert commands == set(COMMANDS)


def test_a_page_without_the_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the line"):
        renewed("# A page\n")


def test_the_session_is_real(tmp_path: Path) -> None:
    session = steps(PAGE.read_text(encoding="utf-8"))
    assert len(session) > 5
    function = f'headwater() {{ {sys.executable} -m headwater.cli "$@"; }}; '
    for step in session:
        command = ["bash", "-c", function + step.command]
        ran = subprocess.run(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, text=True
        )
        assert [masked(line) for line in ran.stdout.splitlines()] == [masked(line) for line in step.output], (
            step.command
        )
