"""Who may do what, on a real server with real clients: `headwater serve` and curl."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.server.people import SECRET, add, revoke
from tests.server.process import ServerProcess, served
from tests.server.test_access import COMPANY, install
from tests.server.test_tls import PAGE, shell

WAIT_S = 20.0


class Answer(NamedTuple):
    status: int
    headers: str
    body: Any


def curl(server: ServerProcess, path: str, *options: str | Path) -> Answer:
    command = ["curl", "-sS", "-i", "--max-time", "20", *map(str, options), f"{server.url}{path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    head, _, body = done.stdout.replace("\r\n", "\n").partition("\n\n")
    return Answer(int(head.split()[1]), head.lower(), json.loads(body) if body else None)


def bearer(token: str) -> tuple[str, str]:
    return "-H", f"Authorization: Bearer {token}"


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    return tmp_path / "users.json"


def test_a_server_with_users_asks_who_it_is_and_grants_what_the_scopes_say(tmp_path: Path, users_file: Path) -> None:
    shop = add(users_file, "shop", "append:orders.*", token=True)
    add(users_file, "ada", "read,append,admin:*", password=SECRET)
    with served(tmp_path / "data", "--auth", str(users_file)) as server:
        nobody = curl(server, "/topic/orders.eu/items", "-d", "x")
        assert (nobody.status, nobody.body["kind"], nobody.body["code"]) == (401, "Denied", "unauthenticated")
        assert '\nwww-authenticate: bearer realm="headwater", basic realm="headwater"' in nobody.headers
        assert curl(server, "/health").status == 200
        assert curl(server, "/topic/orders.eu", "-X", "PUT", *bearer(shop))[::2] == (200, True)
        assert curl(server, "/topic/orders.eu/items", "-d", "x", *bearer(shop))[::2] == (200, 0)
        for path, *options in (
            ("/topic/stock", "-X", "PUT"),
            ("/topic/orders.eu",),
            ("/topic/orders.eu", "-X", "DELETE"),
            ("/metrics",),
        ):
            answer = curl(server, path, *options, *bearer(shop))
            assert (answer.status, answer.body["code"]) == (403, "forbidden"), path
            assert "www-authenticate" not in answer.headers
        assert "'admin:orders.eu'" in curl(server, "/topic/orders.eu", "-X", "DELETE", *bearer(shop)).body["hint"]
        assert curl(server, "/topics", "-u", f"ada:{SECRET}").body == ["orders.eu"]
        assert curl(server, "/topics", *bearer(shop)).body == []
        assert curl(server, "/topics", "-u", f"ada:{SECRET}!").status == 401
        assert curl(server, "/topics", "-u", f"eve:{SECRET}").status == 401
        assert curl(server, "/topic/orders.eu", "-X", "DELETE", "-u", f"ada:{SECRET}").status == 200


def test_wrong_passwords_are_answered_with_429_after_a_while(tmp_path: Path, users_file: Path) -> None:
    token = add(users_file, "ada", password=SECRET, token=True)
    with served(tmp_path / "data", "--auth", str(users_file)) as server:
        answers = [curl(server, "/topics", "-u", "ada:wrong horse") for _ in range(11)]
        assert [answer.status for answer in answers] == [401] * 10 + [429]
        assert re.search(r"\nretry-after: [456]\b", answers[-1].headers)
        assert curl(server, "/topics", "-u", f"ada:{SECRET}").status == 429
        assert curl(server, "/topics", *bearer(token)).status == 200


def test_changes_of_the_file_count_without_a_restart(tmp_path: Path, users_file: Path) -> None:
    old = add(users_file, "ada", token=True)
    with served(tmp_path / "data", "--auth", str(users_file)) as server:
        assert curl(server, "/topics", *bearer(old)).status == 200
        new = add(users_file, "bob", token=True)
        assert curl(server, "/topics", *bearer(new)).status == 200
        revoke(users_file, "ada")
        until = time.monotonic() + WAIT_S
        while curl(server, "/topics", *bearer(old)).status != 401:
            assert time.monotonic() < until
        assert curl(server, "/topics", *bearer(new)).status == 200


def test_the_page_about_tls_is_true(tmp_path: Path) -> None:
    made, tried = re.findall(r"^```sh\n(.*?)^```\n\n```\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    shell(made, tmp_path)
    program = f"{sys.executable} -m headwater.cli"
    adding, serving, calling = (shlex.split(line) for line in tried.splitlines())
    shell(shlex.join(adding).replace("headwater", program, 1), tmp_path)
    assert serving[:3] == ["headwater", "serve", "data"]
    options = [str(tmp_path / word) if "." in word else word for word in serving[3:]]
    with served(tmp_path / "data", *options) as server:
        *words, url = calling
        here = url.replace("7450", str(server.port))
        assert shell(shlex.join([*words, "-sS", here]), tmp_path) == "[]"
        without = ["curl", "-sS", "--cacert", "ca.pem", here]
        turned_away = subprocess.run(without, cwd=tmp_path, capture_output=True, check=False)
        assert turned_away.returncode in (35, 52, 56)  # the handshake, an empty answer or a reset, as it happens
        assert turned_away.stdout == b""


def serve_in_vain(tmp_path: Path, *options: str) -> str:
    """What `headwater serve` says when it ends at once with an error."""
    command = [sys.executable, "-m", "headwater.cli", "serve", str(tmp_path / "data"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_a_network_is_not_served_without_authentication(tmp_path: Path, users_file: Path) -> None:
    told = serve_in_vain(tmp_path, "--http", "0.0.0.0:0")
    assert re.fullmatch(
        r"error: 0\.0\.0\.0 would listen on the network without authentication — give --auth FILE .*--insecure.*\n",
        told,
    )
    assert not (tmp_path / "data").exists()
    assert "the users file" in serve_in_vain(tmp_path, "--http", "0.0.0.0:0", "--auth", str(users_file))
    with served(tmp_path / "data", "--http", "0.0.0.0:0", "--insecure") as server:
        assert curl(server, "/topics").body == []
    assert server.output.count(b"everyone who can reach 0.0.0.0") == 1


def test_a_package_of_ones_own_tells_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install(site, "company_login", "company = company_login:CompanyAccess", COMPANY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))))
    with served(tmp_path / "data", "--access", "company:sesame") as server:
        assert curl(server, "/topics").headers.count("www-authenticate: company") == 1
        assert curl(server, "/topics", "-H", "Authorization: sesame").status == 200
        assert curl(server, "/topic/orders.eu", "-X", "PUT", "-H", "Authorization: sesame").status == 403
    assert "unknown access 'x'" in serve_in_vain(tmp_path, "--access", "x")
