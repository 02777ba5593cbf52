"""A server with far more topics than descriptors: nobody who touches many of them takes anything from others."""

from __future__ import annotations

import resource
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

import headwater
from headwater import Denied
from headwater.store import Store
from tests.log.many_topics import own_bytes
from tests.log.unsynced import open_unsynced
from tests.server.people import add, bearer
from tests.server.process import ServerProcess, http

TOPICS = 450
MADE = 40  # more, by the server, which syncs
DESCRIPTORS = 120
MIB = 1 << 20


class Tokens(NamedTuple):
    """A file of users, and the tokens of two: one may append to `pub.*`, the other may do everything."""

    file: Path
    publisher: str
    admin: str


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    users = tmp_path_factory.mktemp("users") / "users.json"
    publisher = add(users, "few", "append:pub.*", token=True)
    return Tokens(users, publisher, add(users, "all", "read,append,admin:*", token=True))


@pytest.fixture(scope="module")
def server_path(server_path: Path) -> Path:
    with open_unsynced(server_path) as hw:
        hw.create("orders")
        for number in range(TOPICS):
            hw.append(f"pub.{number}", b"first")
    return server_path


@pytest.fixture(scope="module")
def process_options(tokens: Tokens) -> list[str]:
    return ["--auth", str(tokens.file)]


class Customer:
    """Appends, follows and consumes all the time, and keeps what it met."""

    def __init__(self, hw: Store) -> None:
        self.followed: list[bytes | None] = []
        self.consumed: list[bytes | None] = []
        self.appended: list[bytes] = []
        self._hw = hw
        self._stopped = threading.Event()
        self._stream = hw.follow("orders", start="earliest")
        self._member = hw.consumer("billing", "orders")
        self.errors: list[BaseException] = []
        work = (self._append, self._follow, self._consume)
        self._threads = [threading.Thread(target=self._run, args=[each]) for each in work]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        self._member.close()

    def _run(self, work: object) -> None:
        try:
            assert callable(work)
            work()
        except BaseException as error:  # noqa: BLE001  # the test shows it
            self.errors.append(error)

    def _append(self) -> None:
        number = 0
        while not self._stopped.is_set():
            self.appended.append(b"%d" % number)
            self._hw.append("orders", self.appended[-1])
            number += 1
        self._hw.append("orders", b"last")
        self.appended.append(b"last")

    def _follow(self) -> None:
        for event in self._stream:
            self.followed.append(event.data)
            if event.data == b"last":
                return

    def _consume(self) -> None:
        for event in self._member:
            self.consumed.append(event.data)
            self._member.ack(event)
            if event.data == b"last":
                return


@pytest.mark.timeout(600)
def test_who_touches_thousands_of_topics_takes_nothing_from_others(process: ServerProcess, tokens: Tokens) -> None:
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    with headwater.open(process.url, token=tokens.admin) as hw:
        customer = Customer(hw)
        before = own_bytes(process.pid)
        with headwater.open(process.url, token=tokens.publisher) as publisher:
            for number in range(TOPICS + MADE):
                publisher.append(f"pub.{number}", b"more")
            with pytest.raises(Denied):
                publisher.append("orders", b"not mine")
        customer.stop()
        assert customer.errors == []
        assert customer.followed == customer.consumed == customer.appended
        for number in range(0, TOPICS, 7):
            assert [event.data for event in hw.read(f"pub.{number}")] == [b"first", b"more"]
            assert hw.describe(f"pub.{number}").events == 2
        assert [info.name for info in hw.consumers()] == ["billing"]
        assert hw.retain("pub.0") == []
        assert hw.append("orders", b"after").offset == len(customer.appended)
        assert own_bytes(process.pid) - before < 64 * MIB
    for path in ("/metrics", "/health"):
        assert http.get(f"{process.url}{path}", headers=bearer(tokens.admin)).status_code == 200
