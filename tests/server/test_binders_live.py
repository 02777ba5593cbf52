"""Changes of documents as they come: as server-sent events and as lines, resumed, through rebuilds and restarts."""

from __future__ import annotations

import asyncio
import json
import subprocess
from itertools import count
from typing import Any

import pytest

import headwater
from headwater import App
from headwater.store import Store
from tests.server.eventsource import Got, Source, subscribed
from tests.server.process import ServerProcess
from tests.server.serving import Server, serving

_numbers = count()


def counting(topic: str, binder: str, version: int = 1) -> App:
    app = App()

    @app.projection(topic, binder, version=version, name=binder)
    def count(doc: Any, event: headwater.Event) -> Any:
        if event.type == "gone":
            return None
        return {"n": (doc["n"] if doc else 0) + version}

    return app


class Clicks:
    """A topic and a binder of its own, which counts clicks in this process."""

    def __init__(self, hw: Store) -> None:
        number = next(_numbers)
        self.hw = hw
        self.topic, self.binder = f"clicks{number}", f"counts{number}"
        self.path = f"/binders/{self.binder}/changes"
        self.app = counting(self.topic, self.binder)

    def click(self, *keys: str, type: str = "click") -> None:
        self.hw.append_many(self.topic, [{}] * len(keys), keys=list(keys), types=type)
        self.app.catch_up(self.hw)


@pytest.fixture
def clicks(local: Store) -> Clicks:
    made = Clicks(local)
    made.click("a", "b")
    return made


def told(got: Got) -> tuple[str, str, Any]:
    data = json.loads(got.data)
    assert (data["kind"], data["place"]) == (got.event, got.id)
    return got.event, data.get("id", ""), data.get("data")


async def next_of(source: Source) -> tuple[str, str, Any]:
    return told(await source.next())


async def test_all_documents_come_first_then_what_changes(clicks: Clicks, server: Server) -> None:
    async with subscribed(server.url, clicks.path) as source:
        assert source.headers["content-type"] == "text/event-stream"
        seen = [await next_of(source) for _ in range(2)]
        while seen and seen[0][0] == "reset":
            seen = [*seen[1:], await next_of(source)]
        assert sorted(seen) == [("put", "a", {"n": 1}), ("put", "b", {"n": 1})]
        await asyncio.to_thread(clicks.click, "a")
        assert await next_of(source) == ("put", "a", {"n": 2})
        await asyncio.to_thread(clicks.click, "b", type="gone")
        assert await next_of(source) == ("delete", "b", None)


async def test_after_latest_only_what_comes_is_told(clicks: Clicks, server: Server) -> None:
    async with subscribed(server.url, f"{clicks.path}?after=latest") as source:
        await asyncio.to_thread(clicks.click, "c")
        assert await next_of(source) == ("put", "c", {"n": 1})


async def test_who_comes_back_goes_on_after_the_last_event(clicks: Clicks, server: Server) -> None:
    async with subscribed(server.url, f"{clicks.path}?after=latest") as source:
        await asyncio.to_thread(clicks.click, "c")
        last = await source.next()
    await asyncio.to_thread(clicks.click, "a", "d")
    async with subscribed(server.url, clicks.path, last_event_id=last.id) as source:
        seen = sorted([await next_of(source) for _ in range(2)])
        assert seen == [("put", "a", {"n": 2}), ("put", "d", {"n": 1})]
    async with subscribed(server.url, f"{clicks.path}?after={last.id}") as source:
        assert sorted([await next_of(source) for _ in range(2)]) == seen


async def test_a_rebuild_is_told_as_a_reset_with_all_documents(clicks: Clicks, server: Server) -> None:
    async with subscribed(server.url, f"{clicks.path}?after=latest") as source:
        clicks.app = counting(clicks.topic, clicks.binder, version=2)
        await asyncio.to_thread(clicks.app.catch_up, clicks.hw)
        assert await next_of(source) == ("reset", "", None)
        seen = [await next_of(source) for _ in range(2)]
        assert sorted(seen) == [("put", "a", {"n": 2}), ("put", "b", {"n": 2})]


async def test_many_follow_and_all_are_told_of_everything_in_order(clicks: Clicks, server: Server) -> None:
    async def follow(ready: asyncio.Barrier) -> list[int]:
        numbers: list[int] = []
        async with subscribed(server.url, f"{clicks.path}?after=latest") as source:
            await ready.wait()
            while not numbers or numbers[-1] < 30:
                kind, id, data = await next_of(source)
                assert (kind, id) == ("put", "z")
                numbers.append(data["n"])
        return numbers

    ready = asyncio.Barrier(21)
    following = [asyncio.create_task(follow(ready)) for _ in range(20)]
    await ready.wait()
    for _ in range(30):
        await asyncio.to_thread(clicks.click, "z")
    for numbers in await asyncio.gather(*following):
        assert numbers == sorted(set(numbers))


async def test_a_stream_shows_that_it_is_alive(clicks: Clicks) -> None:
    with serving(clicks.hw.path, heartbeat_s=0.05) as server:
        async with subscribed(server.url, f"{clicks.path}?after=latest") as source:
            await source.until(lambda: source.comments >= 3)


async def test_a_stream_ends_properly_with_the_server(clicks: Clicks) -> None:
    with serving(clicks.hw.path) as server:
        async with subscribed(server.url, f"{clicks.path}?after=latest") as source:
            await asyncio.to_thread(clicks.click, "c")
            await source.next()
            server.process.terminate()
            await source.until(lambda: source.lost)
            assert source.ended


async def test_a_bad_place_is_told_before_the_stream_begins(clicks: Clicks, server: Server) -> None:
    async with subscribed(server.url, clicks.path, last_event_id="nonsense!") as source:
        assert source.status == 400


async def test_a_slow_client_holds_nobody_back(clicks: Clicks, server: Server) -> None:
    async with (
        subscribed(server.url, f"{clicks.path}?after=latest") as slow,
        subscribed(server.url, f"{clicks.path}?after=latest") as quick,
    ):
        slow.pause()
        for _ in range(5):
            await asyncio.to_thread(clicks.click, "z")
        await quick.until(lambda: bool(quick.events) and told(quick.events[-1])[2] == {"n": 5})
        slow.resume()
        await slow.until(lambda: bool(slow.events) and told(slow.events[-1])[2] == {"n": 5})


def test_curl_reads_events_and_lines(clicks: Clicks, server: Server) -> None:
    def begin(*options: str) -> subprocess.Popen[str]:
        command = ["curl", "-sN", *options, f"{server.url}{clicks.path}?after=latest"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    with begin() as events, begin("-H", "Accept: application/x-ndjson") as lines:
        try:
            assert events.stdout is not None
            assert lines.stdout is not None
            assert events.stdout.readline().startswith("retry: ")
            while server.http.get("/metrics").text.find("\nheadwater_subscribers 2") < 0:
                pass
            clicks.click("c")
            assert json.loads(lines.stdout.readline())["data"] == {"n": 1}
            read = [events.stdout.readline().rstrip() for _ in range(7)]
            begins, id, event, data = read[0], *read[4:]
            assert begins.startswith("id: ")
            assert id.startswith("id: ")
            assert id != begins
            assert event == "event: put"
            assert json.loads(data.removeprefix("data: "))["id"] == "c"
        finally:
            events.kill()
            lines.kill()


async def test_a_client_goes_on_after_the_server_was_killed(clicks: Clicks) -> None:
    server = ServerProcess(clicks.hw.path)
    async with subscribed(server.url, f"{clicks.path}?after=latest") as source:
        await asyncio.to_thread(clicks.click, "c")
        last = await source.next()
        server.kill()
        await source.until(lambda: source.lost)
    await asyncio.to_thread(clicks.click, "d")
    server = ServerProcess(clicks.hw.path)
    try:
        async with subscribed(server.url, clicks.path, last_event_id=last.id) as source:
            assert await next_of(source) == ("put", "d", {"n": 1})
    finally:
        server.stop()
