"""A replica has the batches of its source: the same offsets, times, ids and producers, from anywhere, in any state."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater.disk.disk import Clock, Disk
from headwater.event import ticks_and_node
from headwater.format.replication import LogRequest
from headwater.limits import DEFAULTS
from headwater.opening import directory_parts, open_directory
from headwater.replication.destination import ReplicaDirectory, SourceError, take
from headwater.replication.replicator import Replicator
from headwater.store import Store
from tests.replica.copies import copy_once, events, replicating, same, wait_for_events
from tests.server.serving import Server, serving


class Lying:
    """A source whose huge events have this data."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = data

    def blob(self, *_: object) -> Lying:
        return self

    def chunks(self) -> Iterator[bytes]:
        yield self._data


class ReadOnly(Disk):
    """As on read-only media; whoever runs the tests may be allowed everything."""

    refused = 0

    def open_write(self, path: Path) -> int:
        self.refused += 1
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    def create(self, path: Path) -> int:
        return self.open_write(path)

    def writable(self, path: Path) -> bool:  # noqa: ARG002  # none is
        return False


def fill(path: Path | str) -> None:
    """Events of all kinds: contents, keys, types, meta, batches, partitions, zstd, a huge one, a transaction."""
    with headwater.open(path) as hw:
        hw.create("orders", partitions=3, segment_bytes=16_384)
        hw.create("packed", compression="zstd", retention_bytes=1 << 30)
        for n in range(60):
            hw.append("orders", {"n": n}, key=f"o-{n}", type="placed" if n % 3 else "paid", meta={"n": str(n)})
        hw.append_many("orders", [b"%d" % n * 40 for n in range(300)], keys=[str(n) for n in range(300)])
        hw.append_many("packed", ["text " * 100] * 200, types=["a", "b"] * 100)
        hw.append("packed", b"")
        hw.append("huge", (bytes([n]) * 700_000 for n in range(5)), type="film", key="f")
        hw.append("huge", "after it")
        with hw.transaction(producer=("shop", 1, 1)) as tx:
            tx.append("orders", "one", key="x")
            tx.append("packed", "two")


@pytest.mark.parametrize("source", ["directory", "server"])
def test_every_event_is_the_same_wherever_the_source_is(source: str, tmp_path: Path) -> None:
    fill(tmp_path / "source")
    if source == "directory":
        copy_once(tmp_path / "source", tmp_path / "replica")
    else:
        with serving(tmp_path / "source") as server:
            copy_once(server.url, tmp_path / "replica")
    assert same(tmp_path / "source", tmp_path / "replica") == 565


def test_the_batches_are_the_same_bytes(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "source") as hw:
        hw.create("t", compression="zstd")
        for n in range(5):
            hw.append_many("t", [b"x" * 100] * (n + 1), producer=("p", 0, n))
    copy_once(tmp_path / "source", tmp_path / "replica")
    name = "topics/t/0/00000000000000000000.log"
    stored = [(tmp_path / each / name).read_bytes()[64:].rstrip(b"\0") for each in ("source", "replica")]
    assert stored[0] == stored[1]


def test_a_sealed_source_is_copied_as_it_is_packed(tmp_path: Path) -> None:
    fill(tmp_path / "source")
    with headwater.open(tmp_path / "source") as hw:
        assert all(hw.seal(topic) for topic in hw.topics())
    copy_once(tmp_path / "source", tmp_path / "replica")
    same(tmp_path / "source", tmp_path / "replica")


def test_a_batch_that_was_packed_around_the_end_of_the_replica_is_cut_there(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "source") as hw:
        for n in range(50):
            hw.append("t", f"event {n}", key=f"k{n % 7}", type=f"t{n % 3}", meta={"n": str(n)})
        copy_once(tmp_path / "source", tmp_path / "replica")
        for n in range(50, 80):
            hw.append("t", f"event {n}")
        hw.seal("t")
        assert len(list(hw.read_batches("t"))) == 1
    copy_once(tmp_path / "source", tmp_path / "replica")
    assert same(tmp_path / "source", tmp_path / "replica") == 80


def test_lost_events_stay_lost(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "source") as hw:
        for n in range(9):
            hw.append("t", b"%d" % n * 100)
    log = tmp_path / "source/topics/t/0/00000000000000000000.log"
    stored = bytearray(log.read_bytes())
    at = stored.index(b"4" * 100)
    stored[at] ^= 1
    log.write_bytes(stored)
    with headwater.open(tmp_path / "source") as hw:
        assert hw.repair("t", apply=True)
    copy_once(tmp_path / "source", tmp_path / "replica")
    assert same(tmp_path / "source", tmp_path / "replica") == 8
    with headwater.open(tmp_path / "replica") as hw:
        assert [event.offset for event in hw.read("t")] == [0, 1, 2, 3, 5, 6, 7, 8]


def test_what_the_source_has_only_in_its_archive_is_copied(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "source") as hw:
        hw.create("t", segment_bytes=4096)
        for n in range(100):
            hw.append("t", b"%d" % n * 40, producer=("p", 0, n))
        hw.append("t", iter([b"h" * 2_000_000]))
        hw.archive(f"objects://{tmp_path / 'archive'}", seal=True)
        assert hw.retain("t", retention_segments=1)
        hw.append("t", "last")
    copy_once(tmp_path / "source", tmp_path / "replica")
    assert same(tmp_path / "source", tmp_path / "replica") == 102
    shutil.rmtree(tmp_path / "archive")
    assert len(events(tmp_path / "replica", "t")) == 102, "it needs no archive"


def test_new_topics_and_events_come_as_they_are_made(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "source") as hw:
        hw.append("first", "1")
        with replicating(hw.replication(), tmp_path / "replica"):
            wait_for_events(tmp_path / "replica", "first", 1)
            hw.append("first", "2")
            wait_for_events(tmp_path / "replica", "first", 2)
            hw.create("second", partitions=2)
            hw.append_many("second", ["a", "b", "c"], keys=["a", "b", "c"])
            wait_for_events(tmp_path / "replica", "second", 3)
    same(tmp_path / "source", tmp_path / "replica")


def test_only_the_named_topics_are_copied(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "source") as hw:
        for topic in ("a", "b", "c"):
            hw.append(topic, topic)
    copy_once(tmp_path / "source", tmp_path / "replica", topics=["a", "c"])
    with headwater.open(tmp_path / "replica") as hw:
        assert hw.topics() == ["a", "c"]
    with pytest.raises(headwater.NotFound, match="'d' at the source"):
        copy_once(tmp_path / "source", tmp_path / "replica", topics=["a", "d"])


def test_a_source_that_can_only_be_read_is_copied_with_its_producers(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "source") as hw:
        first = hw.append("t", "1", producer=("p", 0, 1))
        hw.seal("t")
        hw.append("t", "2")
    paths = sorted((tmp_path / "source").rglob("*"))
    disk = ReadOnly()
    with open_directory(tmp_path / "source", create=False, disk=disk) as source:
        Replicator(source.replication(), tmp_path / "replica", directory_parts, address="source").run(once=True)
    assert sorted((tmp_path / "source").rglob("*")) == paths
    assert disk.refused > 0
    headwater.promote(tmp_path / "replica")
    with headwater.open(tmp_path / "replica") as hw:
        assert hw.append("t", "1", producer=("p", 0, 1)).offset == first.offset


def test_events_without_durability_are_synced_at_the_source_before_they_are_copied(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "source", durability="os") as hw:
        hw.append("t", "1")
        assert hw.describe("t").partitions[0].durable == 0
        with replicating(hw.replication(), tmp_path / "replica"):
            wait_for_events(tmp_path / "replica", "t", 1)
            hw.append("t", "2")
            wait_for_events(tmp_path / "replica", "t", 2)
        assert hw.describe("t").partitions[0].durable == 2


def test_what_a_topic_keeps_is_changed_as_at_the_source(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "source") as hw:
        hw.append("t", "1")
        copy_once(tmp_path / "source", tmp_path / "replica")
        hw.retain("t", retention_segments=7, retention_age_ms=10_000_000)
    copy_once(tmp_path / "source", tmp_path / "replica")
    same(tmp_path / "source", tmp_path / "replica")


def test_a_topic_begins_where_the_source_begins(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "source") as hw:
        hw.create("t", segment_bytes=4096, retention_segments=2)
        for n in range(200):
            hw.append("t", b"%d" % n * 40)
        hw.retain("t")
        start = hw.describe("t").partitions[0].start
        assert start > 0
    copy_once(tmp_path / "source", tmp_path / "replica")
    same(tmp_path / "source", tmp_path / "replica")
    with headwater.open(tmp_path / "replica") as hw:
        assert hw.describe("t").partitions[0].start == start
        with pytest.raises(headwater.NotFound, match="oldest is"):
            list(hw.read("t", start=start - 1))


def test_what_the_source_deletes_goes_here_too_and_nothing_before_that(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "source") as hw:
        hw.create("t", segment_bytes=4096)
        for n in range(200):
            hw.append("t", b"%d" % n * 40)
        copy_once(tmp_path / "source", tmp_path / "replica")
        assert events(tmp_path / "replica", "t")[0][2] == 0
        hw.retain("t", retention_segments=2)
        start = hw.describe("t").partitions[0].start
        copy_once(tmp_path / "source", tmp_path / "replica")
    first = events(tmp_path / "replica", "t")[0][2]
    assert 0 < first <= start


def test_a_replica_keeps_what_its_source_keeps_whatever_its_topics_say(tmp_path: Path) -> None:
    """At the source a consumer has not passed what the topic need not keep; here there is no such consumer."""
    with headwater.open(tmp_path / "source") as hw:
        hw.create("t", segment_bytes=4096, retention_segments=2, retention_consumers=True)
        with hw.consumer("slow", "t"):
            pass
        for n in range(200):
            hw.append("t", b"%d" % n * 40)
        assert not hw.retain("t")
        copy_once(tmp_path / "source", tmp_path / "replica")
        assert same(tmp_path / "source", tmp_path / "replica") == 200
    headwater.promote(tmp_path / "replica")
    with headwater.open(tmp_path / "replica") as hw:
        assert hw.retain("t"), "from now on its own settings count"


def test_huge_data_that_is_not_what_its_batch_says_is_not_taken(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "source") as hw:
        hw.append("t", iter([b"x" * 2_000_000]))
        copy_once(tmp_path / "source", tmp_path / "replica", topics=[])
        state = hw.replication().topics()[0]
        batches = list(hw.directory.partition_log("t", 0).stored(0, 1))
    with contextlib.closing(ReplicaDirectory(tmp_path / "replica", directory_parts, DEFAULTS, Disk(), Clock())) as here:
        (log,) = here.adopt(state).logs
        for wrong in (b"y" * 2_000_000, b"x" * 1_999_999, b""):
            with pytest.raises(SourceError, match="does not match its batch"):
                take(log, batches, Lying(wrong))  # type: ignore[arg-type]  # all that it is asked for
        assert log.end() == 0
        assert list(log.place.spool.iterdir()) == []
        take(log, batches, Lying(b"x" * 2_000_000))  # type: ignore[arg-type]  # as above
        assert log.end() == 1


def test_a_replica_that_fell_behind_says_so_and_begins_anew_when_it_is_told_to(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "source") as hw:
        hw.create("t", segment_bytes=4096)
        for n in range(100):
            hw.append("t", b"%d" % n * 40)
        hw.append("other", b"0")
        copy_once(tmp_path / "source", tmp_path / "replica")
        for n in range(200):
            hw.append("t", b"%d" % n * 40)
        hw.append("other", b"1")
        hw.retain("t", retention_segments=2)
    with pytest.raises(headwater.Conflict, match="--restart-topic t") as caught:
        copy_once(tmp_path / "source", tmp_path / "replica")
    assert caught.value.code == "fell_behind"
    assert len(events(tmp_path / "replica", "t")) == 100, "what it has is left"
    assert len(events(tmp_path / "replica", "other")) == 2, "the others go on"
    copy_once(tmp_path / "source", tmp_path / "replica", restart=["t"])
    same(tmp_path / "source", tmp_path / "replica")


def test_a_replica_whose_last_event_is_deleted_at_the_source_just_now_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with headwater.open(tmp_path / "source") as hw:
        assert isinstance(hw, Store)
        first = hw.append("t", "copied")
        opened = hw.directory.opened("t")
        topic, [log] = opened.topic, opened.logs
        log.roll(tell=False)
        hw.append("t", "next")
        hw.retain("t", before=1)
        monkeypatch.setattr(log, "start", lambda: 0)  # as it was when the source looked
        ticks = ticks_and_node(first.id)[0]
        [share] = hw.replication().more([LogRequest("t", topic.uuid, 0, 1, ticks)], 1000, 0).shares
        assert (share.state, share.end, share.size > 0) == ("ok", 2, True)
        [share] = hw.replication().more([LogRequest("t", topic.uuid, 0, 0)], 1000, 0).shares
        assert (share.state, share.start) == ("behind", 1)


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_was_deleted_at_the_source_is_left_unless_it_is_to_be_deleted(again: bool, tmp_path: Path) -> None:
    with headwater.open(tmp_path / "source") as hw:
        hw.append("t", "old")
        hw.append("other", "1")
        copy_once(tmp_path / "source", tmp_path / "replica")
        hw.delete("t")
        if again:
            hw.append("t", "new")
        hw.append("other", "2")
        with pytest.raises(headwater.Conflict, match="--delete") as caught:
            copy_once(tmp_path / "source", tmp_path / "replica")
        assert caught.value.code == "topic_deleted"
        assert [event[7] for event in events(tmp_path / "replica", "t")] == [b"old"]
        assert len(events(tmp_path / "replica", "other")) == 2
        copy_once(tmp_path / "source", tmp_path / "replica", delete=True)
    same(tmp_path / "source", tmp_path / "replica")


def test_a_source_that_was_set_back_is_not_followed(tmp_path: Path) -> None:
    """As after a restore from a backup: it has other events at offsets that the replica has."""
    with headwater.open(tmp_path / "source") as hw:
        hw.append("t", "1")
        hw.append("u", "1")
    shutil.copytree(tmp_path / "source", tmp_path / "backup")
    with headwater.open(tmp_path / "source") as hw:
        hw.append("t", "2")
        hw.append("u", "2")
        copy_once(tmp_path / "source", tmp_path / "replica")
    with headwater.open(tmp_path / "backup") as hw:
        hw.append("t", "another")
        hw.append("t", "and one more")
    for topic in ("t", "u"):  # one is as long or longer, the other shorter
        with pytest.raises(headwater.Conflict, match="backup") as caught:
            copy_once(tmp_path / "backup", tmp_path / "replica", topics=[topic])
        assert caught.value.code == "diverged"
    assert [event[7] for event in events(tmp_path / "replica", "t")] == [b"1", b"2"]


def test_a_damaged_topic_of_the_source_does_not_stop_the_others(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "source") as hw:
        hw.append("bad", b"y" * 100)
        hw.append("good", b"x")
    log = tmp_path / "source/topics/bad/0/00000000000000000000.log"
    stored = bytearray(log.read_bytes())
    stored[stored.index(b"y" * 100)] ^= 1
    log.write_bytes(stored)
    with pytest.raises(headwater.Corrupt):
        copy_once(tmp_path / "source", tmp_path / "replica")
    assert len(events(tmp_path / "replica", "good")) == 1
    assert events(tmp_path / "replica", "bad") == []


def test_a_user_gets_the_topics_that_it_may_read(server: Server) -> None:
    listed = server.http.get("/replication/topics")
    assert listed.status_code == 200
    asked = {"logs": [{"topic": "nothing", "uuid": "x", "partition": 0, "offset": 0}]}
    assert server.http.post("/replication/batches", json=asked).status_code == 200
    assert server.http.post("/replication/batches", json={"logs": 1}).status_code == 400
