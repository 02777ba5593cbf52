"""Connections that break, servers that are killed: nothing is lost, nothing comes twice."""

from __future__ import annotations

import contextlib
import gc
import io
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headwater
from headwater.errors import NotFound, Unavailable
from headwater.store import Store
from tests.api.proxy import Proxy, proxied
from tests.server.serving import Server, serving

THREADS = 6


def open_remote(url: str, retry: float = 15.0) -> Store:
    opened = headwater.open(url, durability="os", retry=retry)
    assert isinstance(opened, Store)
    return opened


def in_threads(work: Callable[[int], object]) -> None:
    """Run it in several threads; raises what one of them raised."""
    failures: list[BaseException] = []

    def run(n: int) -> None:
        try:
            work(n)
        except BaseException as error:  # noqa: BLE001  # for the main thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.fixture
def broken(server: Server) -> Iterator[Proxy]:
    with proxied(server, "random") as proxy:
        yield proxy


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxied(server, "pass") as made:
        yield made


def stored(server: Server, topic: str) -> Counter[bytes | None]:
    with open_remote(server.url) as hw:
        return Counter(event.data for event in hw.read(topic))


def test_appends_whose_answers_get_lost_are_there_once(server: Server, broken: Proxy, topic: str) -> None:
    with open_remote(server.url) as hw:
        hw.create(topic, partitions=3)
    with open_remote(broken.url) as hw:
        hw.topics()

        def work(n: int) -> None:
            for i in range(40):
                hw.append(topic, b"%d-%d" % (n, i), key=f"k{i % 5}" if i % 2 else None)
                if i % 8 == 0:
                    hw.append_many(topic, [b"%d-%d-%d" % (n, i, j) for j in range(5)], keys=[f"{j}" for j in range(5)])

        in_threads(work)
    expected = [b"%d-%d" % (n, i) for n in range(THREADS) for i in range(40)]
    expected += [b"%d-%d-%d" % (n, i, j) for n in range(THREADS) for i in range(0, 40, 8) for j in range(5)]
    assert stored(server, topic) == Counter(expected)
    assert broken.lost >= 2


def test_transactions_whose_answers_get_lost_are_done_once(server: Server, broken: Proxy, topic: str) -> None:
    with open_remote(server.url) as hw:
        hw.create(f"{topic} left", partitions=2)
    with open_remote(broken.url) as hw:
        hw.topics()

        def work(n: int) -> None:
            for i in range(15):
                with hw.transaction() as tx:
                    tx.append(f"{topic} left", b"%d-%d" % (n, i))
                    tx.append(f"{topic} right", b"%d-%d" % (n, i))

        in_threads(work)
    expected = Counter(b"%d-%d" % (n, i) for n in range(THREADS) for i in range(15))
    assert stored(server, f"{topic} left") == stored(server, f"{topic} right") == expected
    assert broken.lost >= 2


def test_files_whose_upload_breaks_are_sent_again(server: Server, broken: Proxy, topic: str) -> None:
    film = bytes(range(256)) * 8192
    with open_remote(broken.url) as hw:
        hw.create(topic)
        while broken.cuts < 3:
            hw.append(topic, io.BytesIO(b"skipped" + film[:0] + film))
    with open_remote(server.url) as hw:
        assert {event.size for event in hw.read(topic)} == {len(film) + 7}


def test_a_lost_answer_is_told_and_its_producer_makes_sure(server: Server, topic: str, proxy: Proxy) -> None:
    with open_remote(proxy.url, retry=0.3) as hw:
        hw.append(topic, b"first")
        proxy.mode = "drop answers"
        with pytest.raises(Unavailable) as failed:
            hw.append(topic, b"second")
        assert failed.value.code == "answer_lost"
        proxy.mode = "pass"
        for n in range(10):
            hw.append(topic, b"%d" % n)
        ref = hw.append(topic, b"second", producer=failed.value.producer)
        assert ref.offset == 1
    assert stored(server, topic)[b"second"] == 1


def test_what_is_not_safe_to_repeat_is_not_repeated(topic: str, proxy: Proxy) -> None:
    with open_remote(proxy.url) as hw:
        hw.append(topic, b"x")
        proxy.mode, proxy.cuts = "drop answers", 0
        with pytest.raises(Unavailable) as failed:
            hw.retain(topic, before=0)
        assert (failed.value.code, proxy.cuts) == ("answer_lost", 1)


def test_deleting_is_done_once_though_its_answer_got_lost(topic: str, proxy: Proxy) -> None:
    with open_remote(proxy.url) as hw:
        hw.append(topic, b"x")
        proxy.mode = "drop answers"
        timer = threading.Timer(0.2, lambda: setattr(proxy, "mode", "pass"))
        timer.start()
        hw.delete(topic)
        timer.join()
        with pytest.raises(NotFound):
            hw.delete(topic)


def test_reading_goes_on_where_a_connection_broke(server: Server, broken: Proxy, topic: str) -> None:
    with open_remote(server.url) as hw:
        hw.create(topic, partitions=2)
        for n in range(40):
            hw.append_many(topic, [b"%05d" % (n * 100 + i) * 20 for i in range(100)], partition=n * 7 % 2)
        everything = [event.id for event in hw.read(topic)]
    broken.budgets = (300, 3_000, 20_000, 200_000, 200_000)  # a frame of which not all has come is nothing
    with open_remote(broken.url) as hw:
        hw.topics()
        assert [event.id for event in hw.read(topic)] == everything
        assert [event.id for event in hw.read(topic, reverse=True)] == everything[::-1]
        assert hw.read_arrow(topic, columns=["offset"]).num_rows == 4000
        assert [event.offset for event in hw.read(topic, partition=1, start=7, end=1_900)] == list(range(7, 1_900))
    assert broken.cuts >= 4


def test_a_read_ends_where_it_was_to_end_also_after_a_break(topic: str, proxy: Proxy) -> None:
    with open_remote(proxy.url) as hw:
        for n in range(400):
            hw.append(topic, b"%d" % n + b"x" * 20_000)
        events = hw.read(topic)
        assert next(events).offset == 0
        proxy.cut_all()
        hw.append(topic, b"later")
        assert [event.offset for event in events] == list(range(1, 400))


def test_followers_get_every_event_once_through_breaks(server: Server, broken: Proxy, topic: str) -> None:
    with open_remote(server.url) as hw, open_remote(broken.url) as other:
        hw.create(topic, partitions=2)
        other.topics()
        follower = other.follow(topic, start="earliest", timeout=30)

        def write() -> None:
            for n in range(300):
                hw.append(topic, b"%d" % n, partition=n % 2)
                if n % 20 == 0:
                    broken.cut_all()

        writer = threading.Thread(target=write)
        writer.start()
        found = [next(follower) for _ in range(300)]
        writer.join()
        hw.append(topic, b"last", partition=0)
        assert next(follower).data == b"last"
        follower.stop()
    for partition in (0, 1):
        offsets = [event.offset for event in found if event.partition == partition]
        assert offsets == list(range(150))


def test_what_failed_lets_go_of_its_connection_without_the_collector(topic: str, proxy: Proxy) -> None:
    with open_remote(proxy.url) as hw:
        hw.append(topic, b"x")
        gc.disable()
        try:
            follower = hw.follow(topic, timeout=20)
            proxy.cut_all()  # so that it is asked for again
            hw.append(topic, b"y")
            assert next(follower).data == b"y"
            hw.delete(topic)
            with contextlib.suppress(NotFound):
                next(follower)
            left = weakref.ref(follower._batches)  # type: ignore[attr-defined]
            del follower
            assert left() is None
        finally:
            gc.enable()


def test_a_server_that_is_killed_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "data") as first,
        proxied(first, "pass") as proxy,
        open_remote(proxy.url, retry=30.0) as hw,
    ):
        hw.topics()
        over = threading.Event()

        def restart() -> None:
            with serving(tmp_path / "data") as second:
                proxy.turn_to(second)
                over.wait(60)

        restarting = threading.Thread(target=restart)

        def work(n: int) -> None:
            for i in range(60):
                hw.append("killed", b"%d-%d" % (n, i), durability="fsync")
                if (n, i) == (0, 20):
                    first.process.kill()
                    restarting.start()

        in_threads(work)
        found = Counter(event.data for event in hw.read("killed"))
        over.set()
        restarting.join()
    assert found == Counter(b"%d-%d" % (n, i) for n in range(THREADS) for i in range(60))


def test_followers_go_on_when_a_server_ends_and_another_begins(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "data") as first,
        proxied(first, "pass") as proxy,
        open_remote(proxy.url, retry=30.0) as hw,
    ):
        hw.append("restarted", b"0")
        follower = hw.follow("restarted", start="earliest", timeout=40)
        assert next(follower).data == b"0"
        found: list[bytes | None] = []
        following = threading.Thread(target=lambda: found.extend(next(follower).data for _ in range(2)))
        following.start()
        hw.append("restarted", b"1")
        first.process.terminate()
        assert first.process.wait(30) == 0
        with serving(tmp_path / "data") as second:
            proxy.turn_to(second)
            hw.append("restarted", b"2")
            following.join(40)
            follower.stop()
    assert found == [b"1", b"2"]


def test_a_server_that_never_answered_is_told_of_at_once(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as gone:
        pass
    began = time.monotonic()
    with open_remote(gone.url, retry=30.0) as hw:
        for ask in (hw.topics, lambda: hw.append("t", b"x"), lambda: hw.follow("t")):
            with pytest.raises(Unavailable) as failed:
                ask()
            assert failed.value.code == "unreachable"
            assert "headwater serve" in failed.value.hint
    assert time.monotonic() - began < 10


def test_one_connection_serves_many_requests(topic: str, proxy: Proxy) -> None:
    with open_remote(proxy.url) as hw:
        for _ in range(20):
            hw.append(topic, b"x")
            hw.describe(topic)
            list(hw.read(topic))
            with pytest.raises(NotFound):
                hw.describe("nothing of the kind")
        assert proxy.made == 1
