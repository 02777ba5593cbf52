"""A store that does not keep its conditions is refused, whichever it ignores."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from headwater.bucket.directory_store import DirectoryStore
from headwater.bucket.object_store import ObjectStore, probe
from headwater.bucket.opening import open_store
from headwater.bucket.s3_store import S3Store
from headwater.disk.disk import Clock, Disk
from headwater.errors import Unsupported
from tests.bucket.chaos import chaotic
from tests.servers import BUCKET, Seaweed


def test_a_store_that_keeps_its_conditions_passes_and_nothing_is_left(object_store: ObjectStore) -> None:
    probe(object_store, Clock())
    assert list(object_store.list("")) == []


@pytest.mark.parametrize(
    ("ignored", "named"), [(b"if-none-match", "that already existed"), (b"if-match", "that had changed meanwhile")]
)
def test_a_store_that_ignores_a_condition_is_refused_and_the_condition_named(
    seaweed: Seaweed, ignored: bytes, named: str
) -> None:
    with chaotic(seaweed.endpoint) as proxy:
        proxy.strip = (ignored,)
        unsigned = {"endpoint": proxy.endpoint, "skip_signature": True, "client_options": {"allow_http": True}}
        store = S3Store(BUCKET, uuid.uuid4().hex, unsigned, Clock())
        with pytest.raises(Unsupported, match=named) as refused:
            probe(store, Clock())
        assert refused.value.code == "no_conditional_writes"
        assert store.url in str(refused.value)
        assert "events would be lost" in str(refused.value)
        assert list(store.list("")) == []


def test_a_lost_answer_does_not_refuse_a_good_store(seaweed: Seaweed) -> None:
    for seed in range(4):
        with chaotic(seaweed.endpoint, seed, requests=0.2, answers=0.3) as proxy:
            probe(open_store(seaweed.url(uuid.uuid4().hex, proxy.endpoint), clock=Clock(), disk=Disk()), Clock())


def test_a_store_that_answers_everything_with_yes_is_refused_though_nothing_was_replaced(tmp_path: Path) -> None:
    class Obliging(DirectoryStore):
        def swap(self, key: str, data: bytes, version: str) -> str:
            return super().swap(key, data, version) or "yes"

    store = Obliging(tmp_path, Disk(), Clock())
    with pytest.raises(Unsupported, match="changed meanwhile"):
        probe(store, Clock())
    with pytest.raises(Unsupported):
        probe(store, Clock())


def test_probing_costs_a_few_requests_once(seaweed: Seaweed) -> None:
    with chaotic(seaweed.endpoint) as proxy:
        store = open_store(seaweed.url(uuid.uuid4().hex, proxy.endpoint), clock=Clock(), disk=Disk())
        probe(store, Clock())
        assert [each.method for each in proxy.seen] == ["PUT", "PUT", "PUT", "PUT", "PUT", "POST"]
        probe(open_store(store.url, clock=Clock(), disk=Disk()), Clock())
        assert len(proxy.seen) == 6
