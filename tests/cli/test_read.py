import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater.cli.events import AlignedLines, data_text, key_text
from tests.cli.conftest import Run
from tests.planting import plant


@pytest.fixture
def orders_store(data: Path) -> Iterator[headwater.Store]:
    """Four events of one partition."""
    with headwater.open(data) as hw:
        hw.append("orders", {"total": 12}, type="placed", key="o-1")
        hw.append("orders", "by card", type="paid", key="o-1", meta={"by": "me"})
        hw.append("orders", b"\xff\x00", type="scanned", key=b"\xfe")
        hw.append("orders", "tab\tand\nnewline \x1b[31m", type="noted")
        yield hw


@pytest.mark.usefixtures("orders_store")
def test_off_a_terminal_columns_are_apart_by_tabs_in_one_line_each(run: Run, data: Path) -> None:
    rows = [line.split("\t") for line in run("read", data, "orders").lines]
    assert [row[:2] + row[3:] for row in rows] == [
        ["0", "0", "placed", "o-1", '{"total":12}'],
        ["0", "1", "paid", "o-1", "by card"],
        ["0", "2", "scanned", "0xfe", "0xff00"],
        ["0", "3", "noted", "", r"tab\tand\nnewline \x1b[31m"],
    ]


def test_json_tells_everything_and_what_it_cannot_hold_in_base64(
    run: Run, data: Path, orders_store: headwater.Store
) -> None:
    placed, paid, scanned, noted = run("read", data, "orders", "--json").objects
    events = list(orders_store.read("orders"))
    assert list(placed) == ["topic", "partition", "offset", "time", "id", "type", "key", "content", "data", "meta"]
    assert (placed["data"], placed["content"], placed["id"]) == ({"total": 12}, "json", str(events[0].id))
    assert (paid["data"], paid["meta"], paid["offset"]) == ("by card", {"by": "me"}, 1)
    assert base64.b64decode(scanned["data_base64"]) == b"\xff\x00"
    assert base64.b64decode(scanned["key_base64"]) == b"\xfe"
    assert noted["data"] == "tab\tand\nnewline \x1b[31m"


def test_json_data_stays_on_one_line_with_its_numbers_as_written(run: Run, data: Path) -> None:
    with headwater.open(data) as hw:
        hw.append("t", b'{\n "a": 1.10,\n "b": 123456789012345678901234567890\n}', content="json")
        plant(hw, "t", b"{not json")
    first, second = run("read", data, "t", "--json").lines
    assert '"data":{"a":1.10,"b":123456789012345678901234567890}' in first
    assert '"data_base64":"e25vdCBqc29u"' in second


@pytest.mark.usefixtures("orders_store")
def test_raw_is_the_data_alone(run: Run, data: Path) -> None:
    ran = run("read", data, "orders", "--raw", "--limit", "3")
    assert ran.raw == b'{"total":12}\nby card\n\xff\x00\n'


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (["--from", "1", "--to", "3"], [1, 2]),
        (["--reverse", "--limit", "2"], [3, 2]),
        (["--type", "pa.*|placed"], [0, 1]),
        (["--key", "o-1", "--reverse"], [1, 0]),
        (["--match", '{"total": {"$gt": 10}}'], [0]),
        (["--match", '{"total": {"$gt": 12}}'], []),
        (["--match", "{}", "--type", "paid"], []),
        (["--from", "-1h"], [0, 1, 2, 3]),
        (["--to", "-1h"], []),
        (["--from", "latest"], []),
        (["--partition", "0", "--limit", "1"], [0]),
        (["--limit", "0"], []),
    ],
)
@pytest.mark.usefixtures("orders_store")
def test_options_choose_events(run: Run, data: Path, options: list[str], offsets: list[int]) -> None:
    assert [event["offset"] for event in run("read", data, "orders", "--json", *options).objects] == offsets


def test_reading_begins_at_an_id_or_a_time(run: Run, data: Path, orders_store: headwater.Store) -> None:
    second = list(orders_store.read("orders"))[1]
    for place in (str(second.id), second.time.isoformat()):
        assert [event["offset"] for event in run("read", data, "orders", "--json", "--from", place).objects] == [
            1,
            2,
            3,
        ]


@pytest.mark.usefixtures("orders_store")
def test_output_writes_one_event(run: Run, data: Path, tmp_path: Path) -> None:
    assert run("read", data, "orders", "--from", "2", "--output", "-").raw == b"\xff\x00"
    run("read", data, "orders", "--type", "paid", "--output", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"by card"
    assert run("read", data, "orders", "--key", "none", "--output", "-", code=1).err.startswith("error: no such event")
    assert "exclusive" in run("read", data, "orders", "--raw", "--output", "x", code=2).err


def test_several_partitions_need_one_for_an_offset(run: Run, data: Path) -> None:
    run("create", data, "t", "--partitions", "3")
    for key in "abcdef":
        run("append", data, "t", key, "--key", key)
    assert [event["data"] for event in run("read", data, "t", "--json").objects] == list("abcdef")
    assert run("read", data, "t", "--from", "0", code=1).err.endswith("give --partition, or a time\n")
    some = run("read", data, "t", "--from", "0", "--partition", "1", "--json").objects
    assert {event["partition"] for event in some} <= {1}


@pytest.mark.usefixtures("orders_store")
def test_tail_shows_the_last_events(run: Run, data: Path) -> None:
    assert [event["offset"] for event in run("tail", data, "orders", "-n", "2", "--json").objects] == [2, 3]
    assert [event["offset"] for event in run("tail", data, "orders", "--key", "o-1", "--json").objects] == [0, 1]
    assert run("tail", data, "orders", "-n", "0").out == ""


@pytest.mark.usefixtures("orders_store")
def test_tail_f_ends_after_its_timeout(run: Run, data: Path) -> None:
    ran = run("tail", data, "orders", "-f", "-n", "1", "--timeout", "0.01", "--json")
    assert [event["offset"] for event in ran.objects] == [3]
    assert "--timeout needs -f" in run("tail", data, "orders", "--timeout", "1", code=2).err


@pytest.mark.parametrize("command", ["read", "tail"])
@pytest.mark.usefixtures("orders_store")
def test_a_bad_match_says_what_to_write(run: Run, data: Path, command: str) -> None:
    def refused(match: str, *options: str) -> str:
        return run(command, data, "orders", "--match", match, *options, code=1).err

    assert (
        refused("{")
        == 'error: the match is not JSON: Input data was truncated — write it like {"total": {"$gt": 10}}\n'
    )
    assert refused("[]") == 'error: a match is a JSON object — write it like {"total": {"$gt": 10}}\n'
    assert refused('{"a": {"$gtt": 1}}').startswith(
        "error: the operator '$gtt' is unknown — the operators are $eq, $ne, $gt"
    )
    assert '"error": "bad_pattern"' in refused('{"a": {"$regex": "(?=a)"}}', "--json")
    assert '"error": "bad_match"' in refused('{"$not": ' * 50, "--json")


def test_tail_shows_only_what_matches(run: Run, data: Path, orders_store: headwater.Store) -> None:
    orders_store.append("orders", {"total": 30})
    orders_store.append("orders", {"total": 3})
    match = ("--match", '{"total": {"$gte": 12}}', "--json")
    assert [event["offset"] for event in run("tail", data, "orders", *match).objects] == [0, 4]
    assert [event["offset"] for event in run("tail", data, "orders", "-n", "1", *match).objects] == [4]


@pytest.mark.parametrize("command", ["read", "tail", "topics", "info", "check", "repair", "reindex", "seal", "delete"])
def test_commands_that_read_never_create(run: Run, data: Path, command: str) -> None:
    topic = [] if command in ("topics", "info", "check", "repair", "reindex") else ["t"]
    assert run(command, data, *topic, code=1).err == f"error: {data} is not a log — create one: headwater init {data}\n"
    assert not data.exists()


def test_lines_for_a_terminal_are_aligned_and_fit_it(
    orders_store: headwater.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    orders_store.append("orders", "漢字" * 40, type="wide")
    events = list(orders_store.read("orders"))
    aligned = AlignedLines(partitions=1)
    aligned.fit(events)
    lines = [aligned.line(event).decode() for event in events]
    assert lines[1][28:] == "paid     o-1   by card"
    assert lines[4].endswith("漢字…")
    assert lines[3].endswith(r"tab\tand\nnewlin…")
    assert len(lines[3]) == 60


def test_colours_are_there_unless_they_are_not_wanted(
    orders_store: headwater.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = next(orders_store.read("orders"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert b"\x1b[" in AlignedLines(partitions=1).line(event)
    monkeypatch.setenv("NO_COLOR", "1")
    assert b"\x1b[" not in AlignedLines(partitions=1).line(event)


def test_a_preview_cut_inside_a_character_is_still_text(orders_store: headwater.Store) -> None:
    orders_store.append("t", "ä" * 10)
    (event,) = orders_store.read("t")
    assert data_text(event, 5) == "ää"
    assert key_text(None) == ""
