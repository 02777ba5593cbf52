"""A site of pages that tell what happens to them, and headless Chromium to open them with."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ("background-networking", "component-update", "sync", "gpu", "quic", "dev-shm-usage", "extensions")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="NO BROWSER: install chromium to run these tests")


class Site:
    """A site on a port of its own. Its pages tell what they hear with a POST to /tell."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        """`pages` are the texts of pages by their paths."""
        self.heard: queue.Queue[dict[str, Any]] = queue.Queue()
        heard = self.heard

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(pages.get(self.path.partition("?")[0], "").encode())

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
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def next(self, type: str) -> dict[str, Any]:
        """The next thing of this kind that a page tells; others are passed over."""
        while True:
            heard = self.heard.get(timeout=60)
            if heard["type"] == type:
                return heard


@contextmanager
def site(pages: Mapping[str, str]) -> Iterator[Site]:
    """A site for the time of a block."""
    running = Site(pages)
    try:
        yield running
    finally:
        running.server.shutdown()
        running.server.server_close()


@pytest.fixture
def browse(tmp_path: Path) -> Iterator[Any]:
    """Opens addresses in browsers, which end with the test."""
    browsers: list[subprocess.Popen[bytes]] = []

    def browse(url: str, *options: str) -> None:
        assert CHROMIUM is not None
        profile = tmp_path / f"profile{len(browsers)}"
        command = [CHROMIUM, "--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{each}" for each in QUIET)]
        command += [*options, f"--user-data-dir={profile}", "--remote-debugging-port=0", url]
        environment = {**os.environ, "HOME": str(tmp_path)}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        browsers.append(subprocess.Popen(command, env=environment, **quiet))  # type: ignore[call-overload]

    yield browse
    for browser in browsers:
        os.killpg(browser.pid, 9)
        browser.wait()
