"""A server without users does not check credentials, and says so wherever they are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwater
from tests.server import people
from tests.server.process import http, served
from tests.server.tcp.wire import Wire, wire
from tests.server.test_asgi import run

SENT = {"Authorization": "Bearer hw_whatever"}
HEADER = "headwater-credentials"
WARNING = b"a client sent credentials, but authentication is off"
CREDENTIALS = [{"username": "ada", "password": "anything"}, {"token": "hw_whatever"}]


def test_http_says_that_credentials_are_not_checked_and_the_log_once(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server:
        assert HEADER not in http.put(f"{server.url}/topic/t").headers
        assert HEADER not in http.post(f"{server.url}/topic/t/items", content=b"x").headers
        for _ in range(3):  # a head that comes again is not parsed again
            answer = http.post(f"{server.url}/topic/t/items", content=b"x", headers=SENT)
            assert (answer.status_code, answer.headers[HEADER]) == (200, "unchecked")
        assert http.get(f"{server.url}/topics", headers=SENT).headers[HEADER] == "unchecked"
        assert http.get(f"{server.url}/topic/none", headers=SENT).headers[HEADER] == "unchecked"
        with wire(server.tcp_url, **CREDENTIALS[0]):
            pass
    assert server.output.count(WARNING) == 1


@pytest.mark.parametrize("who", CREDENTIALS)
def test_connect_says_that_credentials_are_not_checked(tmp_path: Path, who: dict[str, Any]) -> None:
    with served(tmp_path / "data") as server:
        with wire(server.tcp_url) as client:
            assert client.emit("t", {})["ok"]
        for _ in range(2):
            told = _connected(server.tcp_url, who)
            assert (told["ok"], told["credentialsChecked"]) == (True, False)
        assert "credentialsChecked" not in _connected(server.tcp_url, {})
    assert server.output.count(WARNING) == 1


def test_nothing_is_said_where_credentials_are_checked(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    token = people.add(users, "ada", token=True)
    with served(tmp_path / "data", "--auth", str(users)) as server:
        assert HEADER not in http.get(f"{server.url}/topics", headers={"Authorization": f"Bearer {token}"}).headers
        assert HEADER not in http.get(f"{server.url}/topics", headers=SENT).headers
        assert "credentialsChecked" not in _connected(server.tcp_url, {"token": token})
    assert WARNING not in server.output


def test_nothing_is_said_within_an_application_which_may_check_them(tmp_path: Path) -> None:
    with run(headwater.asgi(tmp_path / "data")) as url:
        answer = http.get(f"{url}/topics", headers=SENT)
        assert answer.status_code == 200
        assert HEADER not in answer.headers


def _connected(url: str, who: dict[str, Any]) -> dict[str, Any]:
    client = Wire(url)
    try:
        return client.connect(**who)
    finally:
        client.close()
