"""The proxy that others build their races with does what it says."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater.bucket.object_store import ObjectStore
from headwater.bucket.opening import open_store
from headwater.disk.disk import Clock, Disk
from headwater.errors import Unavailable
from headwater.limits import Limits
from tests.bucket.chaos import Chaos
from tests.servers import Seaweed


def opened(seaweed: Seaweed, prefix: str, proxy: Chaos | None = None) -> ObjectStore:
    url = seaweed.url(prefix, proxy.endpoint if proxy else "")
    return open_store(url, clock=Clock(), disk=Disk(), limits=Limits(store_retry_s=0))


def test_what_is_not_lost_passes_unchanged(seaweed: Seaweed, chaos_proxy: Chaos) -> None:
    store = opened(seaweed, uuid.uuid4().hex, chaos_proxy)
    data = bytes(range(256)) * 40_000
    assert store.create("a b/ü", data) is not None
    found = store.get("a b/ü")
    assert found is not None
    assert bytes(found.data) == data
    assert [each.key for each in store.list("")] == ["a b/ü"]
    assert [(each.method, each.status) for each in chaos_proxy.seen] == [("PUT", 200), ("GET", 200), ("GET", 200)]
    assert chaos_proxy.seen[0].sent == len(data)


def test_a_lost_request_is_not_done_and_a_lost_answer_is_of_one_that_is(seaweed: Seaweed, chaos_proxy: Chaos) -> None:
    prefix = uuid.uuid4().hex
    store, direct = opened(seaweed, prefix, chaos_proxy), opened(seaweed, prefix)
    chaos_proxy.requests = 1.0
    with pytest.raises(Unavailable):
        store.put("key", b"1")
    assert direct.get("key") is None
    chaos_proxy.requests, chaos_proxy.answers = 0.0, 1.0
    with pytest.raises(Unavailable):
        store.put("key", b"1")
    assert direct.get("key") is not None
    assert chaos_proxy.lost_requests == chaos_proxy.lost_answers == 1


@pytest.mark.parametrize("done", [False, True])
def test_a_request_is_held_before_the_server_or_behind_it(seaweed: Seaweed, chaos_proxy: Chaos, done: bool) -> None:
    prefix = uuid.uuid4().hex
    store, direct = opened(seaweed, prefix, chaos_proxy), opened(seaweed, prefix)
    with ThreadPoolExecutor(1) as pool, chaos_proxy.hold("PUT", "*/meta/*", done=done) as held:
        store.put("other", b"is not held")
        writing = pool.submit(store.put, "meta/0", b"1")
        held.wait()
        assert not writing.done()
        assert (direct.get("meta/0") is not None) == done
        held.release()
        writing.result()
    assert direct.get("meta/0") is not None
