"""docs/CLI.md: its reference is fresh, and its session is real."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from headwater.cli.app import COMMANDS
from tests.cli.conftest import Run
from tests.cli.reference import renewed

PAGE = Path(__file__).parent.parent.parent / "docs" / "CLI.md"
MODULES = Path(__file__).parent.parent.parent / "src" / "headwater" / "cli"
FRESH = "run: python -m tests.cli.reference docs/CLI.md"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What differs from run to run.
CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\.\d+"), "TIME"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-6[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\((just now|\d+ s ago)\)"), "AGO"),
    (re.compile(r" +[\d.]+ (B|KiB)\b"), " SIZE"),  # changes whenever the files beside the segments do
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
    commands = {
        path.stem.rstrip("_")
        for path in MODULES.glob("*.py")
        if re.search(r"^@(command\(|group$)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert commands == set(COMMANDS)


def test_a_page_without_the_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the line"):
        renewed("# A page\n")


def test_the_session_is_real(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    session = steps(PAGE.read_text(encoding="utf-8"))
    assert len(session) > 5
    for step in session:
        before, _, ours = step.command.rpartition("| ")
        stdin = subprocess.run(["bash", "-c", before.rstrip("| ")], check=True, capture_output=True).stdout
        program, *words = shlex.split(ours)
        assert program == "headwater"
        ran = run(*words, stdin=stdin, code=any(line.startswith("error: ") for line in step.output))
        shown = (ran.out + ran.err).splitlines()
        assert [masked(line) for line in shown] == [masked(line) for line in step.output], step.command
