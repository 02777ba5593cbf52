"""Every python block of the README and the docs runs, in an empty directory and a namespace of its own."""

import re
import runpy
import shutil
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

from bench import table
from bench.spark import scale

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCED = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<info>[^`\n]*)\n(?P<code>.*?)^(?P=indent)(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    line: int
    options: str
    code: str


def python_blocks(text: str) -> list[Block]:
    """The python blocks of a page, each with the number of its first line of code."""
    blocks = []
    for match in FENCED.finditer(text):
        language, _, options = match["info"].strip().partition(" ")
        if language == "python":
            line = text.count("\n", 0, match.start("code")) + 1
            blocks.append(Block(line, options.strip(), dedent(match["code"])))
    return blocks


def blocks_of_pages(*, on_spark: bool) -> list[object]:
    return [
        pytest.param(block, id=f"{page.relative_to(ROOT)}:{block.line}")
        for page in PAGES
        for block in python_blocks(page.read_text(encoding="utf-8"))
        if block.options != "no-run" and ("spark" in block.code) == on_spark
    ]


@pytest.mark.parametrize("block", blocks_of_pages(on_spark=False))
def test_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "empty"
    directory.mkdir()
    run(block, tmp_path / "block.py", directory, monkeypatch)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("block", blocks_of_pages(on_spark=True))
def test_block_runs_on_spark(
    block: Block, tmp_path: Path, spark_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the session that the tests share: `headwater.spark.session()` gives the one that is there."""
    for left in spark_directory.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    run(block, tmp_path / "block.py", spark_directory, monkeypatch)


def run(block: Block, script: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not block.options, f"the only option of a python block is no-run, not {block.options!r}"
    # The script lies beside the working directory, which stays empty, and has the page's line numbers.
    script.write_text("\n" * (block.line - 1) + block.code, encoding="utf-8")
    monkeypatch.chdir(directory)
    runpy.run_path(str(script), run_name="__main__")


def test_what_scale_costs_follows_from_what_was_measured() -> None:
    written = scale.PAGE.read_text(encoding="utf-8").partition(table.BEGIN)[2].partition(table.END)[0]
    assert written.strip() == scale.tables(scale.read(scale.MEASURED.read_text(encoding="utf-8")))


def test_only_python_blocks_are_found_with_their_lines_and_options() -> None:
    page = dedent(
        """\
        # Page

        ```python
        a = 1
        ```

        ```sh
        ls
        ```

        - in a list

          ```python no-run
          if a:
              b = 2
          ```

        ````markdown
        ```python
        quoted = True
        ```
        ````
        """
    )
    assert python_blocks(page) == [
        Block(line=4, options="", code="a = 1\n"),
        Block(line=14, options="no-run", code="if a:\n    b = 2\n"),
    ]
