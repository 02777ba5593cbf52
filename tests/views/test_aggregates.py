"""Aggregates: made of the events of a key, saved if nobody else was first, loaded from a snapshot if there is one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater
from headwater import Aggregate, App, Conflict, Event, Invalid, Repository, Store
from headwater.opening import open_directory
from headwater.views.aggregate import SNAPSHOT_EVENT
from tests.server.serving import Server


class Account(Aggregate):
    balance = 0

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.notes: list[str] = []
        self._applied: list[int] = []  # not part of the state

    def withdraw(self, amount: int) -> None:
        if amount > self.balance:
            raise ValueError("not enough")
        self.record("withdrawn", {"amount": amount})

    def apply_deposited(self, event: Event) -> None:
        self._applied.append(event.offset)
        self.balance += event.value["amount"]

    def apply_withdrawn(self, event: Event) -> None:
        self._applied.append(event.offset)
        self.balance -= event.value["amount"]

    def apply_note_added_2(self, event: Event) -> None:
        self._applied.append(event.offset)
        self.notes.append(event.value)


@pytest.fixture(params=["directory", "http"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "data")
    url: str = request.getfixturevalue("server").url
    return url


def deposit(accounts: Repository[Account], id: str, amount: int) -> Account:
    account = accounts.load(id)
    account.record("deposited", {"amount": amount})
    accounts.save(account)
    return account


# Recording and applying


def test_what_is_recorded_is_applied_and_kept() -> None:
    account = Account("a-1")
    account.record("deposited", {"amount": 50}, {"by": "ann"})
    account.withdraw(20)
    assert account.balance == 30
    assert [(event.type, event.value, event.meta) for event in account.changes] == [
        ("deposited", {"amount": 50}, {"by": "ann"}),
        ("withdrawn", {"amount": 20}, {}),
    ]
    assert (account.id, account.version) == ("a-1", None)


def test_what_cannot_be_applied_is_not_kept() -> None:
    account = Account("a-1")
    with pytest.raises(KeyError):
        account.record("deposited", {})
    with pytest.raises(Invalid):
        account.record("deposited", {"amount": object()})
    assert (account.balance, account.changes) == (0, ())


def test_a_type_without_a_method_names_the_one_that_is_missing() -> None:
    with pytest.raises(Invalid) as caught:
        Account("a-1").record("closed.for-good", {})
    assert caught.value.code == "cannot_apply"
    assert "apply_closed_for_good(self, event)" in caught.value.hint


def test_apply_may_take_all_other_types() -> None:
    class Counter(Aggregate):
        others = 0

        def apply(self, _event: Event) -> None:
            self.others += 1

    counter = Counter("c")
    counter.record("this", {})
    counter.record("that", {})
    assert counter.others == 2


def test_what_cannot_stand_in_a_name_becomes_an_underscore() -> None:
    account = Account("a-1")
    account.record("note.added/2", "hello")
    assert account.notes == ["hello"]


@pytest.mark.parametrize(
    ("data", "content", "value"),
    [
        ({"a": (1, 2)}, None, {"a": [1, 2]}),
        ("text", None, "text"),
        (b"bytes", None, b"bytes"),
        (b'{"a": 1}', "json", {"a": 1}),
        (b"\x0c\x00\x00\x00\x10a\x00\x01\x00\x00\x00\x00", "bson", {"a": 1}),
    ],
)
def test_a_recorded_event_looks_like_the_one_that_is_read_later(hw: Store, data: Any, content: Any, value: Any) -> None:
    seen: list[Event] = []

    class Watcher(Aggregate):
        def apply(self, event: Event) -> None:
            seen.append(event)

    watchers = Repository(hw, "t", Watcher)
    watcher = Watcher("w")
    watcher.record("seen", data, {"m": "1"}, content=content)
    watchers.save(watcher)
    watchers.load("w")
    first, later = seen
    for each in (first, later):
        assert (each.type, each.key, each.value, each.content, each.meta) == (
            "seen",
            b"w",
            value,
            later.content,
            {"m": "1"},
        )
    assert first.data == later.data
    assert (first.offset, first.partition) == (-1, -1)
    for unknown in ("id", "time"):
        with pytest.raises(Invalid, match="before it is saved"):
            getattr(first, unknown)


# Loading and saving


def test_a_key_without_events_is_a_new_aggregate(address: str) -> None:
    with headwater.open(address) as hw:
        account = Repository(hw, "nothing here", Account).load("a-1")
        assert (account.balance, account.version, account.changes) == (0, None, ())
        assert "nothing here" not in hw.topics()


@pytest.mark.parametrize("partitions", [1, 4])
def test_what_is_saved_is_loaded_with_its_version(address: str, partitions: int) -> None:
    with headwater.open(address) as hw:
        topic = f"saved {partitions}"
        hw.create(topic, partitions=partitions)
        accounts = Repository(hw, topic, Account)
        for number in range(10):
            deposit(accounts, f"a-{number}", number)
        account = accounts.load("a-7")
        account.record("deposited", {"amount": 50})
        account.withdraw(20)
        accounts.save(account)
        assert account.changes == ()
        assert account.version == hw.version(topic, "a-7")
        accounts.save(account)  # nothing to do
        again = accounts.load("a-7")
        assert (again.balance, again.version, again.changes) == (37, account.version, ())
        account.withdraw(30)
        accounts.save(account)  # goes on from what it saved
        assert accounts.load("a-7").balance == 7


def test_who_saves_later_has_a_conflict_and_an_unchanged_aggregate(address: str) -> None:
    with headwater.open(address) as hw:
        accounts = Repository(hw, "conflicts", Account)
        first, second = accounts.load("a-1"), accounts.load("a-1")
        for account in (first, second):
            account.record("deposited", {"amount": 10})
        accounts.save(first)
        for _ in range(2):
            with pytest.raises(Conflict):
                accounts.save(second)
            assert (second.balance, second.version, len(second.changes)) == (10, None, 1)
        again = accounts.load("a-1")
        again.record("deposited", {"amount": 10})
        accounts.save(again)
        assert accounts.load("a-1").balance == 20


def test_several_kinds_of_data_are_saved_all_or_nothing(address: str) -> None:
    with headwater.open(address) as hw:
        accounts = Repository(hw, "mixed", Account)
        stale = accounts.load("a-1")
        account = accounts.load("a-1")
        for each in (stale, account):
            each.record("deposited", {"amount": 5})
            each.record("note.added.2", "a text")
        accounts.save(account)
        with pytest.raises(Conflict):
            accounts.save(stale)
        again = accounts.load("a-1")
        assert (again.balance, again.notes, again.version) == (5, ["a text"], account.version)
        assert len(list(hw.read("mixed"))) == 2


def test_events_that_were_put_into_another_partition_are_not_the_keys_own(hw: Store) -> None:
    hw.create("t", partitions=2)
    accounts = Repository(hw, "t", Account)
    own = deposit(accounts, "a-1", 5)
    [event] = hw.read("t")
    hw.append("t", {"amount": 100}, type="deposited", key="a-1", partition=1 - event.partition)
    loaded = accounts.load("a-1")
    assert (loaded.balance, loaded.version) == (5, own.version)


def test_a_topic_that_was_made_again_with_other_partitions_is_found(hw: Store) -> None:
    for before, after in ((1, 7), (7, 1), (2, 5)):
        hw.create("t", partitions=before)
        accounts = Repository(hw, "t", Account)
        for number in range(10):
            deposit(accounts, f"a-{number}", 1)
        hw.delete("t")
        hw.create("t", partitions=after)
        other = Repository(hw, "t", Account)
        for number in range(10):
            deposit(other, f"a-{number}", 2)
            assert accounts.load(f"a-{number}").balance == 2
        hw.delete("t")
        assert accounts.load("a-1").version is None


# Snapshots


def snapshots_of(hw: Store) -> App:
    app = App()
    app.aggregate("accounts", Account, "snapshots")
    app.catch_up(hw)
    return app


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_snapshot_is_gone_on_from(hw: Store, partitions: int) -> None:
    hw.create("accounts", partitions=partitions)
    accounts = Repository(hw, "accounts", Account, snapshots="snapshots")
    for number in range(1, 6):
        for id in ("a-1", "a-2", "a-3"):
            deposit(accounts, id, number)
    app = snapshots_of(hw)
    at = accounts.load("a-1")
    assert (at.balance, at._applied, at.version) == (15, [], hw.version("accounts", "a-1"))
    behind = deposit(accounts, "a-1", 1)
    loaded = accounts.load("a-1")
    assert (loaded.balance, loaded._applied, loaded.version) == (16, [behind.version], behind.version)
    app.catch_up(hw)
    assert accounts.load("a-1")._applied == []
    at.record("deposited", {"amount": 1})
    with pytest.raises(Conflict):
        accounts.save(at)


def test_a_snapshot_is_gone_on_from_on_a_server(server: Server) -> None:
    with open_directory(server.path) as hw, headwater.open(server.url) as remote:
        accounts = Repository(remote, "accounts", Account, snapshots="snapshots")
        deposit(accounts, "a-1", 5)
        assert accounts.load("a-1")._applied == [0]
        snapshots_of(hw)
        deposit(accounts, "a-1", 6)
        loaded = accounts.load("a-1")
        assert (loaded.balance, loaded._applied, loaded.version) == (11, [1], 1)


def test_a_snapshot_is_a_document_with_the_state(hw: Store) -> None:
    accounts = Repository(hw, "accounts", Account)
    account = accounts.load("a-1")
    account.record("deposited", {"amount": 5})
    account.record("note.added.2", "hello")
    accounts.save(account)
    snapshots_of(hw)
    found = hw.binder("snapshots").get("a-1")
    assert found is not None
    assert found.version == account.version
    last = [event.id for event in hw.read("accounts")][-1]
    assert found.data == {"balance": 5, "notes": ["hello"], SNAPSHOT_EVENT: str(last)}


def test_without_the_binder_all_events_are_read(hw: Store) -> None:
    accounts = Repository(hw, "accounts", Account, snapshots="snapshots")
    deposit(accounts, "a-1", 5)
    assert accounts.load("a-1")._applied == [0]
    snapshots_of(hw)
    deposit(accounts, "a-2", 5)
    assert accounts.load("a-2")._applied == [1]  # nor is there a snapshot of every key
    assert accounts.load("a-1")._applied == []
    shutil.rmtree(hw.path / "binders")
    assert accounts.load("a-1")._applied == [0]


@pytest.mark.parametrize("events", [1, 2, 5])
def test_a_snapshot_of_a_topic_that_was_deleted_since_is_passed_over(hw: Store, events: int) -> None:
    accounts = Repository(hw, "accounts", Account, snapshots="snapshots")
    for _ in range(2):
        deposit(accounts, "a-1", 100)
    snapshots_of(hw)
    hw.delete("accounts")
    assert accounts.load("a-1").balance == 0
    for _ in range(events):
        deposit(accounts, "a-1", 1)
    assert accounts.load("a-1").balance == events


def test_a_state_of_ones_own_is_kept_and_restored(hw: Store) -> None:
    class Tags(Aggregate):
        def __init__(self, id: str) -> None:
            super().__init__(id)
            self.tags: set[str] = set()
            self.applied = 0

        def apply(self, event: Event) -> None:
            self.tags.add(event.value)
            self.applied += 1

        def state(self) -> dict[str, Any]:
            return {"tags": sorted(self.tags)}

        def restore(self, state: dict[str, Any]) -> None:
            self.tags = set(state["tags"])

    app = App()
    app.aggregate("tags", Tags, "tag-snapshots")
    tags = Repository(hw, "tags", Tags, snapshots="tag-snapshots")
    new = tags.load("t")
    for tag in ("b", "a", "b"):
        new.record("tagged", tag)
    tags.save(new)
    app.catch_up(hw)
    assert (tags.load("t").tags, tags.load("t").applied) == ({"a", "b"}, 0)


def test_a_state_that_is_none_would_lose_the_snapshot_and_stops_the_projection(hw: Store) -> None:
    class Gone(Account):
        def state(self) -> dict[str, Any]:
            return cast("dict[str, Any]", None)

    app = App()
    app.aggregate("accounts", Gone, "snapshots")
    deposit(Repository(hw, "accounts", Account), "a-1", 1)
    with pytest.raises(headwater.Unavailable, match="state of a Gone must be a dict"):
        app.catch_up(hw)


Step = tuple[str, str, int]


@settings(max_examples=10)
@given(
    st.lists(
        st.tuples(st.sampled_from(["save", "stale", "snapshot"]), st.sampled_from("abc"), st.integers(1, 9)),
        max_size=10,
    )
)
def test_an_aggregate_is_what_its_events_make_with_and_without_snapshots(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    model: dict[str, list[int]] = {}
    with open_directory(tmp_path_factory.mktemp("log"), durability="os") as hw:
        hw.create("accounts", partitions=2)
        plain = Repository(hw, "accounts", Account)
        quick = Repository(hw, "accounts", Account, snapshots="snapshots")
        for kind, id, amount in steps:
            if kind == "snapshot":
                snapshots_of(hw)
                continue
            account = quick.load(id)
            account.record("deposited", {"amount": amount})
            if kind == "stale":
                deposit(plain, id, 100)
                model.setdefault(id, []).append(100)
                with pytest.raises(Conflict):
                    quick.save(account)
            else:
                quick.save(account)
                model.setdefault(id, []).append(amount)
            for each in (plain.load(id), quick.load(id)):
                assert each.balance == sum(model[id])
                assert each.version == hw.version("accounts", id)
