"""Directories in the place of files, too little memory, and topics that another process deletes: errors of our own."""

from __future__ import annotations

import fcntl
import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.errors import HeadwaterError, NotFound, Unavailable
from headwater.limits import Limits
from headwater.store import Store
from tests.cli.conftest import PROGRAM
from tests.log.unsynced import open_unsynced
from tests.server.serving import serving
from tests.waiting import wait_for

LIMITS = Limits(blob_bytes_min=2000, lock_wait_s=0.3)
SETTINGS = ("headwater.json", "archive.json", "topics/.lock", "topics/t/topic.json")
LOGS = tuple(
    f"topics/t/0/{name}"
    for name in (
        "lock",
        "tail",
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.blobs/00000000000000000001.blob",
        "00000000000000000002.log",
        "00000000000000000003.log",
        "00000000000000000003.producers",
        "archived.json",
        "archived.lock",
    )
)
OTHERS = ("consumers/.lock", "consumers/c/t", "journal/00000000000000aa.journal")
REBUILT = (LOGS[1], LOGS[3], OTHERS[2])  # what is never truth: without it, everything goes on


def consumed(hw: Store, name: str = "c") -> list[int]:
    with hw.consumer(name, "t", timeout=0) as consumer:
        return [event.offset for event in consumer]


def transacted(hw: Store) -> None:
    with hw.transaction() as tx:
        tx.append("t", b"x")
        tx.append("u", b"y")


def read(hw: Store, **options: Any) -> list[int]:
    return [event.offset for event in hw.read("t", **options)]


VERBS: dict[str, Callable[[Store], object]] = {
    "append": lambda hw: hw.append("t", b"z", key="k"),
    "append if": lambda hw: hw.append("t", b"z", key="k", expected_version=3),
    "append once": lambda hw: hw.append("t", b"z", producer=("p", 0, 3)),
    "append huge": lambda hw: hw.append("t", b"z" * 5000),
    "read": read,
    "read in reverse": lambda hw: read(hw, reverse=True),
    "read key": lambda hw: read(hw, key="k"),
    "read type": lambda hw: read(hw, type="a"),
    "read_arrow": lambda hw: hw.read_arrow("t"),
    "splits": lambda hw: hw.splits("t"),
    "version": lambda hw: hw.version("t", "k"),
    "describe": lambda hw: hw.describe("t"),
    "topics": lambda hw: hw.topics(),
    "consumers": lambda hw: hw.consumers(),
    "consume": consumed,
    "new consumer": lambda hw: consumed(hw, "new"),
    "seek": lambda hw: hw.seek("c", "t", "earliest"),
    "forget": lambda hw: hw.forget("c", "t"),
    "sync": lambda hw: hw.sync("t"),
    "seal": lambda hw: hw.seal("t"),
    "retain": lambda hw: hw.retain("t", before=2),
    "archive": lambda hw: hw.archive(),
    "reindex": lambda hw: hw.reindex(),
    "check": lambda hw: hw.check(),
    "repair": lambda hw: hw.repair(),
    "repair apply": lambda hw: hw.repair(apply=True),
    "create": lambda hw: hw.create("new"),
    "transaction": transacted,
    "delete": lambda hw: hw.delete("t"),
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files")
    with open_unsynced(path / "data", limits=LIMITS) as hw:
        hw.append("t", {"n": 0}, key="k", type="a")
        hw.append("t", b"x" * 5000, key="k", type="a")
        hw.seal("t")
        hw.append("t", {"n": 2}, key="k", type="a", producer=("p", 0, 1))
        hw.seal("t")
        hw.append("t", {"n": 3}, key="k", type="a", producer=("p", 0, 2))
        hw.append("u", b"u")
        consumed(hw)
        hw.archive(f"objects://{path}/archive")
    (path / "data/journal").mkdir(exist_ok=True)
    (path / "data/journal/00000000000000aa.journal").write_bytes(b"")
    return path / "data"


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "data"))


@pytest.fixture
def quiet() -> Iterator[None]:
    """What happens in the background is warned of."""
    logging.getLogger("headwater").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("headwater").setLevel(logging.NOTSET)


def by_directory(data: Path, file: str) -> None:
    (data / file).unlink()
    (data / file).mkdir()


def outcome(data: Path, verb: Callable[[Store], object]) -> HeadwaterError | None:
    try:
        with open_unsynced(data, limits=LIMITS) as hw:
            verb(hw)
    except HeadwaterError as error:
        return error
    return None


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("file", [*SETTINGS, *LOGS, *OTHERS])
def test_a_directory_in_the_place_of_a_file_is_told_by_every_verb(filled: Path, tmp_path: Path, file: str) -> None:
    failed = []
    for number, (name, verb) in enumerate(VERBS.items()):
        data = Path(shutil.copytree(filled, tmp_path / str(number)))
        by_directory(data, file)
        error = outcome(data, verb)
        if error is not None:
            failed.append(name)
            assert error.hint, (name, error)
            assert str(data / file) in f"{error} {error.facts}", (name, error)
        shutil.rmtree(data)
    assert ("append" in failed) == (file in (*SETTINGS[::3], LOGS[0], LOGS[6])), failed
    if file in REBUILT:
        assert not failed
    if file == SETTINGS[0]:
        assert len(failed) == len(VERBS)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("file", [SETTINGS[3], *LOGS[1:8]])
def test_check_finds_a_directory_in_the_place_of_a_file(data: Path, file: str) -> None:
    by_directory(data, file)
    with open_unsynced(data, limits=LIMITS) as hw:
        assert str(data / file) in str([finding for finding in hw.check().findings if finding.damage])
        actions = hw.repair()
        assert str(data / file) in str(actions)
        assert all(action.done != action.manual for action in hw.repair(apply=True))
        assert hw.check().damaged == any(action.manual for action in actions)


@pytest.mark.parametrize("file", [SETTINGS[3], LOGS[0], LOGS[6]])
@pytest.mark.parametrize("words", ["append DATA t x", "read DATA t"])
def test_the_command_line_tells_of_a_directory_in_the_place_of_a_file(data: Path, file: str, words: str) -> None:
    by_directory(data, file)
    command = [*PROGRAM, *words.replace("DATA", str(data)).split()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if ran.returncode:
        assert ran.stderr.startswith("error: ")
        assert str(data / file) in ran.stderr
        assert " — " in ran.stderr  # the hint
        assert "Traceback" not in ran.stderr
    else:
        assert (file, words) == (LOGS[0], "read DATA t")


@pytest.mark.parametrize("file", [SETTINGS[3], LOGS[0], LOGS[2]])
def test_a_server_answers_with_a_status(data: Path, file: str) -> None:
    by_directory(data, file)
    with serving(data) as server:
        for answer in (
            server.http.get("/topic/t/items"),
            server.http.post("/topic/t/items", content=b"x"),
            server.http.get("/topic/t"),
        ):
            if answer.status_code >= 400:
                assert (answer.status_code, answer.json()["code"]) == (500, "corrupt")
                assert str(data / file) in answer.text
        statuses = [server.http.get("/topic/t").status_code, server.http.post("/topic/t/items").status_code]
        assert 500 in statuses or file == LOGS[2]


def test_of_two_who_delete_a_topic_one_finds_it_gone(tmp_path: Path) -> None:
    path = tmp_path / "data"
    outcomes: list[object] = []

    def delete(hw: Store) -> None:
        try:
            hw.delete("t")
            outcomes.append("deleted")
        except HeadwaterError as error:
            outcomes.append(error)

    with open_unsynced(path) as one, open_unsynced(path) as other:
        one.append("t", b"x")
        list(other.read("t"))
        with open(path / "topics/t/0/lock", "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            threads = [threading.Thread(target=delete, args=(hw,)) for hw in (one, other)]
            for thread in threads:
                thread.start()
            tails = [hw.directory._topics.open["t"].logs[0]._reader for hw in (one, other)]
            wait_for(lambda: all(reader.slot() is not None for reader in tails))
        for thread in threads:
            thread.join(30)
        lost = [outcome for outcome in outcomes if outcome != "deleted"]
        assert len(outcomes) == 2
        assert len(lost) == 1
        assert isinstance(lost[0], NotFound), lost
        with pytest.raises(NotFound):
            other.delete("t")


def test_who_waits_to_delete_a_topic_does_not_delete_one_that_took_its_name(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with open_unsynced(path) as one, open_unsynced(path) as other:
        one.append("t", b"old")
        opened = other.directory._topics.live("t")
        one.delete("t")
        one.append("t", b"new")
        with pytest.raises(NotFound):
            other.directory._delete(opened)
        assert [event.data for event in one.read("t")] == [b"new"]


def test_a_topic_that_was_removed_just_now_is_not_found(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "data") as hw:
        hw.append("t", b"x")
        opened = hw.directory._topics.live("t")
        shutil.rmtree(tmp_path / "data/topics/t")
        with pytest.raises(NotFound):
            hw.directory._delete(opened)


SHORT_OF_MEMORY = """
import resource, sys
import headwater, pyarrow

huge = b"x" * (8 << 20)
with headwater.open(sys.argv[1], mode="existing") as hw:
    hw.topics()
    list(hw.read("small"))
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), used + (16 << 20)))
    for read in (
        lambda: [len(event.data) for event in hw.read("t")],
        lambda: [len(event.data) for event in hw.read("t", reverse=True)],
        lambda: hw.read_arrow("t").num_rows,
        lambda: hw.version("t", "nowhere"),
        lambda: hw.check("t"),
        lambda: hw.append_many("t", [huge] * 4),
    ):
        try:
            read()
            print("enough")
        except headwater.Unavailable as error:
            print(error.code, bool(error.hint))
    print([event.data for event in hw.read("small")])
"""


def test_too_little_memory_is_unavailable(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "data") as hw:
        hw.append("small", b"x")
        for _ in range(3):
            hw.append_many("t", [bytes([number]) * 1_000_000 for number in range(64)])
    ran = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY, tmp_path / "data"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[-1] == "[b'x']"
    assert lines[0] == "out_of_memory True"
    assert set(lines[:-1]) <= {"out_of_memory True", "enough"}


def test_the_command_line_says_that_memory_is_short(tmp_path: Path) -> None:
    with open_unsynced(tmp_path / "data") as hw:
        for _ in range(4):
            hw.append_many("t", [bytes([number]) * 1_000_000 for number in range(50)])
    code = (
        "import resource, sys, headwater.cli.app, headwater.directory.directory, headwater\n"
        "import headwater.cli.read, headwater.cli.events\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20),) * 2)\n"
        "headwater.cli.app.cli(['read', sys.argv[1], 't', '--raw'])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, tmp_path / "data"], capture_output=True, timeout=120, check=False)
    assert ran.returncode == 1, ran.stderr
    assert ran.stderr.startswith(b"error: ")
    assert b"not enough memory" in ran.stderr


def test_a_map_that_the_system_refuses_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    with open_unsynced(tmp_path / "data") as hw:
        hw.append_many("t", [b"x" * 1000] * 1000)
        monkeypatch.setattr("headwater.disk.disk.map_file", refuse)
        with pytest.raises(Unavailable) as caught:
            list(hw.read("t"))
        monkeypatch.undo()
    assert caught.value.code == "out_of_memory"
    assert isinstance(caught.value, headwater.HeadwaterError)
