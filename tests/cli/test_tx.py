import json
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.limits import DEFAULTS
from tests.cli.conftest import Run


def lines(*appends: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(append).encode() + b"\n" for append in appends)


def values(data: Path, topic: str) -> list[object]:
    with headwater.open(data, mode="existing") as hw:
        return [event.value for event in hw.read(topic)]


def test_a_file_of_lines_is_appended_at_once_and_the_references_are_printed(
    run: Run, data: Path, tmp_path: Path
) -> None:
    file = tmp_path / "transfer.jsonl"
    file.write_bytes(
        lines(
            {"topic": "b", "data": {"n": 1}, "type": "moved", "key": "k", "meta": {"by": "me"}},
            {"topic": "a", "data": "text", "key_base64": "/w=="},
            {"topic": "b", "data_base64": "AAE="},
            {"topic": "b", "data": 12, "expected_version": None},
        )
    )
    ran = run("tx", data, file)
    with headwater.open(data, mode="existing") as hw:
        events = {(event.topic, event.offset): event for topic in "ab" for event in hw.read(topic)}
    places = [("b", 0), ("a", 0), ("b", 1), ("b", 2)]
    assert ran.lines == [f"{topic} 0 {offset} {events[topic, offset].id}" for topic, offset in places]
    first = events["b", 0]
    assert (first.value, first.type, first.key, first.meta) == ({"n": 1}, "moved", b"k", {"by": "me"})
    assert [(events[place].content, events[place].data) for place in places[1:]] == [
        ("text", b"text"),
        ("bytes", b"\0\1"),
        ("json", b"12"),
    ]
    assert events["a", 0].key == b"\xff"


def test_stdin_and_json_and_quiet(run: Run, data: Path) -> None:
    told = run("tx", data, "-", "--json", stdin=lines({"topic": "a", "data": "1"}, {"topic": "b", "data": "2"})).objects
    assert [(each["topic"], each["offset"], each["durability"]) for each in told] == [
        ("a", 0, "fsync"),
        ("b", 0, "fsync"),
    ]
    assert run("tx", data, "-", "--quiet", stdin=lines({"topic": "a", "data": "1"})).out == ""
    assert run("tx", data, "-", stdin=b"\n").out == ""
    assert values(data, "a") == ["1", "1"]


def test_what_read_prints_may_be_given_back(run: Run, data: Path) -> None:
    run("create", data, "t", "--partitions", "3")
    run("append", data, "t", "--partition", "2", "--key", "k", "--type", "x", '{"a": 1}')
    read = run("read", data, "t", "--json").out
    run("tx", data, "-", stdin=read.encode())
    (first, second) = run("read", data, "t", "--json").objects
    different = {"offset", "time", "id"}
    assert {name: first[name] for name in first.keys() - different} == {
        name: second[name] for name in second.keys() - different
    }


def test_a_version_that_does_not_hold_leaves_nothing_and_exits_with_1(run: Run, data: Path) -> None:
    run("append", data, "a", "--key", "k", "first", "--quiet")
    appends = [{"topic": "b", "data": "x"}, {"topic": "a", "data": "y", "key": "k", "expected_version": "none"}]
    ran = run("tx", data, "-", stdin=lines(*appends), code=1)
    assert (ran.out, ran.err.count("\n")) == ("", 1)
    assert "is at version 0; expected no event — read the key's events again" in ran.err
    assert '"error": "version_conflict"' in run("tx", data, "-", "--json", stdin=lines(*appends), code=1).err
    assert (values(data, "a"), values(data, "b")) == (["first"], [])
    appends[1]["expected_version"] = 0  # type: ignore[assignment]
    run("tx", data, "-", stdin=lines(*appends))
    assert (values(data, "a"), values(data, "b")) == (["first", "y"], ["x"])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "line 2: input data was truncated"),
        (b'{"data": 1}', "line 2: object missing required field `topic`"),
        (b'{"topic": "a"}', "line 2: no data"),
        (b'{"topic": "a", "data": 1, "expected": 1}', "line 2: object contains unknown field `expected`"),
        (b'{"topic": "a", "data": 1, "content": "text"}', "line 2: data of content text must be a string"),
        (b'{"topic": "a", "data_base64": "?"}', "line 2: data_base64 is not base64"),
        (b'{"topic": "a", "data": 1, "key_base64": "a"}', "line 2: key_base64 is not base64"),
    ],
)
def test_a_line_that_is_wrong_is_named_and_nothing_is_made(run: Run, data: Path, line: bytes, said: str) -> None:
    ran = run("tx", data, "-", stdin=lines({"topic": "a", "data": 1}) + line, code=1)
    assert ran.err.startswith(f"error: {said}")
    assert not data.exists()


@pytest.mark.parametrize(
    ("append", "said"),
    [
        ({"data": 1, "expected_version": 3}, "needs a key"),
        ({"data": 1, "partition": 7}, "no partition 7"),
        ({"data": 1, "key": "k", "expected_version": -1}, "not a version"),
        ({"data": "x" * (DEFAULTS.blob_bytes_min + 1)}, "in a transaction the limit is"),
    ],
)
def test_an_append_that_is_refused_is_named(run: Run, data: Path, append: dict[str, Any], said: str) -> None:
    ran = run("tx", data, "-", stdin=lines({"topic": "a", "data": 1}, {"topic": "a", **append}), code=1)
    assert ran.err.startswith("error: line 2: ")
    assert said in ran.err
    assert values(data, "a") == []


def test_a_file_that_is_not_there_is_an_error_of_one_line(run: Run, data: Path) -> None:
    assert run("tx", data, "nowhere", code=1).err == "error: nowhere: No such file or directory\n"
    assert not data.exists()


# Conditions of `headwater append`


def test_append_expects_a_version(run: Run, data: Path) -> None:
    run("append", data, "t", "--key", "k", "--expect", "none", "a", "b")
    run("append", data, "t", "--key", "k", "--expect", "1", "--file", "-", stdin=b"c")
    ran = run("append", data, "t", "--key", "k", "--expect", "1", "d", code=1)
    assert "is at version 2; expected version 1" in ran.err
    assert len(values(data, "t")) == 3


def test_append_by_a_producer_is_answered_once(run: Run, data: Path) -> None:
    words = ["append", data, "t", "--producer", "p", "--epoch", "2", "--seq", "7", "a", "b"]
    assert run(*words).out == run(*words).out
    assert "old_epoch" in run("append", data, "t", "--producer", "p", "--seq", "8", "c", "--json", code=1).err
    assert values(data, "t") == ["a", "b"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--expect", "1", "a"], "--expect needs --key"),
        (["--key", "k", "--expect", "last", "a"], "'last' is not a version"),
        (["--key", "k", "--expect", "-1", "a"], "'-1' is not a version"),
        (["--producer", "p", "a"], "must be given together"),
        (["--seq", "1", "a"], "must be given together"),
        (["--producer", "p", "--seq", "1"], "with lines"),
        (["--key", "k", "--expect", "none", "--lines"], "with lines"),
    ],
)
def test_conditions_that_make_no_sense_are_refused_at_once(run: Run, data: Path, words: list[str], said: str) -> None:
    assert said in run("append", data, "t", *words, stdin=b"x\n", code=2).err
    assert not data.exists()


def test_values_of_several_contents_are_not_one_request(run: Run, data: Path) -> None:
    assert "--content" in run("append", data, "t", "--producer", "p", "--seq", "1", "a", "[1]", code=1).err
    run("append", data, "t", "--producer", "p", "--seq", "1", "a", "[1]", "--content", "text")
    assert values(data, "t") == ["a", "[1]"]
