"""`headwater maintain`, and the other commands that keep a bucket."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Run


def test_a_bucket_is_kept_by_commands(run: Run, tmp_path: Path) -> None:
    bucket = f"objects://{tmp_path}/bucket"
    for number in range(3):
        run("append", bucket, "t", f"e{number}")
    assert run("seal", bucket, "t").out == "✓ topic t has 1 sealed segment, 1 of them new\n"
    assert run("seal", bucket, "t").out == "✓ topic t has nothing to seal\n"
    assert run("maintain", bucket).out == "✓ 0 segments created, 0 segments trimmed, 0 objects deleted\n"
    assert json.loads(run("maintain", bucket, "t", "--json").out) == {"segments": 0, "trimmed": [], "collected": 0}
    assert "all good: 1 topic" in run("check", bucket).out
    assert "deleted 1 segment of topic t" in run("retain", bucket, "t", "--before", "3").out
    assert run("read", bucket, "t").out == ""


def test_a_directory_needs_no_maintenance(run: Run, data: Path) -> None:
    run("append", data, "t", "a")
    assert "a directory cannot be maintained by hand" in run("maintain", data, code=1).err
