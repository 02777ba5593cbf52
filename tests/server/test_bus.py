"""The event bus and server-sent events of topics, from a real server over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

import headwater
from headwater.store import Store
from tests.server.eventsource import Source, subscribed
from tests.server.process import ServerProcess, served

UUID_ANEW = "1f0c3f0e-0000-6000-8000-000000000000"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


class Caller:
    """Plain requests, one connection."""

    def __init__(self, process: ServerProcess) -> None:
        self.server = process
        self.connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=20)

    def __call__(self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        self.connection.request(method, target, body, headers or {})
        response = self.connection.getresponse()
        data = response.read()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, json.loads(data or b"null"))

    def publish(self, type: str, data: str | bytes) -> str:
        body = data.encode() if isinstance(data, str) else data
        answer = self("POST", f"/api/events?type={quote(type)}", body)
        assert answer.status == 200, answer
        id: str = answer.body["id"]
        return id

    async def publish_soon(self, type: str, data: str) -> str:
        return await asyncio.get_running_loop().run_in_executor(None, self.publish, type, data)


@pytest.fixture(scope="module")
def process_options() -> list[str]:
    return ["--segments", "3", "--segment-bytes", "16384"]


@pytest.fixture
def call(process: ServerProcess) -> Iterator[Caller]:
    """A caller of a server whose bus is new."""
    caller = Caller(process)
    caller("DELETE", "/topic/events")
    yield caller
    caller.connection.close()


def beyond(source: Source) -> list[tuple[str, str]]:
    return [(got.event, got.data) for got in source.events]


def test_the_bus_takes_json_and_refuses_what_is_none(call: Caller) -> None:
    marked = {"Content-Type": "application/json"}
    assert call("POST", "/api/events?type=a", b'{"a": 1}', marked).status == 200
    broken = call("POST", "/api/events?type=a", b'{"a": 1', marked)
    assert (broken.status, broken.body["code"]) == (400, "bad_json")
    call.publish("a", '{"a": 2}')
    with headwater.open(call.server.url) as hw:
        assert [(event.content, event.json()) for event in hw.read("events")] == [
            ("json", {"a": 1}),
            ("text", {"a": 2}),
        ]


async def test_what_is_published_comes_with_its_id_type_and_lines(call: Caller) -> None:
    first = call.publish("greeting", "hello\nworld\n")
    async with subscribed(call.server.url, "/api/events") as source:
        assert source.headers["content-type"] == "text/event-stream"
        assert source.headers["cache-control"] == "no-store"
        got = await source.next()
        assert (got.id, got.event, got.data) == (first, "greeting", "hello\nworld\n")
        assert source.retry_ms > 0
        second = await call.publish_soon("größe", "ünïcode")
        got = await source.next()
        assert (got.id, got.event, got.data) == (second, "größe", "ünïcode")
        third = await call.publish_soon("empty", "")
        got = await source.next()
        assert (got.id, got.event, got.data) == (third, "empty", "")


async def test_huge_events_come_whole_and_in_their_order_to_all_who_are_live(call: Caller) -> None:
    huge = ["a" * 3_000_000, "b" * 2_000_000 + "\n" + "ü" * 1_000_000]
    async with (
        subscribed(call.server.url, "/api/events") as one,
        subscribed(call.server.url, "/api/events") as two,
    ):
        sent = ["first", huge[0], "between", *huge, "last"]
        for data in sent:
            await call.publish_soon("n", data)
        async with subscribed(call.server.url, "/api/events") as late:
            for source in (one, two, late):
                await source.until(lambda source=source: len(source.events) == len(sent))  # type: ignore[misc]
                assert [got.data for got in source.events] == sent
            await call.publish_soon("n", "live")
            for source in (one, two, late):
                await source.until(lambda source=source: len(source.events) == len(sent) + 1)  # type: ignore[misc]
                assert source.events[-1].data == "live"


async def test_a_subscriber_to_a_new_bus_gets_the_first_event(call: Caller) -> None:
    async with subscribed(call.server.url, "/api/events") as source:
        id = await call.publish_soon("first", "x")
        assert (await source.next()).id == id


async def test_a_get_makes_no_bus_but_waits_for_one_that_another_process_makes(call: Caller) -> None:
    async with subscribed(call.server.url, "/api/events") as source:
        assert call("GET", "/topics").body == []
        with headwater.open(call.server.path) as hw:
            hw.create("events", partitions=2)
            id = hw.append("events", "x", type="first", partition=1).id
        got = await source.next()
        assert (got.event, got.data) == ("first", "x")
        assert got.id != str(id)  # it is a cursor over both partitions


def test_what_cannot_be_asked_of_a_bus_that_is_not_there_is_refused(call: Caller) -> None:
    assert call("GET", "/api/events?typeMatcher=(")[0] == 400
    assert call("GET", "/api/events?lastEventId=x")[0] == 400
    assert call("GET", "/topics").body == []


@pytest.mark.parametrize("how", ["header", "query"])
async def test_a_client_that_comes_back_goes_on_after_its_last_event(call: Caller, how: str) -> None:
    ids = [call.publish("n", str(number)) for number in range(5)]
    target = "/api/events" if how == "header" else f"/api/events?lastEventId={ids[2]}"
    async with subscribed(call.server.url, target, last_event_id=ids[2] if how == "header" else None) as source:
        await source.until(lambda: len(source.events) == 2)
        ids.append(await call.publish_soon("n", "5"))
        await source.until(lambda: len(source.events) == 3)
        assert source.ids == ids[3:]


async def test_the_header_counts_more_than_the_query(call: Caller) -> None:
    ids = [call.publish("n", str(number)) for number in range(3)]
    target = f"/api/events?lastEventId={ids[0]}"  # of the page's first connection; the browser's own is newer
    async with subscribed(call.server.url, target, last_event_id=ids[1]) as source:
        await source.until(lambda: len(source.events) == 1)
        assert source.ids == ids[2:]


async def test_a_pattern_is_over_the_whole_type(call: Caller) -> None:
    for type in ("order.placed", "order.paid", "xorder.paid", "stock.moved"):
        call.publish(type, type)
    async with subscribed(call.server.url, "/api/events?typeMatcher=order%5C..*") as source:
        await source.until(lambda: len(source.events) == 2)
        await call.publish_soon("stock.gone", "x")
        await call.publish_soon("order.sent", "order.sent")
        await source.until(lambda: len(source.events) == 3)
        assert [got.event for got in source.events] == ["order.placed", "order.paid", "order.sent"]


def test_what_cannot_be_asked_for_is_refused(call: Caller) -> None:
    bad = [
        ("GET", "/api/events?typeMatcher=(", b"", "bad_pattern"),
        ("GET", "/api/events?lastEventId=nonsense", b"", "bad_event_id"),
        ("GET", f"/api/events?lastEventId={UUID_ANEW.replace('-6', '-4')}", b"", "bad_event_id"),
        ("GET", "/api/events?other=1", b"", "bad_parameter"),
        ("POST", "/api/events", b"x", "bad_parameter"),
        ("POST", "/api/events?type=", b"x", "bad_parameter"),
        ("POST", "/api/events?type=a%0Ab", b"x", "bad_parameter"),
        ("POST", f"/api/events?type={'x' * 256}", b"x", None),
        ("POST", "/api/events?type=x", b"\xff\xfe", "not_utf8"),
    ]
    for method, target, body, code in bad:
        answer = call(method, target, body)
        assert answer.status in (400, 413), (target, answer)
        assert code in (None, answer.body["code"])
    assert "base64" in call("POST", "/api/events?type=x", b"\xff").body["hint"]


async def test_retention_that_passed_the_last_event_is_told(call: Caller) -> None:
    ids = [call.publish("n", f"{number} " + "x" * 1000) for number in range(200)]
    call("POST", "/topic/events/retain", b"{}")  # what is due in the background is done now
    info = call("GET", "/topic/events").body["partitions"][0]
    oldest = info["start"]
    assert 0 < oldest < 200
    async with subscribed(call.server.url, "/api/events", last_event_id=ids[3]) as source:
        gap = await source.next()
        assert gap.event == "headwater.gap"
        told = json.loads(gap.data)
        assert (told["after"], told["oldest"]) == (ids[3], ids[oldest])
        assert gap.id == ""  # whoever comes back now is told again
        await source.until(lambda: len(source.events) == 1 + 200 - oldest)
        assert source.ids == ids[oldest:]
    async with subscribed(call.server.url, "/api/events", last_event_id=ids[oldest - 1]) as source:
        assert (await source.next()).id == ids[oldest]  # nothing is missing after that one
    async with subscribed(call.server.url, "/api/events") as source:
        assert (await source.next()).id == ids[oldest]


async def test_an_id_of_a_bus_that_was_deleted_begins_at_the_oldest_and_says_so(call: Caller) -> None:
    old = call.publish("n", "old")
    call("DELETE", "/topic/events")
    new = call.publish("n", "new")
    async with subscribed(call.server.url, "/api/events", last_event_id=old) as source:
        gap = await source.next()
        assert (gap.event, json.loads(gap.data)["after"], json.loads(gap.data)["oldest"]) == ("headwater.gap", old, new)
        assert (await source.next()).id == new


async def test_deleting_the_bus_ends_its_streams(call: Caller) -> None:
    call.publish("n", "x")
    async with subscribed(call.server.url, "/api/events") as source:
        await source.next()
        await asyncio.get_running_loop().run_in_executor(None, call, "DELETE", "/topic/events")
        await source.until(lambda: source.ended)


async def test_an_embedded_program_publishes_too(call: Caller) -> None:
    call.publish("n", "over http")
    async with subscribed(call.server.url, "/api/events") as source:
        await source.next()
        with headwater.open(call.server.path) as log:
            assert isinstance(log, Store)
            ref = log.append("events", "embedded", type="m")
            got = await source.next()
        assert (got.id, got.event, got.data) == (str(ref.id), "m", "embedded")


async def test_a_hundred_subscribers_get_every_event_once(call: Caller) -> None:
    first = call.publish("n", "first")
    async with asyncio.TaskGroup() as group:
        done = asyncio.Event()
        ready = asyncio.Semaphore(0)

        async def one(number: int) -> list[str]:
            async with subscribed(call.server.url, "/api/events", last_event_id=first) as source:
                ready.release()
                if number % 10 == 0:  # some stop reading for a while
                    source.pause()
                    await done.wait()
                    source.resume()
                await source.until(lambda: len(source.events) == 200)
                return source.ids

        tasks = [group.create_task(one(number)) for number in range(100)]
        for _ in tasks:
            await ready.acquire()
        ids = [await call.publish_soon("n", f"{number}") for number in range(200)]
        done.set()
    assert all(task.result() == ids for task in tasks)


async def test_a_client_that_does_not_read_costs_little_memory(call: Caller) -> None:
    call("PUT", "/topic/flood")
    with headwater.open(call.server.path, durability="os") as log:
        async with subscribed(call.server.url, "/topic/flood/items?from=latest") as slow:
            slow.pause()
            async with subscribed(call.server.url, "/topic/flood/items?from=latest") as quick:
                before = anonymous_bytes(call.server.pid)
                for number in range(400):
                    log.append("flood", f"{number} " + "x" * 100_000)
                    if number % 20 == 0:  # as fast as the quick one takes it
                        await quick.until_events(number + 1)
                await quick.until(lambda: len(quick.events) == 400)
                grown = anonymous_bytes(call.server.pid) - before
                assert grown < 12_000_000  # not the 40 MB that it has not read
            slow.resume()
            await slow.until(lambda: len(slow.events) == 400)
            assert [got.data.split()[0] for got in slow.events] == [str(number) for number in range(400)]


def anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not say")


async def test_a_topic_is_streamed_over_all_its_partitions_and_resumed(call: Caller) -> None:
    call("DELETE", "/topic/wide")
    call("PUT", "/topic/wide?partitions=3")
    for number in range(9):
        call("POST", f"/topic/wide/items?partition={number % 3}&type=n", b"%d" % number, {"Content-Type": "text/plain"})
    async with subscribed(call.server.url, "/topic/wide/items") as source:
        await source.until(lambda: len(source.events) == 9)
        seen = source.events
    for at in range(9):  # wherever it broke off, the rest comes, once
        async with subscribed(call.server.url, "/topic/wide/items", last_event_id=seen[at].id) as source:
            await source.until_events(8 - at)
            assert sorted(got.data for got in seen[: at + 1] + source.events) == [str(number) for number in range(9)]
    async with subscribed(call.server.url, "/topic/wide/items?partition=1&from=1") as source:
        await source.until(lambda: len(source.events) == 2)
        assert [got.data for got in source.events] == ["4", "7"]


async def test_a_topic_is_streamed_to_an_end(call: Caller) -> None:
    call("DELETE", "/topic/short")
    call("PUT", "/topic/short")
    ids = [call("POST", "/topic/short/items?type=n", b"%d" % n).headers["headwater-id"] for n in range(9)]
    for query, wanted in (
        ("wait_for_more=false", ids),
        ("max_items=3", ids[:3]),
        ("from=2&end_before=5", ids[2:5]),
        (f"from_id={ids[7]}&wait_for_more=false", ids[7:]),
    ):
        async with subscribed(call.server.url, f"/topic/short/items?{query}") as source:
            await source.until(lambda: source.ended)
            assert source.ids == wanted, query
    async with subscribed(call.server.url, "/topic/short/items?max_items=2", last_event_id=ids[4]) as source:
        await source.until(lambda: source.ended)
        assert source.ids == ids[5:7]


async def test_stopping_the_server_ends_streams_properly(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server:
        call = Caller(server)
        call.publish("n", "x")
        async with (
            subscribed(server.url, "/api/events") as live,
            subscribed(server.url, "/topic/events/items?max_items=5") as waiting,
        ):
            await live.next()
            await waiting.next()
            call.connection.close()
            assert await asyncio.get_running_loop().run_in_executor(None, server.stop) == 0
            await live.until(lambda: live.ended)
            await waiting.until(lambda: waiting.ended)


def test_curl_shows_events_as_they_come(call: Caller) -> None:
    curl = shutil.which("curl")
    assert curl is not None
    call.publish("greeting", "hello")
    command = [curl, "-sN", f"{call.server.url}/api/events"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(6)]
        assert lines[3:5] == [b"event: greeting\n", b"data: hello\n"]
        call.publish("greeting", "again")
        lines = [process.stdout.readline() for _ in range(4)]
        assert lines[2] == b"data: again\n"
        process.kill()
