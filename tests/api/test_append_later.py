"""`append_later`: events that are appended in the background, on every backend."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.errors import Closed, Conflict, Invalid, Unavailable
from headwater.event import Refs
from headwater.limits import Limits
from headwater.requests import AppendMany
from headwater.store import Store
from tests.api.proxy import Proxy
from tests.server import process
from tests.server.serving import Server
from tests.waiting import wait_for

SLOW = Limits(linger_ms=60_000)  # appends only when a batch is full, or by `flush`
PLACES = ["directory", "server", "bucket"]


@pytest.fixture(params=PLACES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "server":
        server: Server = request.getfixturevalue("server")
        return server.url
    return str(tmp_path / "data") if request.param == "directory" else f"objects://{tmp_path}/bucket"


def numbers(store: Store, topic: str) -> list[int]:
    return [int(event.data or b"") for event in store.read(topic)]


def test_events_are_where_their_handles_say_in_the_order_of_the_calls(opened: Store, topic: str) -> None:
    handles = [
        opened.append_later(topic, b"%d" % n, type=f"t{n % 3}", key=f"k{n % 5}", meta={"n": str(n)}) for n in range(500)
    ]
    refs = [handle.result(30) for handle in handles]
    assert all(handle.done() for handle in handles)
    events = list(opened.read(topic))
    assert [(ref.offset, ref.id, ref.time) for ref in refs] == [(e.offset, e.id, e.time) for e in events]
    assert [(e.data, e.type, e.key, e.meta) for e in events] == [
        (b"%d" % n, f"t{n % 3}", b"k%d" % (n % 5), {"n": str(n)}) for n in range(500)
    ]
    assert {ref.durability for ref in refs} == {"fsync"}


def test_events_that_come_together_become_few_batches(address: str, topic: str) -> None:
    with headwater.open(address, limits=SLOW) as store:
        handles = [store.append_later(topic, b"%d" % n) for n in range(3000)]
        assert not any(handle.done() for handle in handles)
        with pytest.raises(Unavailable, match="did not finish within"):
            handles[0].result(0.01)
        store.flush()
        assert all(handle.done() for handle in handles)
        assert sum(1 for _ in store.read_batches(topic)) == 1
        assert numbers(store, topic) == list(range(3000))


def test_events_are_appended_when_the_time_is_over(address: str, topic: str) -> None:
    with headwater.open(address, linger_ms=20) as store:
        assert store.append_later(topic, b"0").result(30).offset == 0


def test_a_full_batch_does_not_wait(address: str, topic: str) -> None:
    limits = Limits(linger_ms=60_000, linger_bytes=1000)
    with headwater.open(address, limits=limits) as store:
        handles = [store.append_later(topic, b"x" * 300) for _ in range(4)]
        assert [handle.result(30).offset for handle in handles] == [0, 1, 2, 3]


def test_contents_and_durabilities_keep_their_order(opened: Store, topic: str) -> None:
    given: list[Any] = [b"0", "one", {"n": 2}, {"n": 3}, b"4"]
    handles = [opened.append_later(topic, data) for data in given]
    handles.append(opened.append_later(topic, b"5", durability="os"))
    opened.flush()
    assert [handle.result().offset for handle in handles] == list(range(6))
    assert [event.value for event in opened.read(topic)] == [*given, b"5"]


def test_what_changes_after_the_call_is_not_appended(address: str, topic: str) -> None:
    with headwater.open(address, limits=SLOW) as store:
        data = {"total": 1}
        store.append_later(topic, data)
        data["total"] = 2
        store.flush()
        assert [event.value for event in store.read(topic)] == [{"total": 1}]


def test_keys_choose_the_partition(opened: Store, topic: str) -> None:
    opened.create(topic, partitions=4)
    handles = [opened.append_later(topic, b"%d" % n, key=b"%d" % (n % 7)) for n in range(70)]
    opened.flush()
    places = {(ref.partition, ref.offset): b"%d" % n for n, ref in enumerate(h.result() for h in handles)}
    assert {(e.partition, e.offset): e.data for e in opened.read(topic)} == places
    assert len({partition for partition, _ in places}) > 1
    for key in range(7):
        of_key = [int(e.data or b"") for e in opened.read(topic, key=b"%d" % key)]
        assert of_key == list(range(key, 70, 7))


def test_closing_appends_what_is_queued_and_refuses_more(address: str, topic: str) -> None:
    store = headwater.open(address, limits=SLOW)
    handles = [store.append_later(topic, b"%d" % n) for n in range(3)]
    store.close()
    assert [handle.result(0).offset for handle in handles] == [0, 1, 2]
    with pytest.raises(Closed):
        store.append_later(topic, b"3")
    with headwater.open(address) as again:
        assert numbers(again, topic) == [0, 1, 2]


@pytest.mark.parametrize("data", [b"x" * 2_000_000, iter([b"x"])], ids=["bytes", "stream"])
def test_a_huge_event_is_refused_at_once(opened: Store, topic: str, data: Any) -> None:
    opened.create(topic)
    with pytest.raises(Invalid, match="in the background"):
        opened.append_later(topic, data)
    opened.flush()
    assert list(opened.read(topic)) == []


def test_an_event_that_a_topic_refuses_does_not_take_others_along(address: str, topic: str) -> None:
    if address.startswith("objects:"):
        pytest.skip("a bucket refuses it at once")
    with headwater.open(address, limits=SLOW) as store:
        store.create(topic, data_bytes_max=100)
        handles = [store.append_later(topic, b"x" * size) for size in (1, 101, 2)]
        with pytest.raises(Invalid, match="101"):
            store.flush()
        store.flush()  # an error is raised once
        assert [handles[n].result(0).offset for n in (0, 2)] == [0, 1]
        with pytest.raises(Invalid, match="101"):
            handles[1].result(0)


def test_an_expected_version_is_checked_and_the_queue_continues(address: str, topic: str) -> None:
    if address.startswith("objects:"):
        pytest.skip("a bucket has no versions")
    with headwater.open(address, limits=SLOW) as store:
        first = store.append_later(topic, b"0", key="k", expected_version="none")
        wrong = store.append_later(topic, b"1", key="k", expected_version="none")
        right = store.append_later(topic, b"2", key="k", expected_version=0)
        plain = store.append_later(topic, b"3", key="k")
        with pytest.raises(Conflict):
            store.flush()
        assert [handle.result(0).offset for handle in (first, right, plain)] == [0, 1, 2]
        with pytest.raises(Conflict):
            wrong.result(0)


def test_a_producer_makes_a_repeated_append_one(opened: Store, topic: str) -> None:
    handles = [opened.append_later(topic, b"0", producer=("p", 0, 1)) for _ in range(2)]
    assert {handle.result(30).offset for handle in handles} == {0}
    assert numbers(opened, topic) == [0]


def test_threads_each_keep_their_order(opened: Store, topic: str) -> None:
    def append(first: int) -> None:
        for n in range(first, first + 2000):
            opened.append_later(topic, b"%d" % n, type=str(first))

    threads = [threading.Thread(target=append, args=(n * 10_000,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened.flush()
    found = numbers(opened, topic)
    assert sorted(found) == sorted(n for first in range(4) for n in range(first * 10_000, first * 10_000 + 2000))
    for first in range(4):
        of_thread = [n for n in found if n // 10_000 == first]
        assert of_thread == sorted(of_thread)


def test_a_caller_waits_while_the_buffer_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with headwater.open(tmp_path / "data", limits=Limits(linger_ms=0, buffer_bytes=1000)) as store:
        began, proceed = threading.Event(), threading.Event()
        append, append_many = store.backend.append, store.backend.append_many

        def stalled(request: Any) -> Any:
            began.set()
            assert proceed.wait(30)
            return append_many(request) if isinstance(request, AppendMany) else append(request)

        monkeypatch.setattr(store.backend, "append", stalled)
        monkeypatch.setattr(store.backend, "append_many", stalled)
        store.append_later("t", b"x" * 100)
        assert began.wait(30)
        for _ in range(9):
            store.append_later("t", b"x" * 100)  # these fit
        blocked = threading.Thread(target=lambda: store.append_later("t", b"last"))
        blocked.start()
        blocked.join(0.2)
        assert blocked.is_alive()
        proceed.set()
        blocked.join(30)
        assert not blocked.is_alive()
        store.flush()
        assert sum(1 for _ in store.read("t")) == 11


def test_a_failed_append_raises_in_flush_and_in_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(request: AppendMany) -> Refs:  # noqa: ARG001
        raise Unavailable("no")

    with headwater.open(tmp_path / "data", limits=SLOW) as store:
        monkeypatch.setattr(store.backend, "append_many", failing)
        handles = [store.append_later("t", b"0") for _ in range(2)]
        with pytest.raises(Unavailable):
            store.flush()
        for handle in handles:
            with pytest.raises(Unavailable):
                handle.result(0)
        [store.append_later("t", b"0") for _ in range(2)]
        with pytest.raises(Unavailable):
            store.close()


def test_a_forked_child_has_a_queue_of_its_own(tmp_path: Path) -> None:
    with headwater.open(tmp_path / "data", limits=SLOW) as store:
        parent = store.append_later("t", b"0")
        child = os.fork()
        if not child:
            store.append_later("t", b"1")
            store.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert numbers(store, "t") == [1]
        store.flush()
        assert parent.result(0).offset == 1
        assert numbers(store, "t") == [1, 0]


def test_a_program_that_ends_without_closing_loses_nothing(address: str, topic: str) -> None:
    if address.startswith("http:"):
        pytest.skip("the server of the fixture is in this process")
    program = (
        "import headwater, sys\n"
        "store = headwater.open(sys.argv[1], linger_ms=60_000)\n"
        "for n in range(100): store.append_later(sys.argv[2], b'%d' % n)\n"
    )
    subprocess.run([sys.executable, "-c", program, address, topic], check=True, timeout=60)
    with headwater.open(address) as store:
        assert numbers(store, topic) == list(range(100))


def test_a_killed_program_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    program = (
        "import headwater, sys\n"
        "store = headwater.open(sys.argv[1])\n"
        "for first in range(0, 10**9, 50):\n"
        "    handles = [store.append_later('t', b'%d' % n) for n in range(first, first + 50)]\n"
        "    print(handles[-1].result().offset, flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        acknowledged = [int(next(child.stdout)) for _ in range(20)]
        child.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in child.stdout]
    with headwater.open(tmp_path / "data") as store:
        found = numbers(store, "t")
    assert found == list(range(len(found)))
    assert len(found) > acknowledged[-1]


# On a server, while connections break


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server, seed=17)
    yield proxy
    proxy.close()


def test_broken_connections_neither_lose_nor_double_nor_reorder(proxy: Proxy, topic: str) -> None:
    limits = Limits(linger_ms=1, linger_bytes=200)
    proxy.budgets = (0, 1, 17, 150)  # bytes of answers: fewer than one has, or little more
    with headwater.open(proxy.url, limits=limits, retry=60.0) as store:
        store.create(topic, partitions=3)
        proxy.mode = "random"
        proxy.cut_all()
        handles = [store.append_later(topic, b"%d" % n, key=b"%d" % (n % 4)) for n in range(1000)]
        wait_for(lambda: proxy.lost > 5)
        proxy.mode = "pass"
        store.flush()
        places = {(ref.partition, ref.offset): b"%d" % n for n, ref in enumerate(h.result(0) for h in handles)}
        events = list(store.read(topic))
        assert {(e.partition, e.offset): e.data for e in events} == places
        assert len(events) == 1000
        for key in range(4):
            assert [int(e.data or b"") for e in events if e.key == b"%d" % key] == list(range(key, 1000, 4))


def test_a_killed_server_neither_loses_nor_doubles_nor_reorders(tmp_path: Path) -> None:
    with process.served(tmp_path / "data") as first:
        store = headwater.open(first.url, limits=Limits(linger_ms=1, linger_bytes=2000), retry=60.0)
        handles = [store.append_later("t", b"%d" % n) for n in range(2000)]
        assert handles[0].result(30).offset == 0
        first.kill()
        handles += [store.append_later("t", b"%d" % n) for n in range(2000, 4000)]
    with process.served(tmp_path / "data", "--http", f"127.0.0.1:{first.port}"), store:
        store.flush()
        assert [handle.result(0).offset for handle in handles] == list(range(4000))
        assert numbers(store, "t") == list(range(4000))
