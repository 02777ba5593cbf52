"""A program of a user, which type checkers must accept as it is. tests/api/test_typing.py checks it."""

from __future__ import annotations

from collections.abc import Iterator

import headwater
from headwater import App, AppendHandle, Binder, Consumer, Context, Event, EventBatch, Ref, Refs, Store, TopicInfo

app = App()
app.binder("totals").index("total")


@app.projection("orders", "totals", key="customer")
def total(document: dict[str, int] | None, event: Event) -> dict[str, int]:
    return {"total": (document or {"total": 0})["total"] + event.value["total"]}


@app.function("orders")
def thank(context: Context, event: Event) -> None:
    context.append("mails", {"to": event.value["customer"]}, key=event.key)


def fill(store: Store) -> tuple[Ref, Refs, Ref]:
    first: Ref = store.append("orders", {"total": 12}, type="placed", key="o-1", meta={"by": "web"}, durability="os")
    several: Refs = store.append_many("orders", [{"total": 1}, b"two", "three"], keys=["o-2", None, b"o-3"])
    handle: AppendHandle = store.append_later("orders", {"total": 5}, key="o-4")
    with store.transaction() as transaction:
        transaction.append("orders", {"total": 3}, expected_version="none", key="o-5")
    return first, several, handle.result(timeout=5.0)


def read(store: Store) -> list[int]:
    events: Iterator[Event] = store.read("orders", start="earliest", type="placed|paid", match={"total": {"$gt": 10}})
    offsets: list[int] = [event.offset for event in events]
    batches: Iterator[EventBatch] = store.read_batches("orders", reverse=True)
    offsets += [len(batch) for batch in batches]
    info: TopicInfo = store.describe("orders")
    with store.follow("orders", timeout=0.0) as following:
        return offsets + [event.offset for event in following] + [part.end for part in info.partitions]


def consume(store: Store) -> int:
    consumer: Consumer
    with store.consumer("billing", "orders", timeout=0) as consumer:
        for event in consumer:
            consumer.ack(event)
    return sum(found.lag or 0 for found in store.consumers("orders"))


def documents(store: Store) -> dict[str, int]:
    binder: Binder = store.binder("totals")
    return {document.id: document.data["total"] for document in binder.find({"total": {"$gt": 1}}, sort="-total")}


def main() -> None:
    for address in ("data", "objects:///tmp/bucket", "s3://bucket/prefix", "http://127.0.0.1:7450"):
        with headwater.open(address) as store:
            fill(store)
            read(store)
            consume(store)
            documents(store)
