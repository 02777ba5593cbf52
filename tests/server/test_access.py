"""Which access a server has, whether it may serve a network with it, and what a user needs for a request."""

import logging
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from headwater.errors import Denied, Invalid, NotFound
from headwater.server.access import Access, OpenAccess, Scope, User, check_exposure, chosen, loopback, require
from headwater.server.http.message import Client
from headwater.server.logins import FileAccess
from tests.server.people import add, bearer


@pytest.fixture
def access(tmp_path: Path) -> FileAccess:
    add(tmp_path / "users.json", "ada")
    return FileAccess(tmp_path / "users.json")


def test_open_access_lets_everyone_do_everything() -> None:
    access = OpenAccess()
    assert isinstance(access, Access)
    assert access.known({}, Client()) is access.check({}, Client())
    require(access.check({}, Client()), "admin", "orders")
    require(access.check({}, Client()), "admin", None)


def test_who_may_not_is_told_what_is_missing() -> None:
    user = User("ada", [Scope.parse("read:orders")])
    require(user, "read", "orders")
    with pytest.raises(Denied) as caught:
        require(user, "append", "orders")
    error = caught.value
    assert (error.code, error.message) == ("forbidden", "user 'ada' may not append to topic 'orders'")
    assert error.hint == "this needs a scope such as 'append:orders'"
    assert error.facts == {"user": "ada", "action": "append", "topic": "orders"}
    with pytest.raises(Denied, match="may not administer all topics — this needs a scope such as 'admin:\\*'"):
        require(user, "admin", None)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_may_be_open(host: str, caplog: pytest.LogCaptureFixture) -> None:
    assert loopback(host)
    check_exposure(host, OpenAccess())
    assert caplog.messages == []


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "192.0.2.1", "log.example", "localhost.example", "127.0.0.1.example"]
)
def test_a_network_needs_authentication_or_insecure(
    host: str, access: FileAccess, caplog: pytest.LogCaptureFixture
) -> None:
    assert not loopback(host)
    with pytest.raises(Invalid) as caught:
        check_exposure(host, OpenAccess())
    assert caught.value.code == "exposed"
    assert "--auth" in caught.value.hint
    assert "--insecure" in caught.value.hint
    with caplog.at_level(logging.WARNING):
        check_exposure(host, access, tls=True)
        assert caplog.messages == []
        check_exposure(host, access)
        assert "unencrypted" in caplog.messages[-1]
        check_exposure(host, OpenAccess(), insecure=True)
        assert "everyone" in caplog.messages[-1]


def test_built_in_access_is_chosen_by_name(tmp_path: Path) -> None:
    token = add(tmp_path / "a:b.json", "ada", token=True)
    assert isinstance(chosen("open"), OpenAccess)
    assert chosen(f"users:{tmp_path}/a:b.json").check(bearer(token), Client()).name == "ada"
    with pytest.raises(NotFound):
        chosen(f"users:{tmp_path}/missing.json")


def install(site: Path, name: str, points: str, source: str) -> None:
    """A distribution as pip leaves it: a module, and its metadata."""
    (site / f"{name}.py").write_text(dedent(source))
    metadata = site / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[headwater.access]\n{points}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    return site


COMPANY = """
    from headwater import Denied
    from headwater.server.access import Scope, User

    class CompanyAccess:
        authenticates = True
        challenge = "Company"

        def __init__(self, argument):
            self.word = argument

        def known(self, headers, client):
            return None

        def check(self, headers, client):
            if headers.get("authorization") != self.word:
                raise Denied("who are you?", code="unauthenticated")
            return User("ada", [Scope.parse("read:orders.*")])

    class Half:
        authenticates = True
        def __init__(self, argument): pass
"""


def test_an_entry_point_of_an_installed_package_is_chosen_by_name(site: Path) -> None:
    install(site, "company_login", "company = company_login:CompanyAccess", COMPANY)
    access = chosen("company:open:sesame")
    assert access.check({"authorization": "open:sesame"}, Client()).may("read", "orders.eu")
    with pytest.raises(Denied, match="who are you"):
        access.check({}, Client())
    check_exposure("0.0.0.0", access, tls=True)
    assert type(access).__module__ == "company_login"
    del sys.modules["company_login"]


def test_what_is_not_there_or_no_access_is_refused(site: Path) -> None:
    points = "half = half_login:Half\nlost = half_login:Missing\ngone = no_such_module:X\n"
    install(site, "half_login", points, COMPANY)
    for spec, told in (
        ("nothing", "unknown access 'nothing' — available: gone, half, lost, open, users"),
        ("half", "it lacks challenge, known, check"),
        ("lost:x", "cannot be loaded"),
        ("gone", "cannot be loaded: No module named 'no_such_module'"),
    ):
        with pytest.raises(Invalid) as caught:
            chosen(spec)
        assert caught.value.code == "bad_access"
        assert told in str(caught.value)
    del sys.modules["half_login"]


def test_a_name_that_two_packages_offer_is_refused(site: Path) -> None:
    install(site, "one_login", "same = one_login:CompanyAccess", COMPANY)
    install(site, "two_login", "same = two_login:CompanyAccess", COMPANY)
    with pytest.raises(Invalid, match="2 installed packages provide an access 'same'"):
        chosen("same")
