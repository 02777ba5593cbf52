"""The commands on a bucket: the same as on a directory, and clear words where a bucket cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.fixture
def bucket_url(tmp_path: Path) -> str:
    return f"objects://{tmp_path}/bucket"


def test_a_log_in_a_bucket_is_used_as_one_in_a_directory(run: Run, bucket_url: str) -> None:
    assert "created log" in run("init", bucket_url).out
    assert "is already a log" in run("init", bucket_url).out
    run("create", bucket_url, "orders", "--partitions", "2")
    told = run("append", bucket_url, "orders", "--type", "placed", "--key", "o-1", '{"total": 12}').out.split()
    assert told[:3] == ["orders", told[1], "0"]
    run("append", bucket_url, "orders", "--partition", "0", stdin=b"a\nb\n")
    events = run("read", bucket_url, "orders", "--json").objects
    assert [event["data"] for event in events] == [{"total": 12}, "a", "b"]
    assert run("topics", bucket_url, "--json").objects[0]["topic"] == "orders"
    assert bucket_url in run("info", bucket_url).out
    assert "1 of them new" in run("seal", bucket_url, "orders").out
    assert [event["data"] for event in run("read", bucket_url, "orders", "--json").objects] == [{"total": 12}, "a", "b"]
    assert len(run("consume", bucket_url, "orders", "billing", "--drain", "--json").objects) == 3
    assert run("consume", bucket_url, "orders", "billing", "--drain", "--json").objects == []
    assert {each["lag"] for each in run("consumers", bucket_url, "--json").objects} == {0}
    assert "deleted topic orders" in run("delete", bucket_url, "orders", "--yes").out
    assert run("topics", bucket_url, "--json").objects == []


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
    run: Run, bucket_url: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    run("init", bucket_url)
    given = [word.format(bucket=bucket_url, directory=tmp_path / "copy") for word in words]
    told = run(*given, code=1).err
    assert told.startswith("error: ")
    assert " — " in told


def test_consumers_keep_their_leases_where_the_environment_says(
    run: Run, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("append", bucket_url, "t", "x")
    monkeypatch.setenv("HEADWATER_COORDINATOR", "nowhere://table")
    assert "not a coordinator" in run("topics", bucket_url, code=1).err
