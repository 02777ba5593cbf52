"""The server inside somebody else's application."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import headwater
from headwater.server.http.message import Client
from headwater.server.logins import FileAccess
from headwater.server.rights import User
from tests.server import people
from tests.server.process import http
from tests.waiting import wait_for


@contextlib.contextmanager
def run(app: Any) -> Iterator[str]:
    """Uvicorn with an application, in a thread; gives its address."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="auto", timeout_graceful_shutdown=5))
        thread = threading.Thread(target=asyncio.run, args=(server.serve([listening]),))
        thread.start()
        try:
            wait_for(lambda: server.started)
            yield url
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[str]:
    """Starlette with a page of its own and a log below /log."""
    log = headwater.asgi(tmp_path / "data")

    async def hello(_: Any) -> PlainTextResponse:
        return PlainTextResponse("hello")

    app = Starlette(routes=[Route("/", hello), Mount("/log", log)], lifespan=log.lifespan)
    with run(app) as url:
        yield url


def test_its_openapi_document_tells_where_it_is_mounted(mounted: str) -> None:
    assert http.get(f"{mounted}/log/openapi.json").json()["servers"] == [{"url": "/log"}]


def test_it_lives_beside_other_pages(mounted: str) -> None:
    assert http.get(mounted).text == "hello"
    assert http.put(f"{mounted}/log/topic/a%2Fb").json() is True
    assert http.post(f"{mounted}/log/topic/a%2Fb/items", content=b"one").json() == 0
    assert http.get(f"{mounted}/log/topics").json() == ["a/b"]
    assert http.get(f"{mounted}/log/topic/a%2Fb/items").content == bytes(11) + b"\x03one"
    assert http.get(f"{mounted}/log/nothing").status_code == 404
    assert http.get(f"{mounted}/log/topics").headers["x-content-type-options"] == "nosniff"
    assert http.get(f"{mounted}/log/topics/").json() == ["a/b"]
    assert http.post(f"{mounted}/log/topic/a%2Fb/items/", content=b"two").json() == 1
    assert http.get(f"{mounted}/log/topic/a%2Fb/items").headers["x-accel-buffering"] == "no"


def test_huge_items_are_streamed_through_it(mounted: str) -> None:
    http.put(f"{mounted}/log/topic/big")
    data = bytes(range(256)) * 20_000
    assert http.post(f"{mounted}/log/topic/big/items", content=iter([data[:3_000_000], data[3_000_000:]])).json() == 0
    assert http.get(f"{mounted}/log/topic/big/items").content[12:] == data


def test_live_streams_go_through_it_and_end_with_the_client(mounted: str) -> None:
    with http.stream("GET", f"{mounted}/log/api/events", timeout=10) as stream:
        lines = stream.iter_lines()
        http.post(f"{mounted}/log/api/events?type=greeting", content="hello\nthere")
        found = [line for line in (next(lines) for _ in range(7)) if line != ":"]
    assert found[0].startswith("retry: ")
    assert found[1].startswith("id: ")
    assert found[2:5] == ["event: greeting", "data: hello", "data: there"]
    wait_for(lambda: "headwater_subscribers 0.0" in http.get(f"{mounted}/log/metrics").text)


def test_it_is_opened_and_closed_by_the_lifespan(tmp_path: Path) -> None:
    app = headwater.asgi(tmp_path / "data")
    with run(app) as url:
        assert (tmp_path / "data" / "headwater.json").exists()  # before the first request
        http.put(f"{url}/topic/a")
        http.post(f"{url}/topic/a/items", content=b"x")
    with headwater.open(tmp_path / "data") as hw:
        assert [event.data for event in hw.read("a")] == [b"x"]


def test_a_directory_that_is_none_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    app = headwater.asgi(tmp_path / "file")

    async def start() -> str:
        sent: list[Any] = []

        async def receive() -> dict[str, str]:
            return {"type": "lifespan.startup"}

        async def send(message: Any) -> None:
            sent.append(message)

        await app({"type": "lifespan"}, receive, send)
        await app.close()
        return str(sent[0]["type"])

    assert asyncio.run(start()) == "lifespan.startup.failed"


def test_a_password_is_checked_once_not_for_each_request(tmp_path: Path) -> None:
    people.add(tmp_path / "users.json", "ada", password=people.SECRET)
    checked = []

    class Counted(FileAccess):
        def _by_password(self, said: str, credentials: str, client: Client) -> User:
            checked.append(credentials)
            return super()._by_password(said, credentials, client)

    with run(headwater.asgi(tmp_path / "data", access=Counted(tmp_path / "users.json"))) as url:
        assert http.get(f"{url}/topics").status_code == 401
        for _ in range(5):
            assert http.get(f"{url}/topics", auth=("ada", people.SECRET)).status_code == 200
        assert http.get(f"{url}/topics", auth=("ada", "wrong")).status_code == 401
    assert len(checked) == 2
