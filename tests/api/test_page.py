"""What docs/CLIENT.md shows runs against a real server."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import headwater
from headwater.engine.engine import Engine
from tests.server.serving import Server
from tests.test_docs import ROOT, Block, python_blocks

PAGE = (ROOT / "docs" / "CLIENT.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", python_blocks(PAGE))
def test_block_runs(block: Block, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "block.py"
    script.write_text(block.code.replace("http://127.0.0.1:7450", server.url), encoding="utf-8")
    runpy.run_path(str(script), run_name="__main__")
    assert "40" in capsys.readouterr().out or "payments" in block.code


def test_the_table_names_every_verb_of_a_directory(server: Server) -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.partition("## Which verb works where")[2].partition("\n## ")[0]))
    verbs = {name for name in vars(Engine) if not name.startswith("_")}
    inner = {
        "close",
        "check_open",
        "after_fork",
        "holder",
        "topic_for",
        "limits",
        "uuid",
    }  # of every log, or for its own parts
    server_only = {"prepare", "prepare_many", "commit", "upload", "span", "cursor", "bell", "probe"}
    assert verbs - inner - server_only <= named
    with headwater.open(server.url) as hw:
        for verb in verbs - inner - server_only - {"path"}:
            assert callable(getattr(hw, verb)), verb
