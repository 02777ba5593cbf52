"""A browser's EventSource, in headless Chromium: it follows the bus, across a restart, and only where it may."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.server.process import Server, http, served

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ("background-networking", "component-update", "sync", "gpu", "quic", "dev-shm-usage", "extensions")

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install chromium to run these tests"),
    pytest.mark.timeout(120),
]

PAGE = """<!doctype html><script>
let told = Promise.resolve();  // one after the other: requests that are under way together may come in any order
const tell = (what) => told = told.then(() => fetch("/tell", {method: "POST", body: JSON.stringify(what)}));
const query = new URLSearchParams(location.search);
const source = new EventSource(query.get("source"));
for (const type of ["message", "greeting", "stop", "headwater.gap"])
  source.addEventListener(type, (e) => tell({type, id: e.lastEventId, data: e.data}));
source.onerror = () => tell({type: "error", state: source.readyState});
</script>"""


class Page:
    """A site with a page that follows a stream and tells what it hears."""

    def __init__(self) -> None:
        self.heard: queue.Queue[dict[str, Any]] = queue.Queue()
        heard = self.heard

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(PAGE.encode() if self.path.startswith("/page") else b"")

            def do_POST(self) -> None:
                heard.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.answer(b"")

            def answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def next(self, type: str) -> dict[str, Any]:
        """The next thing of this kind that the page tells; others are passed over."""
        while True:
            heard = self.heard.get(timeout=60)
            if heard["type"] == type:
                return heard


@pytest.fixture
def page() -> Iterator[Page]:
    page = Page()
    yield page
    page.server.shutdown()
    page.server.server_close()


@pytest.fixture
def browse(tmp_path: Path) -> Iterator[Any]:
    """Opens addresses in browsers, which end with the test."""
    browsers: list[subprocess.Popen[bytes]] = []

    def browse(url: str) -> None:
        assert CHROMIUM is not None
        profile = tmp_path / f"profile{len(browsers)}"
        command = [CHROMIUM, "--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{each}" for each in QUIET)]
        command += [f"--user-data-dir={profile}", "--remote-debugging-port=0", url]
        environment = {**os.environ, "HOME": str(tmp_path)}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        browsers.append(subprocess.Popen(command, env=environment, **quiet))  # type: ignore[call-overload]

    yield browse
    for browser in browsers:
        os.killpg(browser.pid, 9)
        browser.wait()


def publish(server: Server, type: str, data: str) -> str:
    answer = http.post(f"{server.url}/api/events", params={"type": type}, content=data)
    assert answer.status_code == 200
    id: str = answer.json()["id"]
    return id


def test_a_browser_follows_the_bus_across_a_restart(tmp_path: Path, page: Page, browse: Any) -> None:
    server = Server(tmp_path / "data", "--cors", page.url)
    try:
        first = publish(server, "greeting", "before the page was there\nin two lines")
        publish(server, "other", "of a type that the page does not listen for")
        browse(f"{page.url}/page?source={server.url}/api/events")
        assert page.next("greeting") == {
            "type": "greeting",
            "id": first,
            "data": "before the page was there\nin two lines",
        }
        live = publish(server, "greeting", "live: grüße")
        assert page.next("greeting")["id"] == live
        server.kill()
        page.next("error")
        server = Server(tmp_path / "data", "--cors", page.url, port=server.port)
        after = [publish(server, "greeting", f"after {number}") for number in range(3)]
        # It comes back by itself, with the id of the last event that it had: each once, and none left out.
        assert [page.next("greeting")["id"] for _ in after] == after
    finally:
        server.stop()


def test_a_page_of_another_site_may_not_follow(tmp_path: Path, page: Page, browse: Any) -> None:
    with served(tmp_path / "data") as server:
        publish(server, "greeting", "secret")
        browse(f"{page.url}/page?source={server.url}/api/events")
        assert page.next("error")["state"] == 2  # it was refused, and does not try again
        assert page.heard.empty()


def test_a_browser_follows_one_type_of_a_topic(tmp_path: Path, page: Page, browse: Any) -> None:
    with served(tmp_path / "data", "--cors", "*") as server:
        http.put(f"{server.url}/topic/t")
        for type in ("stop", "greeting", "stop"):
            http.post(f"{server.url}/topic/t/items?type={type}", content=b"\xff binary")
        browse(f"{page.url}/page?source={server.url}/topic/t/items?type%3Dgreet.*%26format%3Dsse")
        assert page.next("greeting")["data"] == "/yBiaW5hcnk="
        http.post(f"{server.url}/topic/t/items?type=greeting", content="text", headers={"content-type": "text/plain"})
        assert page.next("greeting")["data"] == "text"
        assert page.heard.empty()
