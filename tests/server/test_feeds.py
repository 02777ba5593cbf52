"""Live delivery, with plain sinks: nothing lost, nothing doubled, slow ones bounded, ends that are proper."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

import pytest

import headwater
from headwater.errors import Closed, Invalid, NotFound
from headwater.format.events import EventBatch
from headwater.limits import ServerLimits
from headwater.log.reading import pick
from headwater.server.settings import ServerSettings
from headwater.store import Store
from tests.server.sinks import Collector, Lines, begin, feeding
from tests.waiting import wait_in_loop

SMALL = ServerSettings(limits=ServerLimits(feed_chunk_bytes=2000, feed_recent_bytes=8000))


@pytest.fixture(autouse=True)
def topics(hw: Store) -> None:
    hw.create("orders")


def append(log: Store, count: int, size: int = 10, topic: str = "orders") -> None:
    for number in range(count):
        log.append(topic, b"%d " % number + b"x" * size, type="even" if number % 2 == 0 else "odd")


async def in_thread(function: Any, *args: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


class Writer:
    """A thread that appends as fast as it can."""

    def __init__(self, log: Store, size: int = 50, pause_s: float = 0.0) -> None:
        self.count = 0
        self._stop = False
        self._log, self._size, self._pause_s = log, size, pause_s
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop:
            self._log.append("orders", b"%d " % self.count + b"x" * self._size)
            self.count += 1
            if self._pause_s:
                time.sleep(self._pause_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop = True
        self._thread.join()


async def test_a_subscriber_gets_what_was_there_and_then_what_comes(hw: Store) -> None:
    append(hw, 3)
    async with feeding(hw) as feeds:
        sink = Collector()
        await begin(feeds, "orders", sink, start="earliest")
        await sink.until_lines(3)
        await in_thread(append, hw, 2)
        await sink.until_lines(5)
        assert sink.offsets == [0, 1, 2, 3, 4]
        assert feeds.counts.events == 5
        assert feeds.counts.bytes == len(sink.data)


async def test_latest_begins_with_what_comes_after_the_call(hw: Store) -> None:
    append(hw, 3)
    async with feeding(hw) as feeds:
        for begun in range(3, 20):  # the channel is made by the first, and may be behind for the others
            sink = Collector()
            await begin(feeds, "orders", sink, start="latest")
            await in_thread(append, hw, 1)
            await sink.until_lines(1)
            assert sink.offsets[0] == begun


async def test_an_offset_that_is_not_there_yet_is_waited_for(hw: Store) -> None:
    append(hw, 3)
    async with feeding(hw) as feeds:
        sink = Collector()
        await begin(feeds, "orders", sink, start=7)
        await in_thread(append, hw, 5)
        await sink.until_lines(1)
        assert sink.offsets == [7]
        await in_thread(append, hw, 1)
        await sink.until_lines(2)
        assert sink.offsets == [7, 8]


async def test_each_batch_is_encoded_once_for_all_who_want_the_same(hw: Store) -> None:
    async with feeding(hw) as feeds:
        form = Lines()
        sinks = [Collector() for _ in range(50)]
        for sink in sinks:
            await begin(feeds, "orders", sink, form)
        for number in range(20):
            await in_thread(append, hw, 1)
            await sinks[0].until_lines(number + 1)
        assert form.encoded == 20
        assert all(sink.offsets == list(range(20)) for sink in sinks)
        assert feeds.counts.channels == 1
        assert feeds.counts.subscribers == 50
        assert feeds.counts.events == 20 * 50


async def test_filters_have_channels_of_their_own(hw: Store) -> None:
    append(hw, 10)
    async with feeding(hw) as feeds:
        even, odd, keyed, matched = (Collector() for _ in range(4))
        await begin(feeds, "orders", even, start="earliest", type="even")
        await begin(feeds, "orders", odd, start="earliest", type="odd")
        await begin(feeds, "orders", keyed, start="earliest", key=b"k")
        await begin(feeds, "orders", matched, start="earliest", match={"a": {"$gt": 1}})
        assert feeds.counts.channels == 4
        await in_thread(append, hw, 10)
        hw.append("orders", b"for the key", key=b"k")
        hw.append("orders", {"a": 1})
        hw.append("orders", {"a": 2})
        await even.until_lines(10)
        await odd.until_lines(10)
        await keyed.until_lines(1)
        await matched.until_lines(1)
        assert even.offsets == list(range(0, 20, 2))
        assert odd.offsets == list(range(1, 20, 2))
        assert keyed.offsets == [20]
        assert matched.offsets == [22]


async def test_all_partitions_come_each_in_its_order(hw: Store) -> None:
    hw.create("wide", partitions=3)
    for number in range(30):
        hw.append("wide", b"%d" % number, partition=number % 3)
    async with feeding(hw) as feeds:
        sink, one = Collector(), Collector()
        await begin(feeds, "wide", sink, start="earliest")
        await begin(feeds, "wide", one, start="earliest", partition=2)
        await sink.until_lines(30)
        for number in range(30):
            hw.append("wide", b"%d" % number, partition=number % 3)
        await sink.until_lines(60)
        await one.until_lines(20)
        for partition in range(3):
            found = [line.split()[1] for line in sink.lines if line.startswith(f"{partition} ")]
            assert found == [str(offset) for offset in range(20)]
        assert [line.split()[:2] for line in one.lines] == [["2", str(offset)] for offset in range(20)]


async def test_offsets_of_all_partitions_are_a_place_to_begin(hw: Store) -> None:
    hw.create("wide", partitions=2)
    for number in range(10):
        hw.append("wide", b"%d" % number, partition=number % 2)
    async with feeding(hw) as feeds:
        sink = Collector()
        await begin(feeds, "wide", sink, start=(3, 5))
        await sink.until_lines(2)
        assert [line.split()[:2] for line in sink.lines] == [["0", "3"], ["0", "4"]]
        with pytest.raises(Invalid):
            await feeds.subscribe("wide", Lines(), start=(3,))


async def test_those_who_join_under_a_hammering_writer_lose_and_double_nothing(hw: Store) -> None:
    append(hw, 100)
    async with feeding(hw, SMALL) as feeds:
        sinks = []
        with Writer(hw, pause_s=0.0002) as writer:
            for number in range(60):
                sink = Collector(room=3000 if number % 3 else None)
                sinks.append(sink)
                at = writer.count + 100
                start: Any = ("earliest", "latest", max(0, at - 5), at, at + 5)[number % 5]
                await begin(feeds, "orders", sink, start=start)
                for each in sinks:
                    if each.room and each.untaken >= each.room:
                        each.drain()
                await asyncio.sleep(0.01)
        append(hw, 10)  # so that those get some who begin after the end
        end = hw.describe("orders").partitions[0].end
        for sink in sinks:
            sink.room = None
            sink.drain()
        for sink in sinks:
            await sink.until_offset(end - 1)
            assert sink.offsets == list(range(sink.offsets[0], end))
        assert sinks[0].offsets[0] == 0
        assert feeds.counts.behind > 0


async def test_a_slow_subscriber_is_bounded_and_delays_nobody(hw: Store) -> None:
    async with feeding(hw, SMALL) as feeds:
        slow, quick = Collector(room=4000), Collector()
        await begin(feeds, "orders", slow)
        await begin(feeds, "orders", quick)
        await in_thread(append, hw, 3000, 100)
        await quick.until_lines(3000)  # though the slow one has not taken a byte
        assert quick.offsets == list(range(3000))
        assert len(slow.data) == slow.most <= 4000 + 2 * 2000
        channel = next(iter(feeds._channels.values()))
        assert sum(len(chunk.data) for chunk in channel.recent) <= 8000
        assert feeds.counts.behind >= 1
        while len(slow.offsets) < 3000:
            assert slow.untaken <= 4000 + 2 * 2000
            before = len(slow.data)
            slow.drain()
            await slow.until_longer(before)
        assert slow.offsets == list(range(3000))
        await in_thread(append, hw, 1)  # and it is live again
        slow.drain()
        await slow.until(lambda: len(slow.offsets) == 3001)


async def test_a_large_batch_is_written_in_parts(hw: Store) -> None:
    await in_thread(hw.append_many, "orders", [b"%d " % n + b"x" * 90 for n in range(2000)])
    async with feeding(hw, SMALL) as feeds:
        slow = Collector(room=1)
        await begin(feeds, "orders", slow, start="earliest")
        await slow.until_lines(1)
        for _ in range(50):  # time enough to read on, if it would
            await feeds._blocking(int)
        seen = slow.most
        while len(slow.offsets) < 2000:
            slow.drain()
            await slow.until(lambda: slow.untaken > 0)
            seen = max(seen, slow.most)
        assert slow.offsets == list(range(2000))
        assert seen < 6000  # not the 200 kB of the batch


async def test_a_writer_does_not_wait_for_subscribers(hw: Store) -> None:
    async with feeding(hw, SMALL) as feeds:
        sinks = [Collector(room=1) for _ in range(20)]
        for sink in sinks:
            await begin(feeds, "orders", sink)
        append(hw, 2000)  # the loop does not run meanwhile, so nothing of it can wait for the loop
        assert hw.describe("orders").partitions[0].end == 2000


async def test_events_of_other_processes_are_delivered(hw: Store) -> None:
    async with feeding(hw) as feeds:
        sink = Collector()
        await begin(feeds, "orders", sink)
        program = (
            "import headwater, sys\n"
            "with headwater.open(sys.argv[1], durability='os') as log:\n"
            "    for n in range(500): log.append('orders', b'%d' % n)\n"
        )
        child = await in_thread(
            lambda: subprocess.run([sys.executable, "-c", program, str(hw.path)], check=True, timeout=50)
        )
        assert child.returncode == 0
        await in_thread(append, hw, 10)
        await sink.until_lines(510)
        assert sink.offsets == list(range(510))


async def test_deleting_the_topic_ends_its_streams(hw: Store) -> None:
    append(hw, 3)
    async with feeding(hw, SMALL) as feeds:
        live, full, ahead = Collector(), Collector(room=1), Collector()
        await begin(feeds, "orders", live, start="earliest")
        await begin(feeds, "orders", full, start="earliest")
        await begin(feeds, "orders", ahead, start=100)
        await live.until_lines(3)
        await in_thread(hw.delete, "orders")
        for sink in (live, full, ahead):
            await sink.until_end()
        assert live.lines[-1].startswith("0 2")
        assert feeds.counts.subscribers == feeds.counts.channels == 0
        hw.create("orders")  # one of the same name has other streams
        sink = Collector()
        await begin(feeds, "orders", sink, start="earliest")
        append(hw, 1)
        await sink.until_lines(1)
        assert sink.offsets == [0]


async def test_another_process_deleting_the_topic_ends_its_streams(hw: Store) -> None:
    append(hw, 3)
    async with feeding(hw) as feeds:
        sink = Collector()
        await begin(feeds, "orders", sink)
        program = "import headwater, sys\nheadwater.open(sys.argv[1]).delete('orders')"
        await in_thread(lambda: subprocess.run([sys.executable, "-c", program, str(hw.path)], check=True, timeout=50))
        await sink.until_end()


async def test_a_slow_subscriber_that_retention_passed_is_told(hw: Store) -> None:
    hw.create("small", segment_bytes=4096)
    async with feeding(hw, SMALL) as feeds:
        sink = Collector(room=1)
        await begin(feeds, "small", sink)
        await in_thread(append, hw, 400, 50, "small")
        await sink.until_lines(1)
        got = len(sink.offsets)
        deleted = await in_thread(lambda: hw.retain("small", before=300))
        oldest = deleted[-1].end
        assert oldest > got + 100
        sink.room = None
        sink.drain()
        await sink.until_offset(399)
        at = sink.lines.index(f"gap {oldest}")
        assert sink.offsets == [*range(at), *range(oldest, 400)]
        assert feeds.counts.gaps == 1


async def test_after_an_id_come_the_next_events(hw: Store) -> None:
    ids = [hw.append("orders", b"%d" % number).id for number in range(5)]
    async with feeding(hw) as feeds:
        for number, id in enumerate(ids):
            sink = Collector()
            await begin(feeds, "orders", sink, after=id)
            await in_thread(append, hw, 1)
            await sink.until_offset(5 + number)
            assert sink.offsets == list(range(number + 1, 6 + number))


async def test_an_id_that_is_gone_begins_at_the_oldest_and_says_so(hw: Store) -> None:
    hw.create("small", segment_bytes=4096)
    ids = [hw.append("small", b"x" * 100).id for _ in range(200)]
    oldest = hw.retain("small", before=100)[-1].end
    hw.append("other", b"x")
    other = hw.append("other", b"x").id
    async with feeding(hw) as feeds:
        for id, told in ((ids[10], True), (ids[oldest - 2], True), (ids[oldest - 1], False), (other, True)):
            sink = Collector()
            await begin(feeds, "small", sink, after=id)
            await sink.until_offset(199)
            assert sink.offsets == list(range(oldest, 200))
            assert (f"gap {oldest}" in sink.lines) == told


async def test_an_offset_that_is_gone_is_refused(hw: Store) -> None:
    hw.create("small", segment_bytes=4096)
    append(hw, 200, 100, "small")
    hw.retain("small", before=100)
    async with feeding(hw) as feeds:
        with pytest.raises(NotFound) as raised:
            await feeds.subscribe("small", Lines(), start=3)
        assert raised.value.code == "offset_gone"


async def test_what_cannot_be_subscribed_to_is_refused_before_anything_is_written(hw: Store) -> None:
    async with feeding(hw) as feeds:
        with pytest.raises(NotFound):
            await feeds.subscribe("missing", Lines())
        with pytest.raises(Invalid):
            await feeds.subscribe("orders", Lines(), type="(")
        with pytest.raises(Invalid):
            await feeds.subscribe("orders", Lines(), match={"a": {"$nothing": 1}})
        assert feeds.counts.subscribers == feeds.counts.channels == 0


async def test_a_client_that_leaves_takes_its_channel_and_its_thread_along(hw: Store) -> None:
    append(hw, 3)
    async with feeding(hw) as feeds:
        before = threading.active_count()
        streams = [await begin(feeds, "orders", Collector(), start="earliest") for _ in range(3)]
        assert feeds.counts.subscribers == 3
        watch = next(iter(feeds._watches._by_topic.values()))
        for stream in streams:
            stream.close()
            stream.close()
        assert feeds.counts.subscribers == feeds.counts.channels == len(feeds._watches) == 0
        await in_thread(watch.join)
        assert threading.active_count() <= before + 4  # the worker threads


async def test_a_client_may_leave_while_it_is_written_to(hw: Store) -> None:
    async with feeding(hw) as feeds:
        sinks = [Collector() for _ in range(3)]
        for sink in sinks:
            await begin(feeds, "orders", sink)
        first = sinks[0]

        def leave(chunk: bytes, framed: bytes) -> bool:
            del chunk, framed
            first.stream.close()
            return False

        first.stream._channel.live[first.stream] = leave
        await in_thread(append, hw, 2)
        await sinks[2].until_lines(2)
        assert sinks[1].offsets == sinks[2].offsets == [0, 1]
        assert first.offsets == []
        assert feeds.counts.subscribers == 2


async def test_many_are_written_to_in_turns_and_may_leave_in_between(hw: Store) -> None:
    async with feeding(hw) as feeds:
        sinks = [Collector() for _ in range(700)]
        for sink in sinks:
            await begin(feeds, "orders", sink)
        first, leaving = sinks[0], sinks[650:]
        channel = first.stream._channel

        def leave(chunk: bytes, framed: bytes) -> bool:
            asyncio.get_running_loop().call_soon(lambda: [sink.stream.end() for sink in leaving])
            return first.write_framed(chunk, framed)

        channel.live[first.stream] = leave
        await in_thread(append, hw, 1)
        late = Collector()
        await sinks[600].until_lines(1)
        await begin(feeds, "orders", late)
        channel.live[first.stream] = first.write_framed
        await in_thread(append, hw, 3)
        await sinks[640].until_offset(3)
        assert all(sink.offsets == [0, 1, 2, 3] for sink in sinks[:650])
        assert all(sink.offsets == [] for sink in leaving)  # a sink is not written to after its end
        assert late.offsets == [1, 2, 3]
        assert feeds.counts.events == 650 * 4 + 3


async def test_closing_ends_every_stream_once(hw: Store) -> None:
    append(hw, 3)
    async with feeding(hw, SMALL) as feeds:
        sinks = [Collector(room=1), Collector(), Collector()]
        for sink, start in zip(sinks, ("earliest", "latest", 50), strict=True):
            await begin(feeds, "orders", sink, start=start)
        follow = await feeds.follow("orders", start="latest", bytes_max=1000)
        waiting = asyncio.ensure_future(anext(follow, None))
        await sinks[0].until_lines(1)
        await wait_in_loop(lambda: feeds._waiters)
        feeds.close()
        assert [sink.ended for sink in sinks] == [1, 1, 1]
        assert await asyncio.wait_for(waiting, 10) is None
        with pytest.raises(Closed):
            await feeds.subscribe("orders", Lines())
        never = [thread.name for thread in threading.enumerate() if thread.name == "headwater-watch"]
        assert not never


async def test_nobody_reads_from_the_log_after_closing(hw: Store) -> None:
    reading, done = threading.Event(), threading.Event()

    class Slow(Lines):
        def encode(self, batches: Any, before: Any) -> Iterator[bytes]:
            reading.set()
            time.sleep(0.2)
            done.set()
            return super().encode(batches, before)

    async with feeding(hw) as feeds:
        await begin(feeds, "orders", Collector(), Slow())
        await in_thread(append, hw, 1)
        assert await in_thread(reading.wait, 10)
        feeds.close()
        assert done.is_set()


async def test_idle_streams_are_kept_alive_and_busy_ones_are_left_alone(hw: Store) -> None:
    async with feeding(hw, ServerSettings(heartbeat_s=0.05)) as feeds:
        idle, ahead, full = Collector(), Collector(), Collector(room=0)
        await begin(feeds, "orders", idle)
        await begin(feeds, "orders", ahead, start=100)
        await begin(feeds, "orders", full, type="x")
        await idle.until_lines(2)
        await ahead.until_lines(2)
        assert set(idle.lines) == set(ahead.lines) == {"beat"}
        assert full.lines == []  # it has no room, not even for this


async def test_many_topics_share_few_threads(hw: Store) -> None:
    settings = ServerSettings(limits=ServerLimits(watch_threads=2))
    async with feeding(hw, settings) as feeds:
        sinks = {}
        for number in range(12):
            hw.create(f"topic-{number}")
            sink = sinks[f"topic-{number}"] = Collector()
            await begin(feeds, f"topic-{number}", sink)
        assert len(feeds._watches) == 2
        for turn in range(3):
            for topic in sinks:
                await in_thread(append, hw, 1, 10, topic)
            for topic, sink in sinks.items():
                await sink.until_lines(turn + 1)
                assert sink.offsets == list(range(turn + 1)), topic
        await in_thread(hw.delete, "topic-0")  # which shares its thread with others
        await sinks["topic-0"].until_end()
        await in_thread(append, hw, 1, 10, "topic-2")
        await sinks["topic-2"].until_lines(4)


async def test_damage_is_told_and_ends_the_stream(hw: Store) -> None:
    append(hw, 3)

    class Broken(Lines):
        key = "broken"

        def encode(self, batches: Any, before: Any) -> Iterator[bytes]:
            del batches, before
            raise headwater.Corrupt("damaged", code="corrupt")

    async with feeding(hw) as feeds:
        behind, live, healthy = Collector(), Collector(), Collector()
        await begin(feeds, "orders", behind, Broken(), start="earliest")
        await begin(feeds, "orders", live, Broken())
        await begin(feeds, "orders", healthy)
        await behind.until_end()
        await in_thread(append, hw, 1)
        await live.until_end()
        await healthy.until_lines(1)
        assert behind.lines == live.lines == ["failed corrupt"]


async def test_following_gives_what_is_there_to_an_end(hw: Store) -> None:
    append(hw, 100)
    async with feeding(hw) as feeds:

        async def offsets(**options: Any) -> list[int]:
            follow = await feeds.follow("orders", bytes_max=500, **options)
            return [offset async for batches in follow for batch in batches for offset in batch.offsets().tolist()]

        assert await offsets(wait=False) == list(range(100))
        assert await offsets(stop=7) == list(range(7))
        assert await offsets(start=90, wait=False, type="odd") == [91, 93, 95, 97, 99]
        assert await offsets(start=3, stop=3) == []
        assert await offsets(start=3, stop=1000, wait=False) == list(range(3, 100))


async def test_following_waits_for_its_end(hw: Store) -> None:
    append(hw, 2)
    async with feeding(hw) as feeds:
        found: list[int] = []

        async def take() -> None:
            async for batches in await feeds.follow("orders", stop=5, bytes_max=500):
                found.extend(offset for batch in batches for offset in batch.offsets().tolist())

        task = asyncio.ensure_future(take())
        await wait_in_loop(lambda: found == [0, 1])
        assert not task.done()
        await in_thread(append, hw, 10)
        await asyncio.wait_for(task, 10)
        assert found == [0, 1, 2, 3, 4]
        assert len(feeds._watches) == 0


async def test_a_rare_type_is_found_without_reading_the_log(hw: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hw.create("long", segment_bytes=64 * 1024)
    for block in range(40):
        hw.append_many("long", [b"x" * 100] * 500, types="common")
        if block == 20:
            hw.append("long", b"rare", type="rare")
    await in_thread(hw.seal, "long")
    hw.append("long", b"rare too", type="rare")
    seen: list[int] = []

    def counting(log: Any, batch: Any, lo: int, hi: int, selection: Any) -> EventBatch | None:
        seen.append(batch.size)
        return pick(log, batch, lo, hi, selection)

    monkeypatch.setattr("headwater.log.topic_cursor.pick", counting)
    async with feeding(hw) as feeds:
        sink = Collector()
        await begin(feeds, "long", sink, start="earliest", type="rare")
        await sink.until_lines(2)
        assert [line.split()[2] for line in sink.lines] == ["rare", "rare"]
    whole = sum(segment.bytes for segment in [hw.describe("long").partitions[0]])
    assert sum(seen) < whole / 10
