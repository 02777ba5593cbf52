"""The commands on a bucket: the same as on a directory, and clear words where a bucket cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    return f"objects://{tmp_path}/bucket"


def test_a_log_in_a_bucket_is_used_as_one_in_a_directory(run: Run, bucket: str) -> None:
    assert "created log" in run("init", bucket).out
    assert "is already a log" in run("init", bucket).out
    run("create", bucket, "orders", "--partitions", "2")
    told = run("append", bucket, "orders", "--type", "placed", "--key", "o-1", '{"total": 12}').out.split()
    assert told[:3] == ["orders", told[1], "0"]
    run("append", bucket, "orders", "--partition", "0", stdin=b"a\nb\n")
    events = run("read", bucket, "orders", "--json").objects
    assert [event["data"] for event in events] == [{"total": 12}, "a", "b"]
    assert run("topics", bucket, "--json").objects[0]["topic"] == "orders"
    assert bucket in run("info", bucket).out
    assert "1 of them new" in run("seal", bucket, "orders").out
    assert [event["data"] for event in run("read", bucket, "orders", "--json").objects] == [{"total": 12}, "a", "b"]
    assert len(run("consume", bucket, "orders", "billing", "--drain", "--json").objects) == 3
    assert run("consume", bucket, "orders", "billing", "--drain", "--json").objects == []
    assert {each["lag"] for each in run("consumers", bucket, "--json").objects} == {0}
    assert "deleted topic orders" in run("delete", bucket, "orders", "--yes").out
    assert run("topics", bucket, "--json").objects == []


@pytest.mark.parametrize(
    "words",
    [
        ("repair", "{bucket}"),
        ("reindex", "{bucket}"),
        ("get", "{bucket}", "baskets", "o-1"),
        ("query", "{bucket}", "baskets"),
        ("append", "{bucket}", "t", "--key", "k", "--expect", "none", "x"),
        ("serve", "{bucket}"),
        ("replicate", "{bucket}", "{directory}"),
    ],
)
def test_what_a_bucket_cannot_do_is_told_with_a_hint(
    run: Run, bucket: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    run("init", bucket)
    given = [word.format(bucket=bucket, directory=tmp_path / "copy") for word in words]
    told = run(*given, code=1).err
    assert told.startswith("error: ")
    assert " — " in told


def test_consumers_keep_their_leases_where_the_environment_says(
    run: Run, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("append", bucket, "t", "x")
    monkeypatch.setenv("HEADWATER_COORDINATOR", "nowhere://table")
    assert "not a coordinator" in run("topics", bucket, code=1).err
