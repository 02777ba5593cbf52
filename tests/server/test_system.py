"""What operators see of a running server: its health, its figures, and who asked for what."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import headwater
from headwater.format.settings import FORMAT
from tests.server import people
from tests.server.process import ServerProcess, served
from tests.server.serving import Server
from tests.waiting import wait_for

DOCS = Path(__file__).parent.parent.parent / "docs"
ITEMS = "/topic/{name}/items"


@pytest.fixture(scope="module")
def server_settings() -> dict[str, Any]:
    return {"heartbeat_s": 0.2}


@pytest.fixture(scope="module")
def guarded_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, dict[str, str]]]:
    """A server with users, an access log and an application, and what says that one is the user `ann`."""
    path = tmp_path_factory.mktemp("guarded")
    token = people.add(path / "users.json", "ann", token=True)
    (path / "shop.py").write_text("from headwater import App\napp = App()\n")
    options = "--auth", str(path / "users.json"), "--access-log", str(path / "access.log")
    with served(path / "data", *options, "--app", str(path / "shop.py")) as running:
        yield running, {"Authorization": f"Bearer {token}"}


class Figures:
    """What /metrics tells."""

    def __init__(self, http: httpx.Client) -> None:
        answer = http.get("/metrics").raise_for_status()
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        self.families = list(text_string_to_metric_families(answer.text))

    def __call__(self, name: str, **labels: str) -> float:
        samples = [sample for family in self.families for sample in family.samples]
        found = [sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items()]
        return sum(found)


def test_the_figures_follow_the_traffic(server: Server) -> None:
    http = server.http
    before = Figures(http)
    http.put("/topic/orders").raise_for_status()
    for _ in range(5):
        http.post("/topic/orders/items", content=b"x" * 100).raise_for_status()
    lines = {"Content-Type": "application/x-ndjson"}
    http.post("/topic/orders/items", content=b'{"n":1}\n{"n":2}\n{"n":3}\n', headers=lines).raise_for_status()
    assert http.post("/topic/missing/items", content=b"x").status_code == 404
    assert http.get("/topic/orders/items?from=x").status_code == 400
    after = Figures(http)

    def grew(name: str, **labels: str) -> float:
        return after(name, **labels) - before(name, **labels)

    assert grew("headwater_appends_total", topic="orders") == 6
    assert grew("headwater_append_events_total", topic="orders") == 8
    assert grew("headwater_append_bytes_total", topic="orders") == 5 * 100 + 3 * 7
    assert grew("headwater_commit_seconds_count") == 6
    assert 1 <= grew("headwater_commits_total") <= 6
    assert grew("headwater_fsyncs_total") >= 6
    assert grew("headwater_http_requests_total", method="POST", route=ITEMS, status="200") == 6
    assert grew("headwater_http_requests_total", method="POST", route=ITEMS, status="404") == 1
    assert grew("headwater_http_requests_total", method="GET", route=ITEMS, status="400") == 1
    assert grew("headwater_http_request_seconds_count", method="POST", route=ITEMS) == 7
    assert grew("headwater_errors_total", code="topic_not_found") == 1
    assert grew("headwater_errors_total", code="bad_position") == 1
    assert after("headwater_log_events", topic="orders") == 8
    assert after("headwater_http_connections") >= 1
    assert grew("headwater_http_received_bytes_total") > 500


def test_live_streams_and_what_they_were_handed_are_counted(server: Server) -> None:
    http = server.http
    http.put("/topic/live").raise_for_status()
    before = Figures(http)
    with httpx.stream("GET", f"{server.url}/topic/live/items", headers={"Accept": "text/event-stream"}) as stream:
        lines = stream.iter_lines()
        wait_for(lambda: Figures(http)("headwater_subscribers") == before("headwater_subscribers") + 1)
        http.post("/topic/live/items", content=b"hello").raise_for_status()
        assert any("hello" in line or "aGVsbG8" in line for line in lines)
    wait_for(lambda: Figures(http)("headwater_deliveries_total") == before("headwater_deliveries_total") + 1)
    wait_for(lambda: Figures(http)("headwater_subscribers") == before("headwater_subscribers"))


def test_lag_is_counted_of_consumers_in_other_processes_too(server: Server) -> None:
    with headwater.open(server.path) as hw:
        hw.append_many("lagging", [b"x"] * 7)
        with hw.consumer("billing", "lagging", timeout=0) as consumer:
            consumer.ack(next(iter(consumer)))
    labels = {"consumer": "billing", "topic": "lagging", "partition": "0"}
    assert Figures(server.http)("headwater_consumer_lag_events", **labels) == 6


def test_the_docs_list_every_family(guarded_process: tuple[ServerProcess, dict[str, str]]) -> None:
    running, ann = guarded_process
    page = (DOCS / "RUNNING.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(headwater_\w+)`", page, re.MULTILINE))
    with httpx.Client(base_url=running.url, headers=ann) as http:
        families = Figures(http).families
    shown = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert {name for name in shown if not name.startswith("process_")} == told


def test_health_tells_whether_the_log_can_be_read(server: Server) -> None:
    assert server.http.get("/health").json() == {"status": "ok"}
    file, aside = server.path / "headwater.json", server.path / "aside"
    file.rename(aside)
    try:
        gone = server.http.get("/health")
        file.write_bytes(b"{}")
        damaged = server.http.get("/health")
    finally:
        aside.rename(file)
    assert (gone.status_code, gone.json()["code"]) == (503, "not_a_log")
    assert (damaged.status_code, damaged.json()["code"]) == (503, "corrupt")
    assert str(server.path) not in gone.text + damaged.text  # anybody may ask
    assert server.http.get("/health").status_code == 200


def test_version_tells_what_runs(server: Server) -> None:
    told = server.http.get("/version").json()
    assert (told["version"], told["format"]) == (headwater.__version__, FORMAT)


def test_health_and_version_are_for_all_and_figures_for_those_who_may_read_everything(
    guarded_process: tuple[ServerProcess, dict[str, str]],
) -> None:
    running, ann = guarded_process
    with httpx.Client(base_url=running.url) as http:
        assert [http.get(path).status_code for path in ("/health", "/version", "/openapi.json")] == [200] * 3
        assert http.get("/metrics").status_code == 401
        assert http.get("/metrics", headers=ann).status_code == 200


def test_the_access_log_tells_every_request_and_no_secret(
    guarded_process: tuple[ServerProcess, dict[str, str]],
) -> None:
    running, ann = guarded_process
    path = running.path.parent / "access.log"
    with httpx.Client(base_url=running.url) as http:
        http.put("/topic/orders", headers=ann).raise_for_status()
        http.post("/topic/orders/items?type=placed", content=b"12345", headers=ann).raise_for_status()
        http.post("/topic/orders/items", content=b"x" * 2_000_000, headers=ann).raise_for_status()
        read = http.get("/topic/orders/items?max_items=1&token=s3cret", headers=ann)
        whole = http.get("/topic/orders/items?max_items=1", headers=ann)
        http.get("/topic/orders", headers={"Authorization": "Bearer s3cret"})
    wait_for(lambda: path.read_text().count('"/topic/orders') >= 6)
    text = path.read_text()
    assert "s3cret" not in text
    assert ann["Authorization"].removeprefix("Bearer ") not in text
    lines = [json.loads(line) for line in text.splitlines()]
    kept = [line for line in lines if "/topic/orders" in line["path"]][:6]
    assert [(line["method"], line["status"]) for line in kept] == [
        ("PUT", 200),
        ("POST", 200),
        ("POST", 200),
        ("GET", 400),
        ("GET", 200),
        ("GET", 401),
    ]
    assert [line.get("user", "") for line in kept] == ["ann"] * 5 + [""]
    assert (kept[1]["query"], kept[3]["query"]) == ("type=placed", "max_items=1&***")
    assert [line["bytes_in"] for line in kept[:3]] == [0, 5, 2_000_000]
    assert (kept[1]["bytes_out"], kept[4]["bytes_out"]) == (1, len(whole.content))
    assert kept[3]["bytes_out"] == len(read.content)
    assert {line["route"] for line in kept} == {"/topic/{name}", "/topic/{name}/items"}
    assert all(line["ms"] > 0 for line in kept), kept


def test_the_access_log_goes_on_in_a_new_file_after_a_hangup(
    guarded_process: tuple[ServerProcess, dict[str, str]],
) -> None:
    running, _ = guarded_process
    path = running.path.parent / "access.log"
    with httpx.Client(base_url=running.url) as http:
        path.rename(path.with_suffix(".1"))
        os.kill(running.pid, signal.SIGHUP)
        wait_for(path.exists)
        http.get("/health")
        wait_for(lambda: '"/health"' in path.read_text())
