"""What docs/BUCKET.md says that things cost is what is counted: requests of a real run, as a proxy sees them."""

from __future__ import annotations

import re
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest

import headwater
from headwater.limits import DEFAULTS, Limits
from headwater.store import Store
from tests.bucket.chaos import Chaos, Seen
from tests.servers import Seaweed
from tests.waiting import wait_for

PAGE = Path(__file__).parents[2] / "docs" / "BUCKET.md"
PUT_PRICE, GET_PRICE = 5e-6, 0.4e-6
MONTH_S = 30 * 24 * 3600
OBJECTS = 128
UNCOMPACTED = Limits(compact_objects=0)


class Requests(NamedTuple):
    """What was asked: PUT and LIST, which cost the same, and GET. Deleting is free."""

    put: float
    get: float

    @property
    def price(self) -> float:
        return self.put * PUT_PRICE + self.get * GET_PRICE


def counted(seen: list[Seen]) -> Requests:
    free = [each for each in seen if each.method in ("POST", "DELETE")]
    assert all("delete" in each.query or each.method == "DELETE" for each in free)
    got = [each for each in seen if each.method in ("GET", "HEAD") and "list-type" not in each.query]
    return Requests(len(seen) - len(free) - len(got), len(got))


def table(first: str) -> list[list[str]]:
    """The rows of the table of the page whose first heading is this."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"\n\| {first} \|.*\n\|[-:|]+\|\n((\|.*\|\n)+)", text)
    assert found is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]


def told(words: str) -> Requests:
    (row,) = (row for row in table("what is done") if words in row[0])
    return Requests(float(row[1]), float(row[2]))


@pytest.fixture
def bucket_url(seaweed: Seaweed, chaos_proxy: Chaos) -> str:
    return seaweed.url(uuid.uuid4().hex, chaos_proxy.endpoint)


def opened(url: str, limits: Limits = DEFAULTS) -> Store:
    bucket = headwater.open(url, limits=limits)
    assert isinstance(bucket, Store)
    return bucket


def count(proxy: Chaos) -> Requests:
    requests = counted(proxy.seen)
    proxy.seen.clear()
    return requests


def fill(url: str, objects: int) -> None:
    with opened(url, UNCOMPACTED) as bucket:
        for _ in range(objects):
            bucket.append("t", bytes(100))


def each(requests: Requests, objects: int) -> Requests:
    return Requests(round(requests.put / objects, 2), round(requests.get / objects, 2))


def test_opening_and_looking_at_a_partition(bucket_url: str, chaos_proxy: Chaos) -> None:
    fill(bucket_url, 1)
    other = bucket_url.replace("127.0.0.1", "localhost")  # an address that was not probed yet
    chaos_proxy.seen.clear()
    with headwater.open(other, mode="existing") as bucket:
        assert count(chaos_proxy) == told("opens a bucket")
        assert next(iter(bucket.read("t", start=0))).offset == 0
        looked = count(chaos_proxy)
        assert looked == told("first look at a partition")._replace(get=looked.get)
        assert looked.get <= told("first look at a partition").get


def test_appending_and_catching_up(bucket_url: str, chaos_proxy: Chaos) -> None:
    with opened(bucket_url, UNCOMPACTED) as bucket:
        bucket.append("t", bytes(100))
        chaos_proxy.seen.clear()
        for _ in range(OBJECTS):
            bucket.append("t", bytes(100))
        assert each(count(chaos_proxy), OBJECTS) == told("an object is appended")
    with headwater.open(bucket_url, mode="existing") as bucket:
        next(iter(bucket.read("t", start=0, end=1)))
        chaos_proxy.seen.clear()
        assert sum(map(len, bucket.read_batches("t", start=1))) == OBJECTS
        caught_up = each(count(chaos_proxy), OBJECTS)
        assert caught_up.put <= told("who catches up").put
        assert caught_up.get == pytest.approx(told("who catches up").get, abs=0.03)


def test_compacting_and_reading_segments(bucket_url: str, chaos_proxy: Chaos) -> None:
    with opened(bucket_url, UNCOMPACTED) as bucket:
        for _ in range(DEFAULTS.compact_objects):
            bucket.append("t", bytes(100))
    with opened(bucket_url, UNCOMPACTED) as bucket:  # whoever has put them has them in its cache
        chaos_proxy.seen.clear()
        bucket.describe("t")
        # How many objects are read ahead to find the end is a race of threads. They are not read again.
        chaos_proxy.seen[:] = [seen for seen in chaos_proxy.seen if "/events/" in seen.path and seen.status == 200]
        assert bucket.seal("t") == 1
        assert each(count(chaos_proxy), DEFAULTS.compact_objects) == told("it is compacted")
        bucket.maintain("t")
        looked = count(chaos_proxy)
        assert looked.put <= told("is superfluous").put
        assert looked.get <= told("is superfluous").get
    with headwater.open(bucket_url, mode="existing") as bucket:
        chaos_proxy.seen.clear()
        assert sum(map(len, bucket.read_batches("t"))) == DEFAULTS.compact_objects
        assert counted([seen for seen in chaos_proxy.seen if "/segments/" in seen.path]) == told("a segment is read")


def test_following(seaweed: Seaweed, bucket_url: str, chaos_proxy: Chaos) -> None:
    prefix = bucket_url.partition("?")[0].rpartition("/")[2]
    with opened(seaweed.url(prefix), UNCOMPACTED) as writer, opened(bucket_url, UNCOMPACTED) as reader:
        writer.append("t", b"")
        with reader.follow("t", start="latest", timeout=20) as following:
            for number in range(10):
                chaos_proxy.seen.clear()
                offset = writer.append("t", b"").offset
                assert next(following).offset == offset
                found = [seen for seen in list(chaos_proxy.seen) if seen.status == 200 and "/events/" in seen.path]
                if number:
                    assert counted(found) == told("one who follows")
        chaos_proxy.seen.clear()
        assert list(reader.follow("t", start="latest", timeout=0.5)) == []
        looks = [seen for seen in chaos_proxy.seen if seen.status == 404]
        assert counted(chaos_proxy.seen) == Requests(0, len(looks) * told("nothing is new").get)


def test_a_member_of_a_consumer(bucket_url: str, chaos_proxy: Chaos) -> None:
    third_s = 0.2
    with opened(bucket_url, Limits(compact_objects=0, lease_ms=600, bucket_ack_ms=100_000)) as bucket:
        bucket.create("t", partitions=3)
        with bucket.consumer("c", "t") as consumer:
            assert list(consumer.drain()) == []
            wait_for(lambda: len(consumer.partitions) == 3)
            began = time.monotonic()
            chaos_proxy.seen.clear()
            wait_for(lambda: len(chaos_proxy.seen) >= 25)
            seen = list(chaos_proxy.seen)
            times = (time.monotonic() - began) / third_s + 1
    lists = sum("list-type" in each.query for each in seen)
    signs = sum(each.method == "PUT" and "/members/" in each.path for each in seen)
    renewals = sum(each.method == "PUT" and "/consumers/" in each.path for each in seen)
    assert lists + signs + renewals == len(seen)
    assert times / 4 < (lists + signs) / told("sign of life").put <= times
    assert times / 4 < renewals / 3 / told("is renewed").put <= times


def test_storing_acks(bucket_url: str, chaos_proxy: Chaos) -> None:
    with opened(bucket_url, Limits(compact_objects=0, bucket_ack_ms=100_000)) as bucket:
        bucket.append_many("t", [b""] * 10)
        with bucket.consumer("c", "t") as consumer:
            for event in consumer.drain():
                consumer.ack(event)
            chaos_proxy.seen.clear()
            consumer.flush()
            assert counted([seen for seen in chaos_proxy.seen if "/consumers/" in seen.path]) == told(
                "acks of a partition"
            )


@pytest.mark.parametrize("events", [1, 100, 1000])
def test_the_price_of_a_million_events(bucket_url: str, chaos_proxy: Chaos, events: int) -> None:
    with opened(bucket_url, UNCOMPACTED) as bucket:
        bucket.append("t", b"")
        chaos_proxy.seen.clear()
        bucket.append_many("t", [bytes(range(100))] * events)
        (size,) = (seen.sent for seen in chaos_proxy.seen if "/events/" in seen.path)
    objects = 1_000_000 / events
    appended, compacted, read = (
        told(words).price * objects for words in ("an object is appended", "it is compacted", "who catches up")
    )
    digits = 2 if events == 1 else 4
    prices = [f"${price:.{digits}f}" for price in (appended, compacted, read, appended + compacted + read)]
    assert [f"{events:,}", f"{objects * size / 1e6:.0f}", *prices] in table("events in an object")


def test_the_price_of_a_month() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    appended = told("an object is appended").price * MONTH_S
    assert f"250 ms ${4 * appended:.0f}, sixteen ${64 * appended:.0f}" in text
    assert f"each second, ${appended:.0f} and ${16 * appended:.0f}" in text
    assert f"looks once a second: ${told('nothing is new').price * MONTH_S:.2f} a month" in text
    sign, renewal = (told(words).price * MONTH_S * 3000 for words in ("sign of life", "is renewed"))
    member, partition = sign / DEFAULTS.lease_ms, renewal / DEFAULTS.lease_ms
    assert f"costs ${member:.2f} a month, and ${partition:.2f} more" in text
    assert f"(with `lease_ms=60_000`: ${sign / 60_000:.2f} and ${renewal / 60_000:.2f})" in text
    acks = told("acks of a partition").price * MONTH_S * 1000 / DEFAULTS.bucket_ack_ms
    assert f"${acks:.2f} for each partition's acks" in text
