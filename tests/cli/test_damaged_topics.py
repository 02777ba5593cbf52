"""One topic, or one consumer, is damaged: it is listed with the reason, and everything else goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import headwater
from headwater.format import names
from tests.cli.conftest import Run
from tests.replica.copies import copy_once
from tests.server.serving import serving

TOPICS = ("good", "odd/ñame", "zebra")


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"uuid":"', b'"uuid":"x', 1))


def unsupported(path: Path) -> None:
    """As a later version might write it."""
    import crc32c
    import msgspec

    plain = msgspec.json.decode(path.read_bytes())
    del plain["crc"]
    plain["format"] = 99
    crc = f"{crc32c.crc32c(msgspec.json.encode(plain, order='sorted')):08x}"
    path.write_bytes(msgspec.json.encode(plain | {"crc": crc}, order="sorted") + b"\n")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "spoiled": spoil,
    "of a later version": unsupported,
    "empty": lambda path: path.write_bytes(b""),
    "missing": Path.unlink,
}


def topic_file(data: Path, topic: str) -> Path:
    return data / "topics" / names.directory_of(topic) / "topic.json"


@pytest.fixture
def filled(run: Run, data: Path) -> Path:
    for topic in TOPICS:
        run("append", data, topic, "a", "--quiet")
        run("consume", data, topic, "reader", "--drain")
    return data


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("topic", TOPICS[1:])
def test_a_damaged_topic_is_listed_with_the_reason_and_the_others_go_on(
    run: Run, filled: Path, topic: str, how: str
) -> None:
    DAMAGE[how](topic_file(filled, topic))
    healthy = [name for name in TOPICS if name != topic]
    for name in healthy:
        run("append", filled, name, "more", "--quiet")
        assert len(run("read", filled, name, "--json").lines) == 2

    listed = {row["topic"]: row for row in run("topics", filled, "--json", code=1).objects}
    assert set(listed) == set(TOPICS)
    assert listed[topic]["error"] in ("corrupt", "unsupported")
    assert "topic.json" in listed[topic]["message"]
    assert "topic.json" in run("topics", filled, code=1).out

    (told,) = run("info", filled, "--json", code=1).objects
    assert [each["name"] for each in told["topics"]] == healthy
    assert [each["topic"] for each in told["failed"]] == [topic]
    assert f"✗ {topic}: " in run("info", filled, code=1).out
    assert run("info", filled, "good").out

    rows = run("consumers", filled, "--json", code=1).objects
    assert sorted(row["topic"] for row in rows if row["error"] is None) == healthy
    (damaged,) = [row for row in rows if row["error"] is not None]
    assert damaged["topic"] == topic
    assert f"✗ topic {topic}: " in run("consumers", filled, code=1).out

    for verb in ("read", "info", "seal"):
        assert "topic.json" in run(verb, filled, topic, code=1).err
    assert "topic.json" in run("append", filled, topic, "x", code=1).err


@pytest.mark.parametrize("how", DAMAGE)
def test_check_and_repair_say_the_same_of_a_damaged_topic(run: Run, filled: Path, how: str) -> None:
    DAMAGE[how](topic_file(filled, "zebra"))
    log = filled / "topics/good/0/00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1] + b"x")
    damage = [found for found in run("check", filled, "--json", code=1).objects[0]["findings"] if found["damage"]]
    assert {found["topic"] for found in damage} == {"good", "zebra"}

    planned = run("repair", filled, code=1)
    assert "✗ by hand  zebra" in planned.out
    assert "--apply' applies this" in planned.lines[-2]  # of the other one
    assert planned.lines[-1] == "✗ 1 step must be done by hand"

    applied = run("repair", filled, "--apply", code=1)
    assert "✓ done  good/0" in applied.out
    assert "✗ by hand  zebra" in applied.out
    assert applied.lines[-1] == "✗ 1 step must be done by hand"

    damage = [found for found in run("check", filled, "--json", code=1).objects[0]["findings"] if found["damage"]]
    assert {found["topic"] for found in damage} == {"zebra"}
    alone = run("repair", filled, code=1)
    assert "--apply" not in alone.out  # which would do nothing
    assert [step["manual"] for step in run("repair", filled, "--json", code=1).objects] == [True]
    assert run("reindex", filled, code=1).err.count("topic.json") == 1
    assert run("reindex", filled, "good").out


def test_a_server_lists_a_damaged_topic_and_serves_the_others(filled: Path) -> None:
    spoil(topic_file(filled, "zebra"))
    with serving(filled) as server:
        http = server.http
        assert http.get("/topics").raise_for_status().json() == list(TOPICS)
        http.post("/topic/good/items", content=b"x").raise_for_status()
        assert len(http.get("/topic/good/items").raise_for_status().text) > 0
        answer = http.get("/topic/zebra")
        assert (answer.status_code, answer.json()["code"]) == (500, "corrupt")
        rows = http.get("/consumers").raise_for_status().json()
        assert {row["topic"]: row["error"] is None for row in rows} == {"good": True, "odd/ñame": True, "zebra": False}
        assert "headwater_scrape_errors 1" in http.get("/metrics").raise_for_status().text
        with headwater.open(server.url) as hw:
            assert hw.topics() == list(TOPICS)
            with pytest.raises(headwater.Corrupt):
                hw.describe("zebra")


@pytest.mark.parametrize("damage", ["header", "slots", "cut off"])
def test_a_damaged_consumer_is_listed_with_the_reason_and_the_others_go_on(run: Run, filled: Path, damage: str) -> None:
    run("consume", filled, "good", "second", "--drain")
    path = filled / "consumers/reader/good"
    stored = path.read_bytes()
    spoilt = {"header": b"x" + stored[1:], "slots": stored[:-256] + bytes(256), "cut off": stored[:20]}
    path.write_bytes(spoilt[damage])
    rows = run("consumers", filled, "--json", code=1).objects
    sound = {(row["name"], row["topic"]) for row in rows if row["error"] is None}
    assert sound == {("second", "good"), ("reader", "odd/ñame"), ("reader", "zebra")}
    (damaged,) = [row for row in rows if row["error"] is not None]
    assert (damaged["name"], damaged["topic"]) == ("reader", "good")
    assert str(path) in damaged["error"]
    assert "✗ consumer reader of topic good: " in run("consumers", filled, "good", code=1).out
    assert run("consume", filled, "good", "reader", "--drain", code=1).err
    run("consume", filled, "zebra", "reader", "--drain")
    run("forget", filled, "good", "reader", "--yes")
    assert len(run("consumers", filled, "--json").lines) == 3


def test_a_damaged_record_of_a_topic_in_a_bucket_stays_its_own(run: Run, tmp_path: Path) -> None:
    url = f"objects://{tmp_path}/bucket"
    for topic in TOPICS:
        run("append", url, topic, "a", "--quiet")
        run("consume", url, topic, "reader", "--drain")
    (tmp_path / "bucket/topics/zebra/topic").write_bytes(b"damaged")
    run("append", url, "good", "more", "--quiet")
    listed = {row["topic"]: row.get("error") for row in run("topics", url, "--json", code=1).objects}
    assert listed == {"good": None, "odd/ñame": None, "zebra": "corrupt"}
    assert run("info", url, "--json", code=1).objects[0]["failed"][0]["topic"] == "zebra"
    rows = run("consumers", url, "--json", code=1).objects
    assert {row["topic"]: row["error"] is None for row in rows} == {"good": True, "odd/ñame": True, "zebra": False}
    assert run("maintain", url, code=1).err
    assert run("check", url, code=1).out


@pytest.mark.parametrize("side", ["source", "replica"])
def test_a_damaged_topic_is_not_replicated_and_the_others_are(
    run: Run, filled: Path, tmp_path: Path, side: str
) -> None:
    replica = tmp_path / "replica"
    copy_once(filled, replica)
    spoil(topic_file(filled if side == "source" else replica, "odd/ñame"))
    run("append", filled, "good", "more", "--quiet")
    run("append", filled, "zebra", "more", "--quiet")
    with pytest.raises(headwater.HeadwaterError, match=r"topic\.json"):
        copy_once(filled, replica, delete=True)
    with headwater.open(replica, mode="existing") as hw:
        assert [len(list(hw.read(topic))) for topic in ("good", "zebra")] == [2, 2]
        assert "odd/ñame" in hw.topics()  # not deleted: the source does not say that it is
