"""A browser's EventSource, in headless Chromium: it follows the bus, across a restart, and only where it may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.browsing import Site, browse, needs_browser, site
from tests.server.process import ServerProcess, http, served

__all__ = ["browse"]  # a fixture

pytestmark = [needs_browser, pytest.mark.timeout(120)]

PAGE = """<!doctype html><script>
let told = Promise.resolve();  // one after the other: requests that are under way together may come in any order
const tell = (what) => told = told.then(() => fetch("/tell", {method: "POST", body: JSON.stringify(what)}));
const query = new URLSearchParams(location.search);
const source = new EventSource(query.get("source"));
for (const type of ["message", "greeting", "stop", "headwater.gap"])
  source.addEventListener(type, (e) => tell({type, id: e.lastEventId, data: e.data}));
source.onerror = () => tell({type: "error", state: source.readyState});
</script>"""


@pytest.fixture
def page() -> Iterator[Site]:
    """A site with a page that follows a stream and tells what it hears."""
    with site({"/page": PAGE}) as running:
        yield running


def publish(server: ServerProcess, type: str, data: str) -> str:
    answer = http.post(f"{server.url}/api/events", params={"type": type}, content=data)
    assert answer.status_code == 200
    id: str = answer.json()["id"]
    return id


def test_a_browser_follows_the_bus_across_a_restart(tmp_path: Path, page: Site, browse: Any) -> None:
    server = ServerProcess(tmp_path / "data", "--cors", page.url)
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
        server = ServerProcess(tmp_path / "data", "--cors", page.url, port=server.port)
        after = [publish(server, "greeting", f"after {number}") for number in range(3)]
        # It comes back by itself, with the id of the last event that it had: each once, and none left out.
        assert [page.next("greeting")["id"] for _ in after] == after
    finally:
        server.stop()


def test_a_page_of_another_site_may_not_follow(tmp_path: Path, page: Site, browse: Any) -> None:
    with served(tmp_path / "data") as server:
        publish(server, "greeting", "secret")
        browse(f"{page.url}/page?source={server.url}/api/events")
        assert page.next("error")["state"] == 2  # it was refused, and does not try again
        assert page.heard.empty()


def test_a_browser_follows_one_type_of_a_topic(tmp_path: Path, page: Site, browse: Any) -> None:
    with served(tmp_path / "data", "--cors", "*") as server:
        http.put(f"{server.url}/topic/t")
        for type in ("stop", "greeting", "stop"):
            http.post(f"{server.url}/topic/t/items?type={type}", content=b"\xff binary")
        browse(f"{page.url}/page?source={server.url}/topic/t/items?type%3Dgreet.*%26format%3Dsse")
        assert page.next("greeting")["data"] == "/yBiaW5hcnk="
        http.post(f"{server.url}/topic/t/items?type=greeting", content="text", headers={"content-type": "text/plain"})
        assert page.next("greeting")["data"] == "text"
        assert page.heard.empty()
