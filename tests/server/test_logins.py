"""Access by a file of users: tokens at once, passwords once for each connection, and a file that changes meanwhile."""

import hashlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.errors import Denied, Unavailable
from headwater.limits import ServerLimits
from headwater.server.http.errors import response_of
from headwater.server.http.message import Client
from headwater.server.logins import FileAccess
from tests.server.people import SECRET, HandClock, add, basic, bearer, revoke

HERE = "192.0.2.1"


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    return tmp_path / "users.json"


@pytest.fixture
def hand_clock() -> HandClock:
    return HandClock()


@pytest.fixture
def scrypts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """The costs of all passwords that are checked."""
    seen: list[tuple[int, int, int]] = []
    real: Callable[..., bytes] = hashlib.scrypt

    def scrypt(*arguments: Any, **options: Any) -> bytes:
        seen.append((options["n"], options["r"], options["p"]))
        return real(*arguments, **options)

    monkeypatch.setattr(hashlib, "scrypt", scrypt)
    return seen


def refused(access: FileAccess, headers: dict[str, str], client: Client | None = None) -> str:
    """The message with which somebody is turned away."""
    client = client or Client(HERE)
    assert access.known(headers, client) is None
    with pytest.raises(Denied) as caught:
        access.check(headers, client)
    assert caught.value.code == "unauthenticated"
    return caught.value.message


def name_of(access: FileAccess, headers: dict[str, str], client: Client) -> str | None:
    user = access.known(headers, client)
    return None if user is None else user.name


def test_a_token_is_known_at_once_and_nothing_is_read(users_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = add(users_file, "shop", "append:orders.*", token=True)
    access = FileAccess(users_file, clock=HandClock())
    monkeypatch.setattr(access, "_disk", None)
    user = access.known(bearer(token), Client(HERE))
    assert user is not None
    assert (user.name, user.may("append", "orders.eu"), user.may("read", "orders.eu")) == ("shop", True, False)
    assert access.known({"authorization": f"bearer  {token} "}, Client(HERE)) is user


def test_who_sends_nothing_or_nonsense_is_turned_away(users_file: Path) -> None:
    token = add(users_file, "ada", password=SECRET, token=True)
    access = FileAccess(users_file, clock=HandClock())
    assert refused(access, {}) == "credentials required"
    assert refused(access, bearer(token[:-1])) == "unknown token"
    assert refused(access, bearer(token.upper())) == "unknown token"
    assert refused(access, bearer("")) == "unknown token"
    assert "unsupported Authorization scheme 'Digest'" in refused(access, {"authorization": "Digest username=ada"})
    assert "base64" in refused(access, {"authorization": "Basic ???"})
    assert "base64" in refused(access, {"authorization": "Basic YWRh"})  # no colon
    sent = basic("ada", SECRET)["authorization"]
    assert "base64" in refused(access, {"authorization": sent[:10] + "!" + sent[10:]})
    for scheme in ("Bearer", "Basic", "\udcff"):
        refused(access, {"authorization": f"{scheme} \udcff"})
    assert "base64" in refused(access, {"authorization": "Basic /zr/"})  # no UTF-8
    assert refused(access, basic("ada", "wrong horse")) == "wrong user name or password"
    assert refused(access, basic("eve", SECRET)) == "wrong user name or password"
    assert refused(access, basic("ada", "")) == "wrong user name or password"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.text(max_size=80) | st.text(max_size=80).map("Basic {}".format) | st.text().map("Bearer {}".format))
def test_no_header_gets_in_by_chance_or_makes_a_fault(users_file: Path, said: str) -> None:
    if not users_file.exists():
        add(users_file, "ada", password=SECRET, token=True)
    refused(FileAccess(users_file, clock=HandClock()), {"authorization": said})


def test_a_user_without_a_password_is_not_let_in_with_an_empty_one(users_file: Path) -> None:
    add(users_file, "shop", token=True)
    access = FileAccess(users_file, clock=HandClock())
    assert refused(access, basic("shop", "")) == "wrong user name or password"


def test_a_password_is_checked_once_for_each_connection(users_file: Path, scrypts: list[Any]) -> None:
    add(users_file, "ada", password=SECRET)
    access = FileAccess(users_file, clock=HandClock())
    scrypts.clear()
    here, there = Client(HERE), Client(HERE)
    right, wrong = basic("ada", SECRET), basic("ada", SECRET + "!")
    assert access.known(right, here) is None
    assert access.check(right, here).name == "ada"
    assert len(scrypts) == 1
    assert name_of(access, right, here) == "ada"
    assert access.check(right, here).name == "ada"
    assert len(scrypts) == 1
    assert access.known(wrong, here) is None
    assert access.known(right, there) is None
    assert access.check(right, there).name == "ada"
    assert len(scrypts) == 2


def test_a_connection_keeps_no_password_and_a_bounded_number_of_proofs(users_file: Path) -> None:
    for name in ("ada", "bob", "eve"):
        add(users_file, name, password=SECRET)
    access = FileAccess(users_file, clock=HandClock(), limits=ServerLimits(proofs_max=2))
    client = Client(HERE)
    for name in ("ada", "bob", "eve"):
        sent = basic(name, SECRET)
        access.check(sent, client)
        assert name_of(access, sent, client) == name
        assert SECRET not in repr(client.cache)
        assert sent["authorization"].partition(" ")[2] not in repr(client.cache)
        assert len(client.cache["proofs"]) <= 2


def test_unknown_users_cost_the_same_as_wrong_passwords(users_file: Path, scrypts: list[Any]) -> None:
    add(users_file, "ada", password=SECRET)
    add(users_file, "shop", token=True)
    access = FileAccess(users_file, clock=HandClock())
    scrypts.clear()
    for name in ("ada", "shop", "eve"):
        refused(access, basic(name, "wrong horse"))
    assert scrypts == [(16, 8, 1)] * 3


def test_a_certificate_stands_for_its_user_and_a_header_goes_before_it(users_file: Path) -> None:
    add(users_file, "ada", subjects="CN=ada,O=Shop")
    token = add(users_file, "bob", token=True)
    access = FileAccess(users_file, clock=HandClock())
    client = Client(HERE, secure=True, certificate="CN=ada,O=Shop")
    assert name_of(access, {}, client) == "ada"
    assert access.check({}, client).name == "ada"
    assert name_of(access, bearer(token), client) == "bob"
    assert refused(access, bearer("wrong"), client) == "unknown token"
    other = Client(HERE, secure=True, certificate="CN=ada")
    assert refused(access, {}, other) == "the certificate's subject 'CN=ada' belongs to no user"


def test_a_new_token_counts_at_once(users_file: Path) -> None:
    add(users_file, "ada", token=True)
    access = FileAccess(users_file, clock=HandClock())
    token = add(users_file, "shop", token=True)
    assert access.known(bearer(token), Client(HERE)) is None
    assert access.check(bearer(token), Client(HERE)).name == "shop"
    assert name_of(access, bearer(token), Client(HERE)) == "shop"


def test_a_revoked_token_counts_for_a_second_at_most(users_file: Path, hand_clock: HandClock) -> None:
    token = add(users_file, "shop", token=True)
    access = FileAccess(users_file, clock=hand_clock)
    revoke(users_file, "shop")
    hand_clock.now += 0.99
    assert name_of(access, bearer(token), Client(HERE)) == "shop"
    hand_clock.now += 0.02
    for _ in range(2):  # whoever asks twice before `check` gets no other answer
        assert access.known(bearer(token), Client(HERE)) is None
    assert refused(access, bearer(token)) == "unknown token"


def test_an_unchanged_file_is_looked_at_and_not_read_again(users_file: Path, hand_clock: HandClock) -> None:
    token = add(users_file, "shop", token=True)
    access = FileAccess(users_file, clock=hand_clock)
    before = access._users
    for _ in range(3):
        hand_clock.now += 5
        assert access.known(bearer(token), Client(HERE)) is None
        assert access.check(bearer(token), Client(HERE)).name == "shop"
        assert name_of(access, bearer(token), Client(HERE)) == "shop"
    assert access._users is before


def test_a_changed_password_ends_what_was_proven_and_other_changes_do_not(
    users_file: Path, hand_clock: HandClock
) -> None:
    add(users_file, "ada", password=SECRET)
    access = FileAccess(users_file, clock=hand_clock)
    client = Client(HERE)
    access.check(basic("ada", SECRET), client)
    add(users_file, "bob", token=True)
    refused(access, {})  # has the file looked at
    assert name_of(access, basic("ada", SECRET), client) == "ada"
    add(users_file, "ada", password="another horse")
    refused(access, {})
    assert refused(access, basic("ada", SECRET), client) == "wrong user name or password"
    assert access.check(basic("ada", "another horse"), client).name == "ada"


def test_a_changed_scope_is_seen_on_connections_that_are_open(users_file: Path, hand_clock: HandClock) -> None:
    add(users_file, "ada", "read:*", password=SECRET)
    access = FileAccess(users_file, clock=hand_clock)
    client = Client(HERE)
    assert access.check(basic("ada", SECRET), client).may("read", "orders")
    text = users_file.read_text().replace("read:*", "read:stock")
    users_file.write_text(text)
    hand_clock.now += 1
    assert not access.check(basic("ada", SECRET), client).may("read", "orders")


@pytest.mark.parametrize("damage", ["broken", "gone", "exposed"])
def test_a_bad_file_changes_nothing_and_is_told(
    users_file: Path, hand_clock: HandClock, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    token = add(users_file, "shop", token=True)
    access = FileAccess(users_file, clock=hand_clock)
    good = users_file.read_bytes()
    if damage == "gone":
        users_file.unlink()
    elif damage == "broken":
        users_file.write_bytes(good[:-10])
    else:
        users_file.write_bytes(good.replace(b"shop", b"evil"))
        users_file.chmod(0o666)
    hand_clock.now += 1
    with caplog.at_level(logging.WARNING):
        assert access.check(bearer(token), Client(HERE)).name == "shop"
        assert access.check(bearer(token), Client(HERE)).name == "shop"
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("the users file was not reloaded: ")
    users_file.unlink(missing_ok=True)
    again = add(users_file, "shop", token=True)
    hand_clock.now += 1
    assert access.check(bearer(again), Client(HERE)).name == "shop"
    refused(access, bearer(token))


def too_many(access: FileAccess, headers: dict[str, str], address: str) -> int:
    """For how many seconds an address is to wait."""
    with pytest.raises(Unavailable) as caught:
        access.check(headers, Client(address))
    assert caught.value.code == "too_many_failures"
    seconds: int = caught.value.retry_s
    return seconds


def test_wrong_passwords_are_limited_for_each_address(
    users_file: Path, hand_clock: HandClock, scrypts: list[Any]
) -> None:
    token = add(users_file, "ada", password=SECRET, token=True)
    access = FileAccess(users_file, clock=hand_clock)
    proven = Client(HERE)
    access.check(basic("ada", SECRET), proven)
    for _ in range(10):
        refused(access, basic("ada", "wrong horse"))
    scrypts.clear()
    assert too_many(access, basic("ada", SECRET), HERE) == 6
    assert scrypts == []  # turned away before it costs anything
    assert name_of(access, bearer(token), Client(HERE)) == "ada"
    assert name_of(access, basic("ada", SECRET), proven) == "ada"
    assert access.check(basic("ada", SECRET), Client("192.0.2.2")).name == "ada"
    hand_clock.now += 6.1
    refused(access, basic("ada", "wrong horse"))
    assert too_many(access, basic("ada", SECRET), HERE) == 6
    hand_clock.now += 6.1
    assert access.check(basic("ada", SECRET), Client(HERE)).name == "ada"
    hand_clock.now += 60
    for _ in range(10):
        refused(access, basic("ada", "wrong horse"))
    too_many(access, basic("ada", SECRET), HERE)


def test_addresses_of_one_network_are_counted_together(users_file: Path) -> None:
    add(users_file, "ada", password=SECRET)
    access = FileAccess(users_file, clock=HandClock())
    for number in range(10):
        refused(access, basic("ada", "wrong horse"), Client(f"2001:db8::{number:x}"))
        refused(access, basic("ada", "wrong horse"), Client("::ffff:192.0.2.1"))
    too_many(access, basic("ada", SECRET), "2001:db8::ffff:1")
    too_many(access, basic("ada", SECRET), "192.0.2.1")
    assert access.check(basic("ada", SECRET), Client("2001:db8:0:1::1")).name == "ada"


def test_what_is_remembered_of_addresses_is_bounded(users_file: Path) -> None:
    add(users_file, "ada", password=SECRET)
    access = FileAccess(users_file, clock=HandClock(), limits=ServerLimits(password_addresses_max=3))
    for number in range(10):
        refused(access, basic("ada", "wrong horse"), Client(f"192.0.2.{number}"))
    assert list(access._attempts._free_at) == ["192.0.2.7", "192.0.2.8", "192.0.2.9"]


def test_passwords_that_wait_are_bounded(users_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(users_file, "ada", password=SECRET)
    limits = ServerLimits(password_checks_max=1, password_queue_max=3)
    access = FileAccess(users_file, clock=HandClock(), limits=limits)
    begun, go_on = Event(), Event()
    real: Callable[..., bytes] = hashlib.scrypt
    at_once: list[int] = []

    def slow(*arguments: Any, **options: Any) -> bytes:
        at_once.append(1)
        assert len(at_once) == 1
        begun.set()
        assert go_on.wait(20)
        at_once.pop()
        return real(*arguments, **options)

    monkeypatch.setattr(hashlib, "scrypt", slow)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(access.check, basic("ada", SECRET), Client(HERE)) for _ in range(8)]
        try:
            assert begun.wait(20)
            turned_away = list(islice(as_completed(asked, 20), 5))  # the others wait
        finally:
            go_on.set()
        for each in turned_away:
            error = each.exception()
            assert isinstance(error, Unavailable)
            assert error.code == "overloaded"
        assert [each.result().name for each in asked if each not in turned_away] == ["ada"] * 3
    assert access.check(basic("ada", SECRET), Client(HERE)).name == "ada"  # everyone has left the queue


def test_errors_become_answers(users_file: Path, hand_clock: HandClock) -> None:
    add(users_file, "ada", password=SECRET)
    access = FileAccess(users_file, clock=hand_clock)
    with pytest.raises(Denied) as denied:
        access.check({}, Client(HERE))
    assert response_of(denied.value).status == 401
    assert response_of(Denied("no")).status == 403
    assert response_of(Denied("no", code="company_rule")).status == 403
    for _ in range(10):
        refused(access, basic("ada", "wrong horse"))
    with pytest.raises(Unavailable) as later:
        access.check(basic("ada", SECRET), Client(HERE))
    response = response_of(later.value)
    assert response.status == 429
    assert ("retry-after", "6") in response.headers
