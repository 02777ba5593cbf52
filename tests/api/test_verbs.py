"""The verbs are the same on a directory and on a server: what they return, and what they raise."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headwater
from headwater.errors import (
    Closed,
    Conflict,
    Corrupt,
    Fenced,
    HeadwaterError,
    Invalid,
    NotFound,
    TooLarge,
    Unavailable,
    Unsupported,
)
from headwater.event import Event
from headwater.info import DrainResult
from headwater.limits import MIB
from headwater.remote.reading import RemoteBlob
from tests.server.serving import Server

if TYPE_CHECKING:
    from headwater.store import Store


def datas(events: Iterator[Event]) -> list[bytes | None]:
    return [event.data for event in events]


# Topics


def test_a_topic_is_made_once(opened: Store, topic: str) -> None:
    assert opened.create(topic, partitions=3) is True
    assert opened.create(topic, partitions=3) is False
    assert topic in opened.topics()
    with pytest.raises(Invalid) as failed:
        opened.create(topic, partitions=2)
    assert failed.value.code == "partitions_differ"


def test_splits_are_parts_of_a_topic(opened: Store, topic: str) -> None:
    opened.create(topic, partitions=2)
    for number in range(8):
        opened.append(topic, b"%d" % number * 1000, partition=number % 2)
    time = next(iter(opened.read(topic, partition=0, start=2))).time
    found = opened.splits(topic, split_bytes=1000)
    assert [(each.topic, each.partition, each.start, each.end) for each in found] == [
        (topic, partition, offset, offset + 1) for partition in range(2) for offset in range(4)
    ]
    assert all(each.bytes > 1000 for each in found)
    assert [(each.partition, each.start, each.end) for each in opened.splits(topic, start=[3, 4], end=[4, 4])] == [
        (0, 3, 4)
    ]
    assert [(each.start, each.end) for each in opened.splits(topic, start=time, end=4, partition=0)] == [(2, 4)]
    with pytest.raises(NotFound):
        opened.splits("nothing")
    with pytest.raises(Invalid) as failed:
        opened.splits(topic, start=1)
    assert failed.value.code == "partition_needed"


def test_a_topic_is_described(opened: Store, topic: str) -> None:
    opened.create(topic, partitions=2, segment_bytes=MIB, compression="none", retention_bytes=5 * MIB)
    opened.append(topic, b"x", partition=1)
    found = opened.describe(topic)
    assert (found.name, found.events) == (topic, 1)
    assert [(each.partition, each.start, each.end, each.durable) for each in found.partitions] == [
        (0, 0, 0, 0),
        (1, 0, 1, 1),
    ]
    assert found.settings["segment_bytes"] == MIB
    assert found.settings["retention_bytes"] == 5 * MIB
    assert len(opened.uuid) == 36


@pytest.mark.parametrize("name", ["a/b", "..", "ümläut 日本", "100%", "a?b#c&d=e", " space "])
def test_any_name_is_a_topic(opened: Store, name: str, topic: str) -> None:
    name = name + topic
    opened.append(name, b"x")
    assert name in opened.topics()
    assert [(event.topic, event.data) for event in opened.read(name)] == [(name, b"x")]


def test_a_deleted_topic_is_gone(opened: Store, topic: str) -> None:
    opened.append(topic, b"x")
    opened.delete(topic)
    assert topic not in opened.topics()
    for verb in (opened.describe, opened.read, opened.read_batches, opened.follow, opened.delete, opened.sync):
        with pytest.raises(NotFound) as failed:
            verb(topic)
        assert failed.value.code == "topic_not_found"
    assert opened.append(topic, b"y").offset == 0


# Appending


def test_an_event_comes_back_as_it_was_given(opened: Store, topic: str) -> None:
    meta = {"trace": "1", "name": "Zoë", "quoted": 'a"b\\', "line": "a\r\nb: c"}
    ref = opened.append(topic, {"total": 12}, type="placed ümlaut", key="schlüssel", meta=meta)
    (event,) = opened.read(topic)
    assert (ref.topic, ref.partition, ref.offset, ref.durability) == (topic, 0, 0, "fsync")
    assert (event.topic, event.partition, event.offset) == (topic, 0, 0)
    assert (event.id, event.time, event.ticks, event.node) == (ref.id, ref.time, ref.ticks, ref.node)
    assert (event.type, event.key, event.meta) == ("placed ümlaut", "schlüssel".encode(), meta)
    assert (event.content, event.value, event.data) == ("json", {"total": 12}, b'{"total":12}')


@pytest.mark.parametrize(
    ("data", "content", "expected"),
    [
        (b"", None, ("bytes", b"")),
        (b"\x00\xff\r\n", None, ("bytes", b"\x00\xff\r\n")),
        (bytearray(b"ab"), None, ("bytes", b"ab")),
        ("text ü", None, ("text", "text ü".encode())),
        ("", None, ("text", b"")),
        ([1, [2]], None, ("json", b"[1,[2]]")),
        (b'{"a": 1}', "json", ("json", b'{"a": 1}')),
        (b"[1, 2]", "json", ("json", b"[1, 2]")),
        (b"\x05\x00\x00\x00\x00", "bson", ("bson", b"\x05\x00\x00\x00\x00")),
    ],
)
def test_content_is_kept(opened: Store, topic: str, data: Any, content: Any, expected: tuple[str, bytes]) -> None:
    opened.append(topic, data, content=content)
    opened.append_many(topic, [data, data], content=content)
    assert [(event.content, event.data) for event in opened.read(topic)] == [expected] * 3


@pytest.mark.parametrize("key", [b"", b"\x00\xff&=+%20", b"k" * 1024, "a b"], ids=["none", "odd", "long", "text"])
def test_any_key_is_kept(opened: Store, topic: str, key: bytes | str) -> None:
    opened.create(topic, partitions=4)
    ref = opened.append(topic, b"x", key=key)
    opened.append(topic, b"y", key=b"another")
    encoded = key.encode() if isinstance(key, str) else key
    assert [(event.key, event.data) for event in opened.read(topic, key=key)] == [(encoded, b"x")]
    assert opened.version(topic, key) == ref.offset
    assert opened.version(topic, b"none such") is None


def test_large_meta_is_kept(opened: Store, topic: str) -> None:
    meta = {"long": "ü" * 20_000}
    opened.append(topic, b"x", meta=meta)
    (event,) = opened.read(topic)
    assert event.meta == meta


def test_many_events_are_appended_over_partitions(opened: Store, topic: str) -> None:
    opened.create(topic, partitions=3)
    keys = [f"k{n % 7}" for n in range(100)]
    types = [f"t{n % 3}" for n in range(100)]
    metas = [{"n": str(n)} if n % 2 else None for n in range(100)]
    data = [str(n).encode() for n in range(100)]
    refs = opened.append_many(topic, data, keys=keys, types=types, metas=metas)
    assert len(refs) == 100
    found = {(event.partition, event.offset): event for event in opened.read(topic)}
    for n, ref in enumerate(refs):
        event = found[ref.partition, ref.offset]
        assert (event.data, event.key, event.type) == (data[n], keys[n].encode(), types[n])
        assert (event.meta, event.id) == (metas[n] or {}, ref.id)
    assert len({ref.partition for ref in refs}) > 1


def test_no_events_are_appended_as_none(opened: Store, topic: str) -> None:
    opened.create(topic)
    assert list(opened.append_many(topic, [])) == []
    assert list(opened.read(topic)) == []


def test_events_without_a_key_take_turns(opened: Store, topic: str) -> None:
    opened.create(topic, partitions=3)
    assert {opened.append(topic, b"x").partition for _ in range(9)} == {0, 1, 2}


def test_an_arrow_table_is_appended_and_read(opened: Store, topic: str) -> None:
    count = 20_000
    table = pa.table({"data": [b"%d" % n for n in range(count)], "key": [b"k%d" % (n % 5) for n in range(count)]})
    opened.create(topic, partitions=2)
    refs = opened.append_arrow(topic, table)
    assert (len(refs), refs.durability) == (count, "fsync")
    found = opened.read_arrow(topic, columns=["partition", "offset", "key", "data", "id"])
    assert found.num_rows == count
    assert set(found.column("data").to_pylist()) == set(table.column("data").to_pylist())
    assert opened.read_arrow(topic, columns=["data"], key="k3").num_rows == count // 5
    with pytest.raises(Invalid):
        opened.read_arrow(topic, columns=["nonsense"])


def test_a_version_is_expected(opened: Store, topic: str) -> None:
    first = opened.append(topic, b"1", key="k", expected_version="none")
    opened.append(topic, b"2", key="k", expected_version=first.offset)
    with pytest.raises(Conflict) as failed:
        opened.append(topic, b"3", key="k", expected_version=first.offset)
    assert (failed.value.code, failed.value.version) == ("version_conflict", 1)
    with pytest.raises(Conflict):
        opened.append_many(topic, [b"3", b"4"], keys=["k", "k"], expected_version="none")
    with pytest.raises(Invalid):
        opened.append(topic, b"3", expected_version=1)
    assert len(list(opened.read(topic))) == 2


def test_a_producer_appends_once(opened: Store, topic: str) -> None:
    first = opened.append(topic, b"x", producer=("till ü", 1, 1))
    assert opened.append(topic, b"x", producer=("till ü", 1, 1)) == first
    many = opened.append_many(topic, [b"y", b"z"], producer=("till ü", 1, 2))
    assert list(opened.append_many(topic, [b"y", b"z"], producer=("till ü", 1, 2))) == list(many)
    opened.append(topic, b"new", producer=("till ü", 2, 3))
    with pytest.raises(Fenced) as failed:
        opened.append(topic, b"old", producer=("till ü", 1, 4))
    assert failed.value.epoch == 2
    assert datas(opened.read(topic)) == [b"x", b"y", b"z", b"new"]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"type": "t" * 256}, TooLarge),
        ({"key": b"k" * 1025}, TooLarge),
        ({"meta": {"a": "x" * 70_000}}, TooLarge),
        ({"meta": {"a": 1}}, Invalid),
        ({"content": "yaml"}, Invalid),
        ({"durability": "never"}, Invalid),
        ({"partition": 7}, NotFound),
        ({"producer": ("", 0, 0)}, Invalid),
        ({"producer": ("a", -1, 0)}, Invalid),
        ({"expected_version": -1, "key": b"k"}, Invalid),
        ({"type": "\ud800"}, Invalid),
    ],
)
def test_what_cannot_be_appended_is_refused(
    opened: Store, topic: str, wrong: dict[str, Any], kind: type[HeadwaterError]
) -> None:
    opened.create(topic)
    with pytest.raises(kind):
        opened.append(topic, b"x", **wrong)
    assert list(opened.read(topic)) == []


def test_a_huge_event_is_streamed_in_and_out(opened: Store, topic: str) -> None:
    opened.create(topic, data_bytes_max=64 * MIB)
    piece = bytes(range(256)) * 4096
    ref = opened.append(topic, (piece for _ in range(12)), type="film", key="k", meta={"name": "film"}, content="bytes")
    opened.append(topic, io.BytesIO(piece * 2))
    opened.append(topic, piece * 3)
    huge, second, third = opened.read(topic)
    assert (huge.data, huge.size, huge.type, huge.key) == (None, 12 * MIB, "film", b"k")
    assert (huge.id, huge.meta) == (ref.id, {"name": "film"})
    out = io.BytesIO()
    assert huge.save(out) == 12 * MIB
    assert out.getvalue() == piece * 12
    assert max(len(chunk) for chunk in huge.chunks()) <= MIB
    assert (second.data, third.data) == (piece * 2, piece * 3)


def test_huge_data_that_was_changed_on_its_way_is_refused(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with headwater.open(server.url) as hw:
        hw.append(topic, bytes(3 * MIB))
        whole = RemoteBlob._data
        (event,) = hw.read(topic)
        for wrong, kind in (
            (lambda blob: (piece.replace(b"\0", b"\1", 1) for piece in whole(blob)), Corrupt),
            (lambda blob: list(whole(blob))[:-1], Unavailable),
        ):
            monkeypatch.setattr(RemoteBlob, "_data", wrong)
            assert event.blob is not None
            with pytest.raises(kind):
                list(event.blob.chunks())


def test_data_above_the_limit_of_its_topic_is_refused(opened: Store, topic: str) -> None:
    opened.create(topic, data_bytes_max=1000)
    for data in (b"x" * 1001, io.BytesIO(b"x" * 1001), io.BytesIO(b"x" * 3 * MIB)):
        with pytest.raises(TooLarge) as failed:
            opened.append(topic, data)
        assert failed.value.limit == "data_bytes_max"
    assert list(opened.read(topic)) == []


def test_a_stream_that_fails_appends_nothing(opened: Store, topic: str) -> None:
    def failing() -> Iterator[bytes]:
        yield b"x" * MIB
        yield b"x" * MIB
        raise RuntimeError("the source broke")

    opened.create(topic)
    with pytest.raises(RuntimeError, match="the source broke"):
        opened.append(topic, failing())
    opened.append(topic, b"after")
    assert datas(opened.read(topic)) == [b"after"]


def test_durability_is_what_was_asked_for(opened: Store, topic: str) -> None:
    assert opened.append(topic, b"x", durability="os").durability == "os"
    assert opened.append_many(topic, [b"x"], durability="os").durability == "os"
    opened.sync(topic)
    assert opened.describe(topic).partitions[0].durable == 2


# Transactions


def test_a_transaction_is_all_or_nothing(opened: Store, topic: str) -> None:
    other = f"{topic} too"
    opened.create(other, partitions=2)
    with opened.transaction() as tx:
        tx.append(topic, {"a": 1}, key="k", type="t", meta={"m": "1"}, expected_version="none")
        tx.append(other, b"\xff", partition=1)
        tx.append_many(other, ["x", "y"], types="many")
    assert [(ref.topic, ref.offset) for ref in tx.refs][:2] == [(topic, 0), (other, 0)]
    assert [event.id for event in opened.read(topic)] == [tx.refs[0].id]
    assert (tx.refs[1].partition, len(tx.refs)) == (1, 4)
    (event,) = opened.read(topic)
    assert (event.value, event.key, event.type, event.meta) == ({"a": 1}, b"k", "t", {"m": "1"})
    assert set(datas(opened.read(other, type="many"))) == {b"x", b"y"}
    tx = opened.transaction()
    tx.append(other, b"no")
    tx.append(topic, b"no", key="k", expected_version="none")
    with pytest.raises(Conflict):
        tx.commit()
    with pytest.raises(ZeroDivisionError), opened.transaction() as tx:  # noqa: PT012
        tx.append(other, b"no")
        raise ZeroDivisionError
    assert len(list(opened.read(other))) == 3
    with pytest.raises(Closed):
        tx.append(other, b"late")
    assert opened.transaction().commit() == []


# Reading


@pytest.fixture
def filled_topic(opened: Store, topic: str) -> str:
    """A topic with 60 events in batches of several sizes, in one partition."""
    opened.create(topic)
    for n in range(10):
        opened.append(topic, {"n": n}, type=f"t{n % 3}", key=f"k{n % 4}")
    data = [{"n": n} for n in range(10, 60)]
    opened.append_many(
        topic, data, types=[f"t{n % 3}" for n in range(10, 60)], keys=[f"k{n % 4}" for n in range(10, 60)]
    )
    return topic


def numbers(events: Iterator[Event]) -> list[int]:
    return [event.value["n"] for event in events]


def test_reads_begin_and_end_where_they_are_told(opened: Store, filled_topic: str) -> None:
    everything = list(opened.read(filled_topic))
    assert numbers(iter(everything)) == list(range(60))
    assert numbers(opened.read(filled_topic, start=5, end=12)) == list(range(5, 12))
    assert numbers(opened.read(filled_topic, start=everything[30].id, end=everything[33].id)) == [30, 31, 32]
    middle = everything[8].time + timedelta(microseconds=1)
    assert numbers(opened.read(filled_topic, start=middle))[0] == 9
    assert numbers(opened.read(filled_topic, end=middle))[-1] == 8
    assert numbers(opened.read(filled_topic, start="latest")) == []
    assert numbers(opened.read(filled_topic, start=55, end="latest")) == list(range(55, 60))
    assert numbers(opened.read(filled_topic, reverse=True)) == list(range(59, -1, -1))
    assert numbers(opened.read(filled_topic, start=8, end=13, reverse=True)) == [12, 11, 10, 9, 8]
    assert numbers(opened.read(filled_topic, start=7, end=3)) == []


def test_reads_are_filtered(opened: Store, filled_topic: str) -> None:
    assert numbers(opened.read(filled_topic, type="t1|t9")) == [n for n in range(60) if n % 3 == 1]
    assert numbers(opened.read(filled_topic, key="k2")) == [n for n in range(60) if n % 4 == 2]
    assert numbers(opened.read(filled_topic, match={"n": {"$gt": 50}}, type="t0")) == [51, 54, 57]
    assert numbers(opened.read(filled_topic, match={"n": 44}, reverse=True)) == [44]
    assert numbers(opened.read(filled_topic, type="none")) == []


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"type": "("}, Invalid),
        ({"match": {"$nope": 1}}, Invalid),
        ({"start": -1}, Invalid),
        ({"start": datetime(2025, 1, 1)}, Invalid),  # noqa: DTZ001
        ({"partition": 3}, NotFound),
    ],
)
def test_what_cannot_be_read_is_refused(
    opened: Store, filled_topic: str, wrong: dict[str, Any], kind: type[HeadwaterError]
) -> None:
    with pytest.raises(kind):
        list(opened.read(filled_topic, **wrong))


def test_batches_tell_their_events(opened: Store, filled_topic: str) -> None:
    batches = list(opened.read_batches(filled_topic, start=3))
    assert sum(map(len, batches)) == 57
    assert [offset for batch in batches for offset in batch.offsets().tolist()] == list(range(3, 60))
    assert [event.offset for batch in batches for event in batch.events()] == list(range(3, 60))
    assert {batch.partition for batch in batches} == {0}
    assert batches[-1].to_arrow(["offset", "data"]).num_rows == len(batches[-1])
    picked = list(opened.read_batches(filled_topic, key="k1", reverse=True))
    assert [event.offset for batch in picked for event in batch.reversed()] == list(range(57, 0, -4))


def test_events_of_several_partitions_come_by_time(opened: Store, topic: str) -> None:
    opened.create(topic, partitions=3)
    for n in range(30):
        opened.append(topic, {"n": n}, partition=n * n % 3)
    for n in range(30, 60, 10):
        opened.append_many(topic, [{"n": n + i} for i in range(10)], keys=[f"k{i}" for i in range(10)])
    found = list(opened.read(topic))
    assert len(found) == 60
    assert [event.ticks for event in found] == sorted(event.ticks for event in found)
    assert numbers(iter(found[:30])) == list(range(30))
    assert [event.id for event in opened.read(topic, reverse=True)] == [event.id for event in reversed(found)]
    partitions = [batch.partition for batch in opened.read_batches(topic)]
    assert partitions == sorted(partitions)
    assert {event.partition for event in opened.read(topic, partition=1, start=0)} == {1}
    with pytest.raises(Invalid) as failed:
        list(opened.read(topic, start=3))
    assert failed.value.code == "partition_needed"


def test_events_of_batches_that_overlap_in_time_come_by_time(server: Server, topic: str) -> None:
    with headwater.open(server.url) as hw:
        hw.create(topic, partitions=3)
        for n in range(90):
            hw.append(topic, {"n": n}, partition=n * n % 3, durability="os")
        with headwater.open(server.path) as here:
            assert here.seal(topic) >= 2  # which packs what was appended one by one
        assert len(list(hw.read_batches(topic))) <= 3
        for n in range(90, 120):
            hw.append(topic, {"n": n}, partition=n % 2, durability="os")
        assert numbers(hw.read(topic)) == list(range(120))
        assert numbers(hw.read(topic, reverse=True)) == list(range(119, -1, -1))


def test_a_read_can_be_left(opened: Store, filled_topic: str) -> None:
    for _ in range(40):
        events = opened.read(filled_topic)
        assert next(events).offset == 0
        del events
    assert opened.version(filled_topic, "k1") == 57


def test_deleted_events_are_gone(opened: Store, topic: str) -> None:
    opened.create(topic, segment_bytes=4096)
    for n in range(6):
        opened.append(topic, bytes([n]) * 3000)
    would = opened.retain(topic, before=4, dry_run=True)
    deleted = opened.retain(topic, before=4)
    # Not their bytes: what is finished is packed and indexed meanwhile.
    assert [(each.first, each.end) for each in would] == [(each.first, each.end) for each in deleted]
    assert deleted[0].first == 0
    oldest = deleted[-1].end
    with pytest.raises(NotFound) as failed:
        list(opened.read(topic, start=0))
    assert (failed.value.code, failed.value.oldest) == ("offset_gone", oldest)
    assert next(opened.read(topic)).offset == oldest
    opened.retain(topic, retention_segments=1)
    assert opened.describe(topic).settings["retention_segments"] == 1
    with pytest.raises(Invalid):
        opened.retain(topic, before=datetime(2025, 1, 1))  # noqa: DTZ001


# Following


def test_following_brings_what_is_there_and_what_comes(opened: Store, topic: str) -> None:
    opened.append(topic, b"0", type="a")
    follower = opened.follow(topic, start="earliest", timeout=20)
    assert next(follower).data == b"0"
    writer = threading.Thread(target=lambda: [opened.append(topic, b"%d" % n, type="a") for n in range(1, 6)])
    writer.start()
    assert [next(follower).data for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]
    writer.join()
    follower.stop()
    assert list(follower) == []


def test_a_follower_begins_where_the_log_ends_at_the_call(opened: Store, topic: str) -> None:
    opened.create(topic, partitions=2)
    opened.append(topic, b"before")
    with opened.follow(topic, timeout=20) as follower:
        opened.append(topic, b"after")
        assert next(follower).data == b"after"


def test_following_is_filtered(opened: Store, topic: str) -> None:
    opened.create(topic)
    follower = opened.follow(topic, type="b", key="k", match={"n": {"$gte": 2}}, timeout=20)
    for n in range(5):
        opened.append(topic, {"n": n}, type="b" if n % 2 == 0 else "a", key="k")
    assert [next(follower).value["n"] for _ in range(2)] == [2, 4]
    follower.stop()


def test_following_ends_after_its_timeout(opened: Store, topic: str) -> None:
    opened.append(topic, b"x")
    began = datetime.now(UTC)
    assert datas(opened.follow(topic, start="earliest", timeout=0.2)) == [b"x"]
    assert timedelta(seconds=0.2) <= datetime.now(UTC) - began < timedelta(seconds=15)
    assert datas(opened.follow(topic, timeout=0)) == []
    follower = opened.follow(topic, start="earliest", timeout=0)
    assert datas(follower) == [b"x"]  # what is there is not waited for
    opened.append(topic, b"y")
    assert next(opened.follow(topic, start=1, timeout=20)).data == b"y"


def test_a_follower_that_ended_can_be_asked_again(opened: Store, topic: str) -> None:
    opened.create(topic)
    follower: Any = opened.follow(topic, timeout=0.1)
    for n in range(3):
        assert datas(follower) == []
        opened.append(topic, b"%d" % n)
        assert next(iter(opened.read(topic, start=n))).offset == n
        follower._timeout = 20
        assert next(follower).data == b"%d" % n
        follower._timeout = 0.1


def test_following_is_stopped_from_another_thread(opened: Store, topic: str) -> None:
    opened.create(topic)
    follower = opened.follow(topic)
    ended = threading.Event()

    def iterate() -> None:
        assert list(follower) == []
        ended.set()

    threading.Thread(target=iterate, daemon=True).start()
    assert not ended.wait(0.1)
    follower.stop()
    assert ended.wait(20)


def test_following_ends_when_the_log_is_closed(address: str, topic: str) -> None:
    hw = headwater.open(address)
    hw.create(topic)
    follower = hw.follow(topic)
    ended = threading.Event()

    def iterate() -> None:
        assert list(follower) == []
        ended.set()

    threading.Thread(target=iterate, daemon=True).start()
    assert not ended.wait(0.1)
    hw.close()
    assert ended.wait(20)
    with pytest.raises(Closed):
        hw.topics()


def test_following_a_topic_that_is_deleted_raises(opened: Store, topic: str) -> None:
    opened.create(topic)
    follower = opened.follow(topic, timeout=20)
    opened.delete(topic)
    with pytest.raises(NotFound):
        next(follower)


def test_following_does_not_go_on_in_another_topic_of_the_same_name(opened: Store, topic: str) -> None:
    opened.append(topic, b"old")
    follower = opened.follow(topic, start="earliest", timeout=20)
    assert next(follower).data == b"old"
    opened.delete(topic)
    opened.append_many(topic, [b"new"] * 5)
    with pytest.raises(NotFound):
        next(follower)


# Transfers


def test_a_topic_goes_through_a_file(opened: Store, topic: str, tmp_path: Path) -> None:
    opened.append_many(topic, [{"n": n} for n in range(100)], keys=[f"k{n}" for n in range(100)])
    file = tmp_path / "events.jsonl"
    assert opened.export(topic, file) == 100
    copy = f"{topic} copy"
    assert opened.import_(copy, file) == 100
    assert [(event.key, event.data) for event in opened.read(copy)] == [
        (event.key, event.data) for event in opened.read(topic)
    ]
    assert opened.export(topic, tmp_path / "some.parquet", key="k7") == 1


# Closing


def test_a_closed_log_refuses_everything(address: str, topic: str) -> None:
    hw = headwater.open(address)
    hw.append(topic, b"x")
    hw.close()
    hw.close()
    for ask in (
        hw.topics,
        lambda: hw.append(topic, b"y"),
        lambda: list(hw.read(topic)),
        lambda: hw.describe(topic),
        lambda: hw.transaction().append(topic, b"z"),
    ):
        with pytest.raises(Closed):
            ask()


# What a server does not do


def test_what_needs_the_directory_says_where_to_run_it(server: Server) -> None:
    with headwater.open(server.url) as hw:
        for verb in ("check", "repair", "reindex", "seal"):
            with pytest.raises(Unsupported) as failed:
                getattr(hw, verb)("orders")
            assert failed.value.hint == f"run 'headwater {verb}' where the directory is"


# Consumers


def test_a_consumer_goes_on_where_its_acks_ended(opened: Store, filled_topic: str) -> None:
    with opened.consumer("billing", filled_topic, timeout=20) as consumer:
        for event in consumer:
            if event.value["n"] == 12:
                break
            consumer.ack(event)
        consumer.flush()
        (info,) = opened.consumers(filled_topic)
        assert (info.name, info.topic, info.cursor, info.end, info.lag) == ("billing", filled_topic, 12, 60, 48)
    with opened.consumer("billing", filled_topic, type="t0", timeout=20) as consumer:
        assert next(consumer).value["n"] == 12
        assert consumer.drain(lambda _: None) >= 1
    assert opened.seek("billing", filled_topic, 7) == {0: 7}
    assert opened.consumers(filled_topic)[0].cursor == 7
    opened.forget("billing", filled_topic)
    assert opened.consumers(filled_topic) == []
    for ask in (lambda: opened.seek("billing", filled_topic, 0), lambda: opened.forget("billing", filled_topic)):
        with pytest.raises(NotFound) as failed:
            ask()
        assert failed.value.code == "consumer_not_found"


def test_draining_handles_what_waits_and_tells_of_more(opened: Store, filled_topic: str) -> None:
    seen: list[int] = []

    def handle(event: Event) -> None:
        seen.append(event.offset)
        if event.offset == 10:
            opened.append(filled_topic, {"n": 60})

    assert opened.drain("billing", filled_topic, handle) == DrainResult(60, True)
    assert seen == list(range(60))
    assert opened.drain("billing", filled_topic, handle, seconds=20) == DrainResult(1, False)
    assert opened.consumers(filled_topic)[0].owner is None
    assert opened.drain("billing", filled_topic, handle, seconds=0) == DrainResult(0, False)
    opened.append(filled_topic, {"n": 61})
    assert opened.drain("billing", filled_topic, handle, seconds=0) == DrainResult(0, True)


def test_acks_and_appends_are_one_transaction(opened: Store, filled_topic: str) -> None:
    with opened.consumer("mover", filled_topic, timeout=20) as consumer:
        event = next(consumer)
        with opened.transaction() as tx:
            tx.append(f"{filled_topic} moved", event.data or b"")
            tx.ack(event)
    assert opened.consumers(filled_topic)[0].cursor == 1
    assert datas(opened.read(f"{filled_topic} moved")) == [b'{"n":0}']


def test_what_fails_is_set_aside_and_replayed(opened: Store, topic: str) -> None:
    opened.append(topic, b"poison")
    with opened.consumer("c", topic, timeout=20, failures_max=1) as consumer:
        assert consumer.fail(next(consumer), "it does not work") is True
    (dead,) = opened.read(f"{topic}.dead")
    assert dead.data == b"poison"
    assert opened.replay(topic) == 1
    assert datas(opened.read(topic)) == [b"poison", b"poison"]
