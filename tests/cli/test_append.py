from pathlib import Path

import pytest

import headwater
from headwater.cli.append import read_lines
from tests.cli.conftest import Run


def contents(data: Path, topic: str) -> list[tuple[str, bytes | None]]:
    with headwater.open(data, mode="existing") as hw:
        return [(event.content, event.data) for event in hw.read(topic)]


def test_append_prints_topic_partition_offset_and_id(run: Run, data: Path) -> None:
    ran = run("append", data, "orders", "--type", "placed", "--key", "o-17", "--meta", "by=me", '{"total": 12}')
    with headwater.open(data, mode="existing") as hw:
        (event,) = hw.read("orders")
    assert ran.out == f"orders 0 0 {event.id}\n"
    assert (event.type, event.key, event.meta, event.value) == ("placed", b"o-17", {"by": "me"}, {"total": 12})


def test_json_prints_references_as_objects_and_quiet_prints_nothing(run: Run, data: Path) -> None:
    (told,) = run("append", data, "notes", "a", "--json").objects
    assert (told["topic"], told["partition"], told["offset"], told["durability"]) == ("notes", 0, 0, "fsync")
    assert run("append", data, "notes", "b", "--quiet", "--durability", "os").out == ""


def test_content_follows_the_value_unless_it_is_said(run: Run, data: Path) -> None:
    run("append", data, "t", '{"a": 1}', "[1]", "plain", "12", "{broken")
    run("append", data, "t", '{"a": 1}', "--content", "text")
    run("append", data, "t", "12", "--content", "json")
    assert contents(data, "t") == [
        ("json", b'{"a": 1}'),
        ("json", b"[1]"),
        ("text", b"plain"),
        ("text", b"12"),
        ("text", b"{broken"),
        ("text", b'{"a": 1}'),
        ("json", b"12"),
    ]


def test_a_value_that_is_not_its_content_is_refused(run: Run, data: Path) -> None:
    assert run("append", data, "t", "{broken", "--content", "json", code=1).err.startswith(
        "error: '{broken' is not json"
    )
    assert "is not bson" in run("append", data, "t", "[1]", "--content", "bson", code=1).err
    assert "is not text" in run("append", data, "t", "--content", "text", stdin=b"\xff\n", code=1).err


def test_bson_is_given_as_extended_json(run: Run, data: Path) -> None:
    pytest.importorskip("bson")
    run("append", data, "t", '{"at": {"$date": "2025-01-01T00:00:00Z"}}', "--content", "bson")
    (told,) = run("read", data, "t", "--json").objects
    assert (told["content"], told["data"]) == ("bson", {"at": {"$date": "2025-01-01T00:00:00Z"}})


def test_each_line_of_stdin_is_an_event(run: Run, data: Path) -> None:
    ran = run("append", data, "t", stdin=b'first\r\n\n{"a": 1}\n\xff\nlast')
    assert len(ran.lines) == 4
    assert contents(data, "t") == [("text", b"first"), ("json", b'{"a": 1}'), ("bytes", b"\xff"), ("text", b"last")]


def test_lines_share_type_key_and_meta_and_go_in_one_batch(run: Run, data: Path) -> None:
    run("append", data, "t", "--lines", "--type", "n", "--key", "k", "--meta", "a=b", stdin=b"1\n2\n3\n")
    with headwater.open(data, mode="existing") as hw:
        assert [len(batch) for batch in hw.read_batches("t")] == [3]
        assert {(event.type, event.key, event.meta["a"]) for event in hw.read("t")} == {("n", b"k", "b")}


def test_an_error_among_lines_tells_how_many_are_appended(run: Run, data: Path) -> None:
    run("create", data, "t", "--data-bytes-max", "10")
    ran = run("append", data, "t", "--json", stdin=b"short\n" + b'{"a": "much too long"}\n', code=1)
    assert len(ran.lines) == 1
    assert "(1 event appended before that)" in ran.err
    assert '"error": "too_large"' in ran.err
    assert "--data-bytes-max" in ran.err


def test_a_file_is_one_event_of_any_size(run: Run, data: Path, tmp_path: Path) -> None:
    small, huge = tmp_path / "small", tmp_path / "huge"
    small.write_bytes(b"a\nb\n")
    huge.write_bytes(bytes(range(256)) * 48_000)
    run("create", data, "t", "--data-bytes-max", "20MB")
    run("append", data, "t", "--file", small)
    run("append", data, "t", "--file", huge, "--type", "huge")
    run("append", data, "t", "--file", "-", stdin=b"from stdin")
    assert contents(data, "t") == [("bytes", b"a\nb\n"), ("bytes", None), ("bytes", b"from stdin")]
    (told,) = run("read", data, "t", "--type", "huge", "--json").objects
    assert told["data_bytes"] == huge.stat().st_size
    run("read", data, "t", "--from", "1", "--output", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == huge.read_bytes()
    assert not (tmp_path / "out.part").exists()


def test_ways_to_give_data_exclude_each_other(run: Run, data: Path) -> None:
    assert "mutually exclusive" in run("append", data, "t", "value", "--file", "x", code=2).err
    assert "mutually exclusive" in run("append", data, "t", "value", "--lines", code=2).err
    assert "name=value" in run("append", data, "t", "value", "--meta", "x", code=2).err
    assert not data.exists()


def test_a_missing_file_is_an_error_of_one_line(run: Run, data: Path) -> None:
    assert run("append", data, "t", "--file", "nowhere", code=1).err == "error: nowhere: No such file or directory\n"


class Slow:
    """A pipe whose writer pauses after each piece."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = iter([*pieces, b""])

    def read1(self, size: int) -> bytes:
        assert size > 0
        return next(self._pieces)

    read = read1


def test_lines_cut_anywhere_by_the_pipe_are_put_together() -> None:
    batches = read_lines(Slow([b"on", b"e\ntwo\r", b"\n", b"\n\nthr", b"ee"]))  # type: ignore[arg-type]  # all it needs
    assert [line for batch in batches for line in batch] == [b"one", b"two", b"three"]
