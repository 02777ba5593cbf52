from pathlib import Path

import pytest

import headwater
from tests.cli.conftest import Run


def test_init_makes_a_log_once(run: Run, data: Path) -> None:
    assert run("init", data).out == f"✓ created log {data}\n"
    assert run("init", data).out == f"✓ {data} is already a log\n"
    (data.parent / "other").mkdir()
    (data.parent / "other" / "file").touch()
    assert "is not a log: it contains 'file'" in run("init", data.parent / "other", code=1).err


def test_create_takes_sizes_and_ages(run: Run, data: Path) -> None:
    options = ["--segment-bytes", "1MiB", "--segment-age", "2h", "--data-bytes-max", "5MB", "--compression", "zstd"]
    assert run("create", data, "t", "--partitions", "4", *options).out == "✓ created topic t with 4 partitions\n"
    with headwater.open(data, mode="existing") as hw:
        info = hw.describe("t")
    assert len(info.partitions) == 4
    assert info.settings == {
        "segment_bytes": 1 << 20,
        "segment_age_ms": 7_200_000,
        "data_bytes_max": 5_000_000,
        "compression": "zstd",
    }
    assert "already" in run("create", data, "t", "--partitions", "4").out
    assert "the number of partitions cannot change" in run("create", data, "t", "--partitions", "5", code=1).err
    assert "write 64MiB" in run("create", data, "u", "--segment-bytes", "64M", code=2).err


def test_topics_lists_what_is_there(run: Run, data: Path) -> None:
    run("init", data)
    assert run("topics", data).out == ""
    run("append", data, "orders", "a", "b", "--quiet")
    run("create", data, "empty")
    header, _, empty, orders = run("topics", data).lines
    assert header.split() == ["topic", "partitions", "events", "bytes", "offsets", "last", "event"]
    assert empty.split()[:3] == ["empty", "1", "0"]
    assert orders.split()[:3] == ["orders", "1", "2"]
    assert "0..1" in orders
    told = run("topics", data, "--json").objects
    assert [(each["topic"], each["events"], each["end"]) for each in told] == [("empty", 0, 0), ("orders", 2, 2)]
    assert told[0]["last_time"] is None


def test_a_topic_that_cannot_be_read_does_not_hide_the_others(run: Run, data: Path) -> None:
    for topic in ("bad", "good"):
        run("append", data, topic, "x", "--quiet")
    for path in (data / "topics" / "bad" / "0").glob("*.log"):
        path.unlink()
    (data / "topics" / "bad" / "0" / "tail").unlink()
    ran = run("topics", data, "--json", code=1)
    assert [each.get("error") for each in ran.objects] == [None, "corrupt"]
    assert "good" in run("topics", data, code=1).out


def test_info_tells_of_the_directory_and_each_partition(run: Run, data: Path) -> None:
    run("create", data, "orders", "--partitions", "2", "--segment-bytes", "1MiB")
    run("append", data, "orders", "a", "--partition", "1", "--quiet")
    run("append", data, "notes", "a", "--quiet")
    lines = run("info", data).lines
    with headwater.open(data, mode="existing") as hw:
        assert lines[:3] == [f"directory  {data.resolve()}", f"uuid       {hw.uuid}", "topics     2"]
    assert [line.split()[:4] for line in lines[-2:]] == [["orders", "0", "0", "0"], ["orders", "1", "0", "1"]]
    assert "segment bytes  1.0 MiB" in run("info", data, "orders").lines
    (told,) = run("info", data, "--json").objects
    assert [topic["name"] for topic in told["topics"]] == ["notes", "orders"]
    assert told["events"] == 2


def test_info_tells_what_a_recovery_gave_up(run: Run, data: Path) -> None:
    run("append", data, "t", "whole", "--quiet")
    partition = data / "topics" / "t" / "0"
    (log,) = partition.glob("*.log")
    size = log.stat().st_size
    with log.open("ab") as file:
        file.write(b"torn")
    assert "warning: " in run("append", data, "t", "next", "--quiet").err
    last = run("info", data, "t").lines[-1]
    assert last.startswith("recovered t/0, ")
    assert last.endswith(f"cut 4 B at position {size}, kept in {log.stem}.cut-{size}")


def test_delete_needs_a_yes(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("append", data, "t", "x", "--quiet")
    assert "give --yes" in run("delete", data, "t", code=2).err
    monkeypatch.setattr("headwater.cli.show.is_terminal", lambda _: True)
    assert "nothing was deleted" in run("delete", data, "t", stdin=b"n\n", code=1).err
    assert "deleted topic t with 1 event" in run("delete", data, "t", stdin=b"y\n").out
    assert run("topics", data, "--json").out == ""
    run("append", data, "t", "x", "--quiet")
    run("delete", data, "t", "--yes")
    assert run("topics", data, "--json").out == ""


def test_seal_finishes_segments(run: Run, data: Path) -> None:
    run("append", data, "t", "x", "--quiet")
    assert run("seal", data, "t").out == "✓ topic t has 1 sealed segment, 1 of them new\n"
    assert run("seal", data, "t").out == "✓ topic t has nothing to seal\n"


def test_reindex_makes_indexes_again(run: Run, data: Path) -> None:
    run("append", data, "t", "x", "--quiet")
    assert run("reindex", data).out == "✓ no sealed segments to index\n"
    run("seal", data, "t")
    (index,) = data.rglob("*.index")
    stored = index.read_bytes()
    index.unlink()
    assert run("reindex", data).out == "✓ 1 segment indexed\n"
    assert index.read_bytes() == stored
    assert run("reindex", data, "t", "--json").objects == [{"indexed": 1}]
    assert "no topic" in run("reindex", data, "other", code=1).err
