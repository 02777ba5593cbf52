import os
import pty
import re
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headwater.disk.disk import Disk
from headwater.server.http.message import Client
from headwater.server.logins import FileAccess
from headwater.server.users import read
from tests.cli.conftest import Run
from tests.server.people import SECRET, basic, bearer

TOKEN = re.compile(r"hw_([0-9a-f]{8})_[A-Za-z0-9_-]{43}\n")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users.json"


def test_add_prints_a_token_that_counts(run: Run, file: Path) -> None:
    added = run("auth", "add", file, "shop", "--token", "--scope", "append, read:orders.*", "--scope", "read:stock")
    assert TOKEN.fullmatch(added.out)
    assert file.stat().st_mode & 0o777 == 0o600
    user = FileAccess(file).check(bearer(added.out.strip()), Client())
    assert (user.name, [str(scope) for scope in user.scopes]) == ("shop", ["read,append:orders.*", "read:stock"])


def test_add_reads_a_password_from_the_input(run: Run, file: Path) -> None:
    typed = f"{SECRET}\nnot this line\n".encode()
    added = run("auth", "add", file, "ada", "--password-stdin", "--scope", "admin:*", stdin=typed)
    assert added.out == "✓ added user ada\n"
    assert FileAccess(file).check(basic("ada", SECRET), Client()).may("admin", None)


def test_add_asks_for_a_password_on_a_terminal_twice_and_without_showing_it(program: Sequence[str], file: Path) -> None:
    controller, terminal = pty.openpty()
    words = [*program, "auth", "add", str(file), "ada", "--password", "--scope", "read:*"]
    with subprocess.Popen(words, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True) as process:
        os.close(terminal)
        shown = b""
        for prompt in (b"Password: ", b"Once more: "):
            while prompt not in shown:
                shown += os.read(controller, 1000)
            os.write(controller, f"{SECRET}\n".encode())
        while b"added user ada" not in shown:
            shown += os.read(controller, 1000)
        assert process.wait(20) == 0
    os.close(controller)
    assert SECRET.encode() not in shown
    assert FileAccess(file).check(basic("ada", SECRET), Client()).name == "ada"


def test_add_refuses_what_would_be_of_no_use(run: Run, file: Path) -> None:
    scope = ("--scope", "read:*")
    assert "--password, --token or --subject" in run("auth", "add", file, "ada", *scope, code=2).err
    assert "give --scope" in run("auth", "add", file, "ada", "--token", code=2).err
    assert (
        "mutually exclusive"
        in run("auth", "add", file, "ada", "--password", "--password-stdin", *scope, stdin=b"", code=2).err
    )
    assert "--password-stdin" in run("auth", "add", file, "ada", "--password", *scope, stdin=b"", code=2).err
    assert "8 to 1024 bytes" in run("auth", "add", file, "ada", "--password-stdin", *scope, stdin=b"", code=1).err
    assert "is not a scope" in run("auth", "add", file, "ada", "--token", "--scope", "fly:*", code=1).err
    assert "invalid user name 'a:b'" in run("auth", "add", file, "a:b", "--token", *scope, code=1).err
    assert not file.exists()
    run("auth", "add", file, "ada", "--token", *scope)
    again = run("auth", "add", file, "ada", "--token", *scope, code=1).err
    assert "already has a user 'ada'" in again
    assert "auth change" in again
    run("auth", "add", file, "bob", "--subject", "CN=x", *scope)
    assert "'CN=x' belongs to both" in run("auth", "add", file, "eve", "--subject", "CN=x", *scope, code=1).err
    assert list(read(file, Disk()).accounts) == ["ada", "bob"]


def test_change_replaces_what_is_given_and_keeps_the_rest(run: Run, file: Path) -> None:
    token = run("auth", "add", file, "ada", "--token", "--subject", "CN=a", "--scope", "read:*").out.strip()
    run("auth", "change", file, "ada", "--scope", "append:x", "--scope", "read:y")
    run("auth", "change", file, "ada", "--subject", "CN=b", "--subject", "CN=c")
    assert run("auth", "change", file, "ada", "--password-stdin", stdin=SECRET.encode()).out == "✓ changed user ada\n"
    account = read(file, Disk()).accounts["ada"]
    assert (account.scopes, account.subjects) == (("append:x", "read:y"), ("CN=b", "CN=c"))
    assert FileAccess(file).check(bearer(token), Client()).name == "ada"
    assert FileAccess(file).check(basic("ada", SECRET), Client()).name == "ada"
    assert "nothing to change" in run("auth", "change", file, "ada", code=2).err
    assert "has no user 'eve'" in run("auth", "change", file, "eve", "--scope", "read:*", code=1).err


def test_tokens_are_made_and_revoked_one_by_one(run: Run, file: Path) -> None:
    old = run("auth", "add", file, "shop", "--token", "--scope", "read:*").out
    new = run("auth", "token", file, "shop", "--json").objects[0]
    assert (new["user"], TOKEN.fullmatch(new["token"] + "\n") is not None) == ("shop", True)
    found = TOKEN.fullmatch(old)
    assert found is not None
    assert "revoked token" in run("auth", "revoke", file, "shop", found[1]).out
    assert list(read(file, Disk()).accounts["shop"].tokens) == [new["token_id"]]
    assert FileAccess(file).check(bearer(new["token"]), Client()).name == "shop"
    missing = run("auth", "revoke", file, "shop", found[1], code=1).err
    assert "has no token" in missing
    assert new["token_id"] in missing
    assert "has no user" in run("auth", "token", file, "eve", code=1).err


def test_remove_asks_and_takes_the_user_away(run: Run, file: Path) -> None:
    run("auth", "add", file, "shop", "--token", "--scope", "read:*")
    assert "give --yes" in run("auth", "remove", file, "shop", code=2).err
    assert run("auth", "remove", file, "shop", "--yes").out == "✓ removed user shop\n"
    assert read(file, Disk()).accounts == {}
    assert "has no user 'shop'" in run("auth", "remove", file, "shop", "--yes", code=1).err


def test_list_tells_all_but_secrets(run: Run, file: Path) -> None:
    token = run("auth", "add", file, "shop", "--token", "--scope", "read:a", "--scope", "append:b").out.strip()
    run(
        "auth",
        "add",
        file,
        "ada",
        "--password-stdin",
        "--subject",
        "CN=ada",
        "--scope",
        "admin:*",
        stdin=SECRET.encode(),
    )
    id = token.split("_")[1]
    header, _, shop, ada = run("auth", "list", file).lines
    assert header.split() == ["user", "scopes", "password", "tokens", "subjects"]
    assert shop.split()[:4] == ["shop", "read:a", "append:b", id]
    assert ada.split() == ["ada", "admin:*", "yes", "CN=ada"]
    told = run("auth", "list", file, "--json").objects
    made = datetime.fromisoformat(told[0]["tokens"].pop(id))
    assert abs(datetime.now(UTC) - made) < timedelta(minutes=1)
    assert told == [
        {"user": "shop", "scopes": ["read:a", "append:b"], "password": False, "tokens": {}, "subjects": []},
        {"user": "ada", "scopes": ["admin:*"], "password": True, "tokens": {}, "subjects": ["CN=ada"]},
    ]


@pytest.mark.parametrize(
    "command", ["list", "token NAME", "change NAME --scope read:*", "revoke NAME x", "remove NAME --yes"]
)
def test_only_add_makes_a_file(run: Run, file: Path, command: str) -> None:
    verb, *rest = command.split()
    assert "the users file" in run("auth", verb, file, *rest, code=1).err
    assert not file.exists()


def test_a_family_without_a_command_shows_its_help(run: Run) -> None:
    for words in ((), ("auth",)):
        shown = run(*words, code=2).err
        assert shown.startswith("Usage: headwater")
        assert "\n\nOptions:\n" in shown
    assert "no such command 'frob'" in run("auth", "frob", code=2).err
