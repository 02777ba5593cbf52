"""Building a binder anew beside the old one, while it is read and filled (docs/VIEWS.md, "Rebuilding")."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from headwater.errors import Conflict, NotFound, Unavailable
from headwater.event import Event
from headwater.limits import Limits
from headwater.opening import open_directory
from headwater.store import Store
from headwater.views import database, rebuild
from headwater.views.app import App
from headwater.views.document_fold import Halt
from headwater.views.files import Files
from tests.log.children import Child, Said
from tests.views import seen
from tests.waiting import wait_for

SETTLE_S = 20.0
LIMITS = Limits(lease_ms=100, ack_ms=5)
KEYS = [f"k{number}" for number in range(5)]


@pytest.fixture
def limits() -> Limits:
    return LIMITS


def app_of(version: int, fold: Callable[[Any, Event], Any] | None = None, **named: Any) -> App:
    """Counts the events of each key, and notes which version did."""

    def counting(doc: Any, _event: Event) -> Any:
        return {"n": (doc or {"n": 0})["n"] + 1, "by": version}

    app = App()
    app.projection("t", "b", name="p", version=version, **named)(fold or counting)
    return app


def append(hw: Store, times: int = 1) -> None:
    hw.append_many("t", [b""] * len(KEYS) * times, keys=KEYS * times, durability="os")


def expected(hw: Store, version: int) -> dict[str, dict[str, int]]:
    ends = sum(each.end for each in hw.describe("t").partitions)
    return {key: {"n": ends // len(KEYS), "by": version} for key in KEYS}


def files_of(hw: Store) -> list[str]:
    found = os.listdir(Files.of(hw).path)
    return sorted(name for name in found if not name.startswith(".") and not name.endswith(("-wal", "-shm")))


class Watch:
    """Reads all documents again and again, in a thread, as long as it is entered, and keeps what is wrong."""

    def __init__(self, hw: Store) -> None:
        self.wrong: list[str] = []
        self.seen_versions: set[int] = set()
        self.reads = 0
        self._hw = hw
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def has_read(self, times: int) -> bool:
        return self.reads > times

    def _run(self) -> None:
        before: dict[str, Any] = {}
        by = 0
        while not self._stop.is_set():
            try:
                now = {each.id: (each.version, each.data) for each in self._hw.binder("b").find()}
            except Exception as error:  # noqa: BLE001  # whatever it is, it should not be
                self.wrong.append(repr(error))
                return
            self.reads += 1
            for id, (version, data) in before.items():
                if id not in now:
                    self.wrong.append(f"{id} is gone")
                elif now[id][0] < version or now[id][1]["n"] < data["n"]:
                    self.wrong.append(f"{id} was {version, data}, and is {now[id]}")
            found = {data["by"] for _, data in now.values()}
            if len(found) > 1 or (found and min(found) < by):
                self.wrong.append(f"versions {found} after {by}")
            by = max(found, default=by)
            self.seen_versions |= found
            before = now


def test_readers_never_see_a_gap_or_documents_go_back(hw: Store) -> None:
    hw.create("t", partitions=2)
    append(hw, 200)
    app_of(1).catch_up(hw, SETTLE_S)
    done = threading.Event()

    def appending() -> None:
        while not done.is_set():
            append(hw)
            time.sleep(0.001)

    with Watch(hw) as watch, app_of(1).running(hw):
        appender = threading.Thread(target=appending)
        appender.start()
        try:
            for version in (2, 3, 4):
                with app_of(version).running(hw):
                    wait_for(partial(is_built, hw, version))
                    wait_for(partial(watch.has_read, watch.reads + 3))
        finally:
            done.set()
            appender.join()
        app_of(4).catch_up(hw, SETTLE_S)
    assert watch.wrong == []
    assert watch.seen_versions == {1, 2, 3, 4}
    assert seen.data(hw, "b") == expected(hw, 4)
    assert len(files_of(hw)) == 2


def test_what_was_appended_is_read_at_once_whenever_the_binder_is_replaced(hw: Store) -> None:
    append(hw)
    app_of(1).catch_up(hw, SETTLE_S)
    wrong: list[str] = []
    done = threading.Event()

    def reading() -> None:
        binder = hw.binder("b")
        while not done.is_set():
            try:
                ref = hw.append("t", b"", key="mine")
                found = binder.get("mine", at_least=ref, timeout=SETTLE_S)
            except Exception as error:  # noqa: BLE001  # whatever it is, it should not be
                wrong.append(repr(error))
                return
            if found is None or found.version < ref.offset:
                wrong.append(f"{found} after {ref}")

    reader = threading.Thread(target=reading)
    with app_of(1).running(hw):
        reader.start()
        try:
            for version in (2, 3, 4):
                with app_of(version).running(hw) as runner:
                    runner.settle(SETTLE_S)
                    ref = hw.append("t", b"", key="other")
                    found = hw.binder("b").get("other", at_least=ref, timeout=SETTLE_S)
                    assert found is not None
                    assert (found.version, found.data["by"]) == (ref.offset, version)
                    if version == 4:
                        done.set()
                        reader.join(SETTLE_S)
        finally:
            done.set()
            reader.join(SETTLE_S)
    assert not reader.is_alive()
    assert wrong == []


def is_built(hw: Store, version: int) -> bool:
    with contextlib.suppress(NotFound):  # it is replaced just now
        return seen.row(hw, "b", "p").version == version
    return False


def test_what_the_old_file_has_folded_before_the_swap_is_in_the_new_one(
    hw: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(hw)
    app_of(1).catch_up(hw, SETTLE_S)
    finish = rebuild._Build.finish
    real = rebuild._Build.catch_up
    calls: list[int] = []

    def catch_up(self: Any) -> None:
        real(self)
        calls.append(len(calls))

    def finishing(self: Any) -> None:
        append(hw, 3)  # comes when the new file has caught up, before it is in place
        finish(self)

    monkeypatch.setattr(rebuild._Build, "catch_up", catch_up)
    monkeypatch.setattr(rebuild._Build, "finish", finishing)
    monkeypatch.setattr(rebuild, "CLOSE_EVENTS", 0)
    with app_of(1).running(hw) as old:
        app_of(2).catch_up(hw, SETTLE_S)
        old.settle(SETTLE_S)
    assert seen.data(hw, "b") == expected(hw, 2)
    assert len(calls) >= 2


def test_an_application_with_the_older_version_does_not_fold_any_more_and_says_so(
    hw: Store, caplog: pytest.LogCaptureFixture
) -> None:
    append(hw)
    with app_of(1).running(hw) as old:
        old.settle(SETTLE_S)
        app_of(2).catch_up(hw, SETTLE_S)
        append(hw)
        old.settle(SETTLE_S)  # it has nothing left to do
        assert {doc["n"] for doc in seen.data(hw, "b").values()} == {1}
        assert len(files_of(hw)) == 2
        wait_for(lambda: "superseded: the binder was built by version 2" in caplog.text)
    assert caplog.text.count("superseded") == 1
    app_of(2).catch_up(hw, SETTLE_S)
    assert seen.data(hw, "b") == expected(hw, 2)


def test_who_has_taken_events_for_a_file_that_was_replaced_meanwhile_folds_them_not(
    hw: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(hw)
    app_of(1).catch_up(hw, SETTLE_S)
    taken, replaced = threading.Event(), threading.Event()
    real = database.writing

    def writing(connection: sqlite3.Connection, give_up: Callable[[], bool] | None = None) -> Any:
        if give_up is not None and not taken.is_set():  # it is about to fold
            taken.set()
            assert replaced.wait(SETTLE_S)
        return real(connection, give_up)

    with contextlib.closing(database.connect(Files.of(hw).current("b"))) as old:
        monkeypatch.setattr(database, "writing", writing)
        with app_of(1).running(hw) as runner:
            append(hw)
            assert taken.wait(SETTLE_S)
            rebuild.rebuild(hw, app_of(2).of_binder("b"))
            replaced.set()
            runner.settle(SETTLE_S)
        assert old.execute("SELECT sum(next) FROM cursors").fetchone() == (len(KEYS),)
    assert seen.data(hw, "b") == expected(hw, 2)


def test_an_older_version_does_not_replace_a_newer_one(hw: Store) -> None:
    append(hw)
    app_of(2).catch_up(hw, SETTLE_S)
    with pytest.raises(Conflict) as refused:
        rebuild.rebuild(hw, app_of(1).of_binder("b"))
    assert refused.value.code == "superseded"
    assert seen.row(hw, "b", "p").version == 2


def test_a_fold_that_fails_leaves_the_old_binder_in_service_and_tells_why(hw: Store) -> None:
    def failing(_doc: Any, event: Event) -> Any:
        if event.offset == 3:
            raise ValueError("not this one")
        return {"n": 0, "by": 2}

    append(hw)
    with app_of(1).running(hw) as old:
        old.settle(SETTLE_S)
        before = Files.of(hw).current("b")
        with app_of(2, failing).running(hw) as new:
            with pytest.raises(Unavailable, match="offset 3 of partition 0: ValueError: not this one"):
                new.settle(SETTLE_S)
            append(hw)
            old.settle(SETTLE_S)
            assert seen.data(hw, "b") == expected(hw, 1)
        row = seen.row(hw, "b", "p")
        assert (row.version, row.state) == (1, "running")
        assert row.error is not None
        assert (row.error.offset, "not this one" in row.error.error) == (3, True)
        assert (Files.of(hw).current("b"), len(files_of(hw))) == (before, 2)
    app_of(2).catch_up(hw, SETTLE_S)
    assert seen.data(hw, "b") == expected(hw, 2)
    assert seen.row(hw, "b", "p").error is None


def test_a_rebuild_that_failed_is_tried_again_when_it_is_resumed(hw: Store) -> None:
    mended = threading.Event()

    def fold(_doc: Any, event: Event) -> Any:
        if event.offset == 3 and not mended.is_set():
            raise ValueError
        return {"n": event.offset, "by": 2}

    append(hw)
    app_of(1).catch_up(hw, SETTLE_S)
    with app_of(2, fold).running(hw) as runner:
        with pytest.raises(Unavailable, match="offset 3"):
            runner.settle(SETTLE_S)
        mended.set()
        seen.resume(hw, "b", "p")
        runner.settle(SETTLE_S)
    assert {doc["by"] for doc in seen.data(hw, "b").values()} == {2}


def test_quarantined_events_are_folded_by_a_rebuild_that_can(hw: Store) -> None:
    def fold(doc: Any, event: Event) -> Any:
        if event.offset == 3:
            raise ValueError
        return {"n": (doc or {"n": 0})["n"] + 1, "by": 1}

    append(hw)
    app_of(1, fold, on_error="quarantine").catch_up(hw, SETTLE_S)
    assert seen.quarantined(hw, "b") == [(0, 3)]
    app_of(2, on_error="quarantine").catch_up(hw, SETTLE_S)
    assert seen.quarantined(hw, "b") == []
    assert seen.data(hw, "b") == expected(hw, 2)


def test_several_processes_that_start_with_the_new_version_build_it_once(hw: Store) -> None:
    append(hw, 50)
    app_of(1).catch_up(hw, SETTLE_S)
    path = hw.path

    def work(said: Said) -> str:
        said.send("ready")
        said.recv()
        with open_directory(path, limits=LIMITS) as mine, app_of(2).running(mine) as runner:
            runner.settle(SETTLE_S)
            return Files.of(mine).current("b").name

    children = [Child(work) for _ in range(3)]
    for child in children:
        assert child.hear() == "ready"
    for child in children:
        child.tell()
    found = [child.result() for child in children]
    assert set(found) == {Files.of(hw).current("b").name}  # whoever came second has built nothing
    assert seen.data(hw, "b") == expected(hw, 2)


def test_who_finds_the_binder_rebuilt_by_another_builds_nothing(hw: Store) -> None:
    append(hw)
    app_of(1).catch_up(hw, SETTLE_S)
    outdated = Files.of(hw).current("b")
    app_of(2).catch_up(hw, SETTLE_S)
    current = Files.of(hw).current("b")
    assert rebuild.rebuild(hw, app_of(2).of_binder("b"), instead_of=outdated) == 0
    assert Files.of(hw).current("b") == current
    assert rebuild.rebuild(hw, app_of(2).of_binder("b")) == len(KEYS)  # when asked for, also with the same version
    assert Files.of(hw).current("b") != current


def test_a_process_killed_while_it_builds_changes_nothing(hw: Store) -> None:
    append(hw)
    app_of(1).catch_up(hw, SETTLE_S)
    path = hw.path

    def work(said: Said) -> None:
        def fold(doc: Any, event: Event) -> Any:
            if event.offset == 3:
                said.send("in the midst")
                said.recv()
            return doc or {"n": 0, "by": 2}

        with open_directory(path, limits=LIMITS) as mine:
            app_of(2, fold).catch_up(mine, SETTLE_S)

    child = Child(work)
    assert child.hear() == "in the midst"
    assert len(files_of(hw)) == 3
    with pytest.raises(Unavailable) as locked:
        rebuild.rebuild(hw, app_of(2).of_binder("b"), wait=False)
    assert locked.value.code == "locked"
    child.kill()
    assert seen.data(hw, "b") == expected(hw, 1)
    app_of(1).catch_up(hw, SETTLE_S)
    assert len(files_of(hw)) == 2
    app_of(2).catch_up(hw, SETTLE_S)
    assert seen.data(hw, "b") == expected(hw, 2)


def test_indexes_are_kept(hw: Store) -> None:
    hw.create("t")
    app_of(1).catch_up(hw, SETTLE_S)
    connection = database.connect(Files.of(hw).current("b"))
    with contextlib.closing(connection), database.writing(connection):
        database.declare_index(connection, "n")
    append(hw, 2)
    app_of(1).catch_up(hw, SETTLE_S)
    rebuild.rebuild(hw, app_of(2).of_binder("b"), indexes=["by"])
    append(hw)
    app_of(2).catch_up(hw, SETTLE_S)
    with contextlib.closing(database.connect(Files.of(hw).current("b"))) as connection:
        assert database.indexes(connection) == ["by", "n"]
        keys = f"SELECT {database.column('by')}, {database.column('n')} FROM documents"
        assert connection.execute(keys).fetchall() == [(2, 3)] * len(KEYS)


def test_a_projection_of_the_binder_whose_topic_is_missing_does_not_hinder_the_others(hw: Store) -> None:
    def count(doc: Any, _event: Event) -> Any:
        return {"n": (doc or {"n": 0})["n"] + 1}

    def both(version: int) -> App:
        app = App()
        app.projection("t", "b", name="p", unordered=True, version=version)(count)
        app.projection("missing", "b", name="q", unordered=True)(count)
        return app

    append(hw)
    both(1).catch_up(hw, SETTLE_S)
    with both(2).running(hw) as runner:
        runner.settle(SETTLE_S)
        assert {doc["n"] for doc in seen.data(hw, "b").values()} == {1}
        hw.append_many("missing", [b""] * len(KEYS), keys=KEYS)
        runner.settle(SETTLE_S)
    assert {doc["n"] for doc in seen.data(hw, "b").values()} == {2}


def test_a_rebuild_tells_how_far_it_is(hw: Store) -> None:
    append(hw, 3)
    app_of(1).catch_up(hw, SETTLE_S)
    told: list[tuple[int, int]] = []
    rebuild.rebuild(hw, app_of(2).of_binder("b"), progress=lambda done, of: told.append((done, of)))
    assert told[-1] == (15, 15)


def test_a_rebuild_can_be_stopped(hw: Store) -> None:
    append(hw)
    app_of(1).catch_up(hw, SETTLE_S)
    with pytest.raises(Unavailable) as stopped:
        rebuild.rebuild(hw, app_of(2).of_binder("b"), stop=lambda: True)
    assert stopped.value.code == "stopped"
    assert (seen.data(hw, "b"), len(files_of(hw))) == (expected(hw, 1), 2)


def test_a_rebuild_by_hand_raises_what_the_fold_did(hw: Store) -> None:
    def failing(_doc: Any, _event: Event) -> Any:
        raise ValueError

    append(hw)
    with pytest.raises(Halt):
        rebuild.rebuild(hw, app_of(1, failing).of_binder("b"))
    assert files_of(hw) == []


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR_SHMOPEN, sqlite3.SQLITE_READONLY_DBMOVED]
)
def test_a_file_that_is_removed_while_it_is_opened_is_not_there(tmp_path: Path, code: int) -> None:
    error = sqlite3.OperationalError("as SQLite tells it")
    error.sqlite_errorcode = code
    assert isinstance(database.translation(tmp_path / "gone", error), NotFound)  # so that it is looked for again
    assert isinstance(database.translation(tmp_path, error), Unavailable)


def test_a_file_is_durable_before_it_takes_its_place(hw: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite does not sync what it wrote back while syncs were off, if nothing is left to write back at the end."""
    append(hw)
    app_of(1).catch_up(hw, SETTLE_S)
    done: list[str] = []
    disk = hw.directory.disk
    real_sync, real_rename = disk.fdatasync, disk.rename
    inodes: list[int] = []

    def fdatasync(fd: int) -> None:
        done.append("sync")
        inodes.append(os.fstat(fd).st_ino)
        real_sync(fd)

    def rename(path: Path, target: Path) -> None:
        done.append("rename")
        real_rename(path, target)

    monkeypatch.setattr(disk, "fdatasync", fdatasync)
    monkeypatch.setattr(disk, "rename", rename)
    rebuild.rebuild(hw, app_of(2).of_binder("b"))
    at = done.index("rename")
    assert Files.of(hw).current("b").stat().st_ino in inodes[: done[:at].count("sync")]
