"""The file of users: private, whole, and without a secret in it."""

import hashlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from headwater.disk.disk import Clock, Disk
from headwater.errors import Invalid, NotFound
from headwater.server.users import COST, Account, Cost, Password, Token, changing, read
from tests.server.people import QUICK, SECRET, add


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    return tmp_path / "users.json"


def test_users_are_read_back_as_they_were_added(users_file: Path) -> None:
    token = add(users_file, "ada", "read:*", "append:a.*", password=SECRET, token=True, subjects="CN=ada|CN=countess")
    add(users_file, "bob", subjects="CN=bob")
    users = read(users_file, Disk())
    assert list(users.accounts) == ["ada", "bob"]
    assert users.accounts["ada"].scopes == ("read:*", "append:a.*")
    assert users.by_token == {hashlib.sha256(token.encode()).digest(): users.users["ada"]}
    assert {subject: user.name for subject, user in users.by_subject.items()} == {
        "CN=ada": "ada",
        "CN=countess": "ada",
        "CN=bob": "bob",
    }


def test_the_file_holds_no_secret_and_is_private_whatever_the_umask(users_file: Path) -> None:
    before = os.umask(0)
    try:
        token = add(users_file, "ada", password=SECRET, token=True)
    finally:
        os.umask(before)
    assert users_file.stat().st_mode & 0o777 == 0o600
    written = users_file.read_text()
    assert SECRET not in written
    assert token not in written
    assert token.split("_", 2)[2] not in written  # which may hold underscores itself


def test_a_file_is_private_before_anything_is_in_it(users_file: Path) -> None:
    modes: list[int] = []

    class Watching(Disk):
        def write(self, fd: int, data: bytes, position: int) -> None:
            modes.append(os.fstat(fd).st_mode & 0o777)
            super().write(fd, data, position)

        def create_private(self, path: Path) -> int:
            fd = super().create_private(path)
            modes.append(os.fstat(fd).st_mode & 0o777)
            return fd

    before = os.umask(0)
    try:
        with changing(users_file, Watching(), Clock()) as accounts:
            accounts["ada"] = Account(scopes=("read:*",))
    finally:
        os.umask(before)
    assert modes == [0o600, 0o600]


def test_mode_and_links_stay_as_the_operator_made_them(users_file: Path, tmp_path: Path) -> None:
    add(users_file, "ada")
    users_file.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(users_file)
    add(link, "bob")
    assert link.is_symlink()
    assert users_file.stat().st_mode & 0o777 == 0o640
    assert list(read(users_file, Disk()).accounts) == ["ada", "bob"]


def test_a_file_that_others_may_change_is_refused(users_file: Path) -> None:
    add(users_file, "ada")
    for mode in (0o620, 0o602):
        users_file.chmod(mode)
        with pytest.raises(Invalid, match="is writable by others") as caught:
            read(users_file, Disk())
        assert (caught.value.code, caught.value.hint) == ("users_file_exposed", f"chmod 600 {users_file}")


def test_a_file_that_everyone_may_read_is_warned_of(users_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    add(users_file, "ada")
    users_file.chmod(0o640)
    with caplog.at_level(logging.WARNING):
        read(users_file, Disk())
        assert caplog.messages == []
        users_file.chmod(0o644)
        read(users_file, Disk())
    assert len(caplog.messages) == 1
    assert f"chmod 600 {users_file}" in caplog.messages[0]


def test_a_missing_file_says_how_to_make_one(users_file: Path) -> None:
    with pytest.raises(NotFound) as caught:
        read(users_file, Disk())
    assert caught.value.code == "users_not_found"
    assert f"headwater auth add {users_file}" in caught.value.hint


def whole(users: str) -> str:
    return f'{{"version": 1, "users": {users}}}'


def with_cost(cost: str) -> str:
    return whole(f'{{"a": {{"scopes": [], "password": {{"cost": {cost}, "salt": "", "hash": ""}}}}}}')


@pytest.mark.parametrize(
    "written",
    [
        "",
        "{",
        "[]",
        '{"users": {}}',
        '{"version": 2, "users": {}}',
        whole('{"ada": {}}'),
        whole('{"ada": {"scopes": ["fly:*"]}}'),
        whole('{"ada": {"scopes": [], "pasword": 1}}'),
        whole('{"a:b": {"scopes": []}}'),
        whole('{"": {"scopes": []}}'),
        whole('{"a\\nb": {"scopes": []}}'),
        whole('{"' + "x" * 65 + '": {"scopes": []}}'),
        whole('{"a": {"scopes": [], "subjects": ["CN=x"]}, "b": {"scopes": [], "subjects": ["CN=x"]}}'),
        whole('{"a": {"scopes": [], "tokens": {"x": {"sha256": "?", "made": "now"}}}}'),
        with_cost('{"n": 3, "r": 8, "p": 1}'),
        with_cost('{"n": 16, "r": 8, "p": 0}'),
        with_cost('{"n": 1048576, "r": 64, "p": 1}'),
    ],
)
def test_a_file_that_is_wrong_is_refused(users_file: Path, written: str) -> None:
    users_file.write_text(written)
    users_file.chmod(0o600)
    with pytest.raises(Invalid, match="is not a users file") as caught:
        read(users_file, Disk())
    assert caught.value.code == "bad_users_file"
    with pytest.raises(Invalid), changing(users_file, Disk(), Clock()):
        pass
    assert users_file.read_text() == written


def test_the_example_of_the_docs_can_be_read(users_file: Path) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "SECURITY.md").read_text(encoding="utf-8")
    users_file.write_text(page.partition("```json\n")[2].partition("```")[0])
    users_file.chmod(0o600)
    assert read(users_file, Disk()).by_subject["CN=shop,O=Example"].may("append", "orders.eu")


def test_a_huge_file_is_not_read(users_file: Path) -> None:
    with users_file.open("wb") as file:
        file.truncate(16 * 1024 * 1024 + 1)
    users_file.chmod(0o600)
    with pytest.raises(Invalid, match="bytes; the limit is"):
        read(users_file, Disk())


def test_an_error_leaves_the_file_as_it_was(users_file: Path) -> None:
    add(users_file, "ada")
    before = users_file.read_bytes()
    with pytest.raises(KeyError), changing(users_file, Disk(), Clock()) as accounts:
        del accounts["ada"], accounts["nobody"]
    with pytest.raises(Invalid), changing(users_file, Disk(), Clock()) as accounts:
        accounts["bad:name"] = accounts["ada"]
    assert users_file.read_bytes() == before
    add(users_file, "bob")  # the lock was let go of


@pytest.mark.parametrize("step", ["write", "fdatasync", "rename"])
def test_a_failing_disk_leaves_the_old_file_and_nothing_beside_it(users_file: Path, step: str) -> None:
    add(users_file, "ada")
    before = users_file.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    disk = Disk()
    setattr(disk, step, fail)
    with pytest.raises(OSError, match="No space"), changing(users_file, disk, Clock()) as accounts:
        accounts.clear()
    assert users_file.read_bytes() == before
    assert os.listdir(users_file.parent) == ["users.json"]


def test_the_file_is_synced_before_it_takes_its_name_and_the_directory_after(users_file: Path) -> None:
    done: list[str] = []

    def noting(disk: Disk, name: str) -> None:
        real: Callable[..., object] = getattr(disk, name)

        def note(*arguments: object) -> object:
            done.append(name)
            return real(*arguments)

        setattr(disk, name, note)

    disk = Disk()
    for name in ("write", "fdatasync", "rename", "sync_directory"):
        noting(disk, name)
    with changing(users_file, disk, Clock()) as accounts:
        accounts["ada"] = Account(scopes=("read:*",))
    assert done == ["write", "fdatasync", "rename", "sync_directory"]


def test_changes_at_the_same_time_are_all_kept(users_file: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: add(users_file, f"user{number}"), range(40)))
    assert len(read(users_file, Disk()).accounts) == 40


def test_tokens_are_random_and_carry_their_id() -> None:
    made = [Token.new(Clock()) for _ in range(100)]
    assert len({id for id, _, _ in made}) == 100
    assert len({text.split("_", 2)[2] for _, text, _ in made}) == 100
    for id, text, kept in made:
        prefix, named, secret = text.split("_", 2)
        assert (prefix, named) == ("hw", id)
        assert len(secret) == 43  # 256 bits
        assert kept.sha256 == hashlib.sha256(text.encode()).digest()


def test_a_password_is_known_again_and_salted() -> None:
    first, second = (Password.of(SECRET, Clock(), QUICK) for _ in range(2))
    assert first.is_of(SECRET.encode())
    assert not first.is_of(SECRET.encode() + b"x")
    assert not first.is_of(b"")
    assert first.salt != second.salt
    assert first.hash != second.hash
    assert hashlib.scrypt(SECRET.encode(), salt=first.salt, n=16, r=8, p=1, dklen=32) == first.hash


def test_passwords_cost_what_owasp_asks() -> None:
    assert Cost(n=2**14, r=8, p=5) == COST
    assert Password.of(SECRET, Clock()).cost == COST


@pytest.mark.parametrize("text", ["", "short", "x" * 1025])
def test_a_password_of_a_bad_length_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        Password.of(text, Clock(), QUICK)
    assert caught.value.code == "bad_password"
    assert not text or text not in str(caught.value)


def test_nobody_has_the_cost_of_the_dearest_password_and_no_password_fits(users_file: Path) -> None:
    assert read_nobody(users_file) == COST
    with changing(users_file, Disk(), Clock()) as accounts:
        dear = Cost(n=64, r=8, p=2)
        accounts["dear"] = Account(scopes=(), password=Password.of(SECRET, Clock(), dear))
        accounts["cheap"] = Account(scopes=(), password=Password.of(SECRET, Clock(), QUICK))
    users = read(users_file, Disk())
    assert users.nobody.cost == dear
    assert not users.nobody.is_of(b"")
    assert not users.nobody.is_of(SECRET.encode())


def read_nobody(path: Path) -> Cost:
    with changing(path, Disk(), Clock()):
        pass
    assert msgspec.json.decode(path.read_bytes()) == {"version": 1, "users": {}}
    return read(path, Disk()).nobody.cost
