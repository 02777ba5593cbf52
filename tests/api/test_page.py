"""What docs/CLIENT.md shows runs against a real server."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import headwater
from headwater.store import Store
from tests.server.serving import Server
from tests.test_docs import ROOT, Block, python_blocks

PAGE = (ROOT / "docs" / "CLIENT.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", python_blocks(PAGE))
def test_block_runs(block: Block, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "block.py"
    script.write_text(block.code.replace("http://127.0.0.1:7450", server.url), encoding="utf-8")
    runpy.run_path(str(script), run_name="__main__")
    assert "40" in capsys.readouterr().out or "payments" in block.code


def test_the_table_names_every_verb(server: Server, tmp_path: Path) -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.partition("## Which verb works where")[2].partition("\n## ")[0]))
    verbs = {name for each in (Store, Store, Verbs) for name in vars(each) if not name.startswith("_")}
    inner = {
        "close",
        "check_open",
        "after_fork",
        "holder",
        "topic_for",
        "limits",
        "uuid",
        "has_versions",
        "submit",
        "submit_many",
        "frozen",
        "thaw",
    }  # of every log, or for its own parts
    of_directories = {"path", "probe", "archive", "archiver", "archive_url", "check_archive", "replica", "settings_of"}
    of_both = {"parquet_url", "remember_parquet"}
    of_buckets = {"url", "append_later", "flush", "maintain"}
    assert verbs - inner - {"probe"} <= named
    with headwater.open(server.url) as hw:
        for verb in verbs - inner - of_directories - of_buckets - of_both:
            assert callable(getattr(hw, verb)), verb
    with headwater.open(f"objects://{tmp_path}/bucket") as bucket:
        for verb in verbs - inner - of_directories:
            assert hasattr(bucket, verb), verb
