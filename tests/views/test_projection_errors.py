"""What goes wrong around a projection, and what is told: folds that raise or end their process, topics and files that
come and go, others who write (docs/VIEWS.md, "Errors").
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headwater.disk.disk import Disk
from headwater.errors import HeadwaterError, Unavailable
from headwater.event import Event
from headwater.limits import QUARANTINED_MAX, Limits
from headwater.opening import open_directory
from headwater.store import Store
from headwater.views import database
from headwater.views.app import App
from headwater.views.document_fold import DocumentFold
from headwater.views.files import Files
from headwater.views.runner import Runner
from tests.log.children import Child
from tests.views import seen
from tests.views.test_projections import SETTLE_S, app_of, count
from tests.waiting import wait_for

LIMITS = Limits(lease_ms=100, ack_ms=1)


@pytest.fixture
def limits() -> Limits:
    return LIMITS


def refusing(*offsets: int, partition: int = 0) -> Callable[[Any, Event], Any]:
    def fold(doc: Any, event: Event) -> Any:
        if event.offset in offsets and event.partition == partition:
            raise ValueError(f"no {event.offset}")
        return count(doc, event)

    return fold


# A fold that raises


def test_a_fold_that_raises_stops_its_projection_at_that_event_and_no_other(hw: Store) -> None:
    hw.append_many("t", [b""] * 5, keys=list("abcab"), types=["v", "w", "x", "y", "z"])
    app = app_of(refusing(3))
    app.projection("t", "others", name="others")(count)
    with app.running(hw) as runner:
        with pytest.raises(Unavailable, match="offset 3 of partition 0: ValueError: no 3") as stopped:
            runner.settle(SETTLE_S)
        assert stopped.value.code == "projection_stopped"
        hw.append("t", b"", key="a")
        wait_for(lambda: seen.cursors(hw, "others", "others") == {0: 6})
    assert seen.data(hw, "others")["a"]["n"] == 3
    assert {id: version for id, (version, _) in seen.documents(hw, "b").items()} == {"a": 0, "b": 1, "c": 2}
    assert seen.cursors(hw, "b", "p") == {0: 3}
    told = seen.error(hw, "b", "p")
    assert (told.topic, told.partition, told.offset, told.type) == ("t", 0, 3, "y")
    assert "raise ValueError" in told.trace
    assert seen.row(hw, "b", "p").state == "stopped"


def test_a_restart_tries_again_what_stopped_a_projection(hw: Store) -> None:
    hw.append_many("t", [b""] * 3, keys=["a"] * 3)
    for _ in range(2):
        with pytest.raises(Unavailable, match="offset 1"):
            app_of(refusing(1)).catch_up(hw, SETTLE_S)
    app_of(count).catch_up(hw, SETTLE_S)
    assert seen.documents(hw, "b") == {"a": (2, {"n": 3, "last": ""})}
    told = seen.row(hw, "b", "p")
    assert (told.state, told.error, told.folded) == ("running", None, 3)


def test_a_projection_that_is_resumed_goes_on_with_the_event_that_stopped_it(hw: Store) -> None:
    hw.append_many("t", [b""] * 3, keys=["a"] * 3)
    mended = threading.Event()

    def fold(doc: Any, event: Event) -> Any:
        return count(doc, event) if mended.is_set() else refusing(1)(doc, event)

    with app_of(fold).running(hw) as runner:
        with pytest.raises(Unavailable, match="stopped"):
            runner.settle(SETTLE_S)
        mended.set()
        seen.resume(hw, "b", "p")
        runner.settle(SETTLE_S)
    assert seen.documents(hw, "b") == {"a": (2, {"n": 3, "last": ""})}


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "error", [Unspeakable(), ValueError("\ud800"), SystemExit(3), StopIteration(), RecursionError(), MemoryError()]
)
def test_whatever_a_fold_raises_is_told(hw: Store, error: BaseException) -> None:
    def fold(_doc: Any, _event: Event) -> Any:
        raise error

    hw.append("t", b"", key="a")
    for many in (False, True):
        with pytest.raises(Unavailable, match=type(error).__name__):
            app_of(fold, binder=f"b{many}", name=f"p{many}", many=many).catch_up(hw, SETTLE_S)


def test_a_thread_that_meets_the_unexpected_goes_on(hw: Store) -> None:
    def fold(_doc: Any, _event: Event) -> Any:
        raise asyncio.CancelledError

    hw.append("t", b"", key="a")
    with app_of(fold).running(hw) as runner, pytest.raises(Unavailable, match="CancelledError"):
        runner.settle(SETTLE_S)


# Quarantine


def test_quarantined_events_are_noted_and_passed_over(hw: Store) -> None:
    hw.create("t", partitions=2)
    for partition in (0, 1):
        hw.append_many("t", [b""] * 4, keys=["a", "b", "a", "b"], partition=partition)
    app_of(refusing(1, 2), on_error="quarantine", key=lambda event: f"{event.partition}", unordered=True).catch_up(
        hw, SETTLE_S
    )
    assert seen.quarantined(hw, "b") == [(0, 1), (0, 2)]
    assert {id: doc["n"] for id, doc in seen.data(hw, "b").items()} == {"0": 2, "1": 4}
    told = seen.row(hw, "b", "p")
    assert (told.folded, told.errors, told.state) == (6, 2, "running")
    assert told.error is not None
    assert told.error.offset == 2


def test_a_projection_that_has_too_many_quarantined_events_stops(hw: Store) -> None:
    hw.append_many("t", [b""] * (QUARANTINED_MAX + 5), keys=["a"] * (QUARANTINED_MAX + 5))
    fold = refusing(*range(2, QUARANTINED_MAX + 5))
    with pytest.raises(Unavailable, match=f"stopped at offset {QUARANTINED_MAX + 2}"):
        app_of(fold, on_error="quarantine").catch_up(hw, SETTLE_S)
    assert len(seen.quarantined(hw, "b")) == QUARANTINED_MAX
    assert seen.documents(hw, "b")["a"][1]["n"] == 2


# An event that ends its process


def lives(path: Path, app: Callable[[], App]) -> int:
    """How often a process is ended by its application until one lives to tell that it settled, or was stopped."""

    def life(_said: object) -> str:
        with open_directory(path, limits=LIMITS) as hw:
            with contextlib.suppress(Unavailable):
                app().catch_up(hw, SETTLE_S)
            return "alive"

    for number in range(20):
        child = Child(life)
        try:
            assert child.result() == "alive"
        except (EOFError, AssertionError):
            continue
        return number
    raise AssertionError("it is ended again and again")


def deadly(offset: int) -> Callable[[Any, Event], Any]:
    def fold(doc: Any, event: Event) -> Any:
        if event.offset == offset and event.partition == 0:
            os._exit(1)
        return count(doc, event)

    return fold


@pytest.mark.parametrize("on_error", ["stop", "quarantine"])
def test_an_event_that_ends_its_process_is_found_and_set_aside(tmp_path: Path, on_error: str) -> None:
    path = tmp_path / "data"
    with open_directory(path, limits=LIMITS) as hw:
        hw.create("t", partitions=2)
        for partition in (0, 1):  # the other partition has events before and behind, in the same transactions
            hw.append_many("t", [b""] * 200, keys=[f"{partition}"] * 200, partition=partition)
    made: dict[str, Any] = {"unordered": True, "key": lambda event: f"{event.partition}", "on_error": on_error}
    deaths = lives(path, lambda: app_of(deadly(150), **made))
    assert 1 < deaths <= 10
    with open_directory(path, limits=LIMITS) as hw:
        found = {id: doc["n"] for id, doc in seen.data(hw, "b").items()}
        told = seen.error(hw, "b", "p")
        assert (told.partition, told.offset) == (0, 150)
        assert "ended its process" in told.error
        if on_error == "quarantine":
            assert found == {"0": 199, "1": 200}
            assert seen.quarantined(hw, "b") == [(0, 150)]
        else:
            assert found["0"] == 150
            assert seen.row(hw, "b", "p").state == "stopped"
            app_of(count, **made).catch_up(hw, SETTLE_S)  # mended: it is tried again
            assert {id: doc["n"] for id, doc in seen.data(hw, "b").items()} == {"0": 200, "1": 200}


# Topics


def test_a_projection_waits_for_its_topic(hw: Store) -> None:
    with app_of(count).running(hw) as runner:
        runner.settle(SETTLE_S)
        hw.append("t", b"", key="a")
        runner.settle(SETTLE_S)
        assert seen.data(hw, "b")["a"]["n"] == 1


@pytest.mark.parametrize("on_error", ["stop", "quarantine"])
def test_a_topic_that_was_deleted_and_made_again_has_its_binder_rebuilt(hw: Store, on_error: Any) -> None:
    def fold(doc: Any, event: Event) -> Any:
        if event.type == "bad":
            raise ValueError
        return count(doc, event)

    hw.append_many("t", [b""] * 3, keys=["a", "b", "c"])
    with app_of(fold, on_error=on_error).running(hw) as runner:
        runner.settle(SETTLE_S)
        if on_error == "quarantine":
            hw.append("t", b"", key="c", type="bad")
            runner.settle(SETTLE_S)
        hw.delete("t")
        hw.create("t", partitions=2)
        hw.append("t", b"", key="z")
        runner.settle(SETTLE_S)
        assert seen.data(hw, "b") == {"z": {"n": 1, "last": ""}}
        assert list(seen.cursors(hw, "b", "p")) == [0, 1]


def test_a_topic_that_was_made_again_while_nothing_ran_is_seen_at_the_next_start(hw: Store) -> None:
    hw.append_many("t", [b""] * 3, keys=["a", "b", "c"])
    app_of(count).catch_up(hw, SETTLE_S)
    hw.delete("t")
    hw.append_many("t", [b""] * 5, keys=["d"] * 5)
    app_of(count).catch_up(hw, SETTLE_S)
    assert seen.documents(hw, "b") == {"d": (4, {"n": 5, "last": ""})}


def test_what_retention_took_before_it_was_folded_is_counted_as_missed(tmp_path: Path) -> None:
    limits = Limits(segment_bytes=2000)
    with open_directory(tmp_path / "data", limits=limits) as hw:
        hw.append("t", b"x" * 100, key="a")
        app_of(count).catch_up(hw, SETTLE_S)
        for _ in range(100):
            hw.append("t", b"x" * 100, key="a", durability="os")
        hw.retain("t", before=80)
        start = hw.describe("t").partitions[0].start
        assert start > 1
        app_of(count).catch_up(hw, SETTLE_S)
        assert seen.documents(hw, "b")["a"] == (100, {"n": 1 + 101 - start, "last": ""})
        assert seen.row(hw, "b", "p").missed == start - 1


def test_events_are_synced_before_they_are_recorded(hw: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def durable() -> int:
        return hw.directory.topic_for("t").logs[0].state().secured_offset

    at: list[tuple[str, int]] = []
    write, take_place = DocumentFold.write, Files.take_place

    def writing(self: DocumentFold, reached: Mapping[int, int], **told: Any) -> None:
        at.append((f"up to {reached[0]}", durable()))
        write(self, reached, **told)

    def taking_place(self: Files, name: str, file: Path) -> None:
        at.append(("in place", durable()))
        take_place(self, name, file)

    hw.append("t", b"", key="a")
    app_of(count).catch_up(hw, SETTLE_S)
    hw.append_many("t", [b""] * 9, keys=["a"] * 9, durability="os")
    assert durable() == 1
    monkeypatch.setattr(DocumentFold, "write", writing)
    monkeypatch.setattr(Files, "take_place", taking_place)
    app_of(count).catch_up(hw, SETTLE_S)
    assert at == [("up to 10", 10)]
    hw.append_many("t", [b""] * 9, keys=["a"] * 9, durability="os")
    app_of(count, version=2).catch_up(hw, SETTLE_S)
    assert at[1:] == [("up to 19", 10), ("in place", 19)]


def test_a_binder_that_is_ahead_of_its_log_is_refused(hw: Store) -> None:
    hw.append_many("t", [b""] * 3, keys=["a"] * 3)
    app_of(count).catch_up(hw, SETTLE_S)
    connection = database.connect(Files.of(hw).current("b"))
    connection.execute("UPDATE cursors SET next = 7")
    connection.close()
    with app_of(count).running(hw) as runner, pytest.raises(Unavailable, match="at offset 7 of partition 0"):
        runner.settle(SETTLE_S)
    assert all(each.owner is None for each in hw.consumers("t"))  # its lease is free for whoever mends it
    app_of(count, version=2).catch_up(hw, SETTLE_S)
    assert seen.documents(hw, "b")["a"] == (2, {"n": 3, "last": ""})


# Files


@pytest.mark.parametrize("what", ["all", "file", "link"])
def test_a_binder_whose_files_were_deleted_is_made_again(hw: Store, what: str) -> None:
    hw.append_many("t", [b""] * 3, keys=["a"] * 3)
    app_of(count).catch_up(hw, SETTLE_S)
    files = Files.of(hw)
    current, link = files.current("b"), files.link("b")
    for path in {"all": [current, link], "file": [current], "link": [link]}[what]:
        path.unlink()
    hw.append("t", b"", key="a")
    app_of(count).catch_up(hw, SETTLE_S)
    assert seen.documents(hw, "b") == {"a": (3, {"n": 4, "last": ""})}
    assert names(hw) == sorted([files.link("b").name, files.current("b").name])


def names(hw: Store) -> list[str]:
    """The files of binders, but for locks and what SQLite keeps beside them."""
    found = os.listdir(Files.of(hw).path)
    return sorted(name for name in found if not name.startswith(".") and not name.endswith(("-wal", "-shm")))


@pytest.mark.parametrize("damage", [b"nonsense" * 100, b""])
def test_a_damaged_binder_is_told_and_others_go_on(tmp_path: Path, damage: bytes) -> None:
    app = app_of(count)
    app.projection("t", "others", name="others")(count)
    app.binder("b").index("n")
    with open_directory(tmp_path / "data") as hw:
        hw.append_many("t", [b""] * 3, keys=["a"] * 3)
        app.catch_up(hw, SETTLE_S)
        file = Files.of(hw).current("b")
    file.write_bytes(damage)
    with open_directory(tmp_path / "data") as hw, app.running(hw) as runner:
        hw.append("t", b"", key="a")
        with pytest.raises(HeadwaterError, match=r"is damaged|is not a binder") as told:
            runner.settle(SETTLE_S)
        assert "delete" in (told.value.hint or "")
        wait_for(lambda: seen.cursors(hw, "others", "others") == {0: 4})


class FullDisk(Disk):
    def create(self, path: Path) -> int:
        if path.name.endswith(".lock") and path.parent.name == "binders":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return super().create(path)


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data", disk=FullDisk()) as hw:
        hw.append("t", b"", key="a")
        with pytest.raises(Unavailable, match="Read-only") as told:
            app_of(count).catch_up(hw, SETTLE_S)
        assert told.value.code == "read_only"


def test_what_a_killed_rebuild_left_is_removed_at_the_next_start(hw: Store) -> None:
    hw.append("t", b"", key="a")
    app_of(count).catch_up(hw, SETTLE_S)
    expected = names(hw)
    for name in ("b.0123.sqlite", "b.0123.sqlite-wal", "b.0123.sqlite-journal", "b.sqlite.99.tmp", "bb.1.sqlite"):
        (Files.of(hw).path / name).write_bytes(b"")
    app_of(count).catch_up(hw, SETTLE_S)
    assert names(hw) == sorted([*expected, "bb.1.sqlite"])


# Others who write, and stopping


@contextlib.contextmanager
def locked(hw: Store) -> Iterator[None]:
    """Somebody else writes to the binder."""
    connection = database.connect(Files.of(hw).current("b"))
    with contextlib.closing(connection), database.writing(connection):
        yield


def closed_within(runner: Runner, seconds: float) -> bool:
    began_s = time.monotonic()
    runner.close()
    return time.monotonic() - began_s < seconds


def test_a_projection_waits_while_another_program_writes(hw: Store) -> None:
    hw.append("t", b"", key="a")
    with app_of(count).running(hw) as runner:
        runner.settle(SETTLE_S)
        with locked(hw):
            hw.append("t", b"", key="a")
            with pytest.raises(Unavailable, match="not all events were handled"):
                runner.settle(0.5)
        runner.settle(SETTLE_S)
    assert seen.data(hw, "b")["a"]["n"] == 2


def test_a_projection_that_waits_to_write_can_be_stopped(hw: Store) -> None:
    hw.append("t", b"", key="a")
    with app_of(count).running(hw) as runner:
        runner.settle(SETTLE_S)
        with locked(hw):
            hw.append("t", b"", key="a")
            with pytest.raises(Unavailable):
                runner.settle(0.3)
            assert closed_within(runner, 5.0)
    assert seen.data(hw, "b")["a"]["n"] == 1


@pytest.mark.parametrize("version", [1, 2])
def test_slow_folds_can_be_stopped_in_the_midst(hw: Store, version: int) -> None:
    hw.append_many("t", [b""] * 400, keys=["a"] * 400)
    if version == 2:
        app_of(count).catch_up(hw, SETTLE_S)
    begun = threading.Event()

    def fold(doc: Any, event: Event) -> Any:
        if event.offset >= 5:
            begun.set()
            time.sleep(0.05)
        return count(doc, event)

    runner = app_of(fold, version=version).running(hw)
    runner.start()
    assert begun.wait(SETTLE_S)
    assert closed_within(runner, 4.0)
    assert seen.documents(hw, "b")["a"][1]["n"] == (400 if version == 2 else seen.cursors(hw, "b", "p")[0])
    app_of(count, version=version).catch_up(hw, SETTLE_S)
    assert seen.documents(hw, "b")["a"] == (399, {"n": 400, "last": ""})


def test_two_runners_of_one_process_fold_each_event_once(hw: Store) -> None:
    hw.create("t", partitions=3)
    app = App()
    app.projection("t", "b", name="p", unordered=True)(count)
    app.projection("t", "b", name="q", unordered=True)(count)
    with app.running(hw) as one, app.running(hw) as other:
        for _ in range(20):
            hw.append_many("t", [b""] * 30, keys=[f"k{number % 7}" for number in range(30)])
        one.settle(SETTLE_S)
        other.settle(SETTLE_S)
    assert sum(doc["n"] for doc in seen.data(hw, "b").values()) == 2 * 20 * 30


def test_one_session_serves_all_partitions_as_long_as_nothing_changes(hw: Store) -> None:
    hw.create("t", partitions=2)
    for partition in (0, 1):
        hw.append_many("t", [b""] * 5, keys=["a"] * 5, partition=partition)
    app = app_of(count, key=lambda _event: "a", unordered=True)
    app.catch_up(hw, SETTLE_S)
    with app.running(hw) as runner:
        runner.settle(SETTLE_S)
        wait_for(lambda: all(each.owner is not None for each in hw.consumers("t")))
        owners = {each.owner for each in hw.consumers("t")}
        for _ in range(3):
            hw.append("t", b"", key="a", partition=0)
            runner.settle(SETTLE_S)
        hw.append("t", b"", key="a", partition=1)
        runner.settle(SETTLE_S)
        assert {each.owner for each in hw.consumers("t")} == owners


def test_few_events_may_be_in_hand_at_a_time(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data", limits=Limits(unacked_max=10)) as hw:
        for _ in range(3):
            hw.append_many("t", [b"x" * 100] * 5000, keys=["a"] * 5000, durability="os")
        app_of(count).catch_up(hw, SETTLE_S)
        assert seen.documents(hw, "b")["a"] == (14_999, {"n": 15_000, "last": ""})


def test_a_forked_child_leaves_the_projections_of_its_parent_alone(hw: Store) -> None:
    hw.append_many("t", [b""] * 50, keys=["a"] * 50)
    with app_of(count).running(hw) as runner:
        runner.settle(SETTLE_S)

        def inside(_said: object) -> int:
            runner.close()
            hw.append("t", b"", key="a")
            hw.close()
            return 1

        assert Child(inside).result() == 1
        hw.append("t", b"", key="a")
        runner.settle(SETTLE_S)
    assert seen.documents(hw, "b")["a"] == (51, {"n": 52, "last": ""})


def test_a_runner_may_be_closed_twice_and_outlive_its_log(tmp_path: Path) -> None:
    hw = open_directory(tmp_path / "data")
    hw.append("t", b"", key="a")
    runner = app_of(count).running(hw)
    runner.start()
    runner.settle(SETTLE_S)
    hw.close()
    assert closed_within(runner, 5.0)
    assert closed_within(runner, 1.0)
