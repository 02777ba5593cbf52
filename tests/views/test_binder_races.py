"""Reading while others write, rebuild and make indexes: what is read always is one moment of one file."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from subprocess import PIPE, Popen
from sys import executable
from textwrap import dedent

from headwater.errors import HeadwaterError
from headwater.opening import open_directory
from headwater.store import Store
from tests.views.filling import Filling

ACCOUNTS = [f"account {number}" for number in range(20)]
ROUNDS = 60
READS_MIN = 5  # of each kind, else the test has shown nothing


class Money:
    """Accounts among which money is moved, several at a time, so that what there is in all never changes."""

    def __init__(self, filling: Filling) -> None:
        self.filling = filling
        self.held = dict.fromkeys(ACCOUNTS, 100)
        self.source = Random(7)
        filling.put(self.documents())

    def documents(self, *only: str) -> dict[str, dict[str, object] | None]:
        return {name: {"held": self.held[name], "even": self.held[name] % 2 == 0} for name in only or ACCOUNTS}

    def move(self) -> None:
        one, other = self.source.sample(ACCOUNTS, 2)
        amount = self.source.randrange(50)
        self.held[one] -= amount
        self.held[other] += amount
        self.filling.put(self.documents(one, other))


def test_every_read_sees_all_of_a_transaction_or_nothing(hw: Store, filling: Filling) -> None:
    filling.connection.execute("PRAGMA synchronous = OFF")
    money = Money(filling)
    binder = hw.binder("baskets")
    over = threading.Event()
    asks: list[Callable[[], int]] = [
        lambda: sum(each.data["held"] for each in binder.find()),
        lambda: sum(each.data["held"] for each in binder.find(sort="-held")),
        lambda: sum(each.data["held"] for each in binder.find({"held": {"$gt": -(10**9)}}, sort=["even", "held"])),
        lambda: 100 * binder.count({"held": {"$lt": 10**9}}),
    ]

    def read(ask: Callable[[], int]) -> int:
        reads = 0
        while not over.is_set() or reads < READS_MIN:
            assert ask() == 2000
            reads += 1
        return reads

    with ThreadPoolExecutor(len(asks)) as threads:
        reading = [threads.submit(read, ask) for ask in asks]
        try:
            for number in range(ROUNDS):
                money.move()
                if number % 20 == 10:
                    binder.index(("held", "even", "nothing")[number // 20])
                if number % 15 == 14:
                    filling.rebuild(money.documents())
                    filling.connection.execute("PRAGMA synchronous = OFF")
        finally:
            over.set()
        assert all(each.result(30) >= READS_MIN for each in reading)
    assert binder.info().indexes == ["even", "held", "nothing"]


def test_a_follower_ends_up_with_what_is_there_whatever_happens_meanwhile(hw: Store, filling: Filling) -> None:
    filling.connection.execute("PRAGMA synchronous = OFF")
    money = Money(filling)
    held: dict[str, object] = {}

    def follow() -> None:
        with hw.binder("baskets").follow(timeout=20) as changes:
            for change in changes:
                if change.kind == "reset":
                    held.clear()
                elif change.kind == "put":
                    assert change.data is not None
                    held[change.id] = change.data
                if change.id == "end":
                    return

    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(follow)
        for number in range(ROUNDS):
            money.move()
            if number % 20 == 19:
                filling.rebuild(money.documents())
        filling.put({"end": {}})
        following.result(30)
    assert held == {**money.documents(), "end": {}}


def test_another_process_reads_what_this_one_writes(tmp_path: Path) -> None:
    program = dedent(
        """
        import sys
        from headwater.opening import open_directory
        from pathlib import Path
        with open_directory(Path(sys.argv[1]), create=False) as hw:
            binder = hw.binder("baskets")
            for line in sys.stdin:
                found = binder.get(line.strip())
                print(None if found is None else found.data["n"], flush=True)
        """
    )
    with open_directory(tmp_path / "data") as hw, Filling(hw) as filling:
        filling.put({"a": {"n": 0}})
        with Popen([executable, "-c", program, str(hw.path)], stdin=PIPE, stdout=PIPE, text=True) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            for number in range(20):
                filling.put({"a": {"n": number}})
                if number % 7 == 3:
                    filling.rebuild({"a": {"n": -number}})
                wanted = -number if number % 7 == 3 else number
                other.stdin.write("a\n")
                other.stdin.flush()
                assert other.stdout.readline() == f"{wanted}\n"
            other.stdin.close()
            assert other.wait(20) == 0


def test_readers_never_meet_an_error_while_files_are_replaced(hw: Store, filling: Filling) -> None:
    filling.connection.execute("PRAGMA synchronous = OFF")
    filling.put({"a": {"n": 1}})
    over = threading.Event()

    def read() -> tuple[int, list[HeadwaterError]]:
        reads, errors = 0, []
        while not over.is_set():
            opened = open_directory(
                hw.path, create=False
            )  # with connections of its own, so that files are opened each time
            try:
                with opened:
                    assert opened.binder("baskets").count() == 1
            except HeadwaterError as error:
                errors.append(error)
            reads += 1
        return reads, errors

    with ThreadPoolExecutor(2) as threads:
        reading = [threads.submit(read) for _ in range(2)]
        try:
            for _ in range(30):
                filling.rebuild({"a": {"n": 1}})
        finally:
            over.set()
        for each in reading:
            reads, errors = each.result(30)
            assert errors == []
            assert reads > 0
