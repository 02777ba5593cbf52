"""The shop of the demonstration: what happens in it, and what is made of that.

What customers do follows from the number of their visit, so that whatever is made of the log can be compared with the
truth. A few customers come again and again, and most do not; some visits reach the log days after they took place,
because the telephone was offline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import headwater

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC = "shop"
VISITS = 80_000
CUSTOMERS = 20_000
DAYS = 28
OPENED = datetime(2026, 3, 1, tzinfo=UTC)
PRICES = {"tea": 450, "cup": 1200, "lamp": 3900, "chair": 8900, "kettle": 5400, "clock": 2500}  # in cents
PRODUCTS = list(PRICES)
DELIVERED = 40_000  # of each product, at the beginning


class Entry(NamedTuple):
    """An event that is to be appended."""

    type: str
    key: str
    data: dict[str, Any]


def visit(number: int) -> tuple[int, list[Entry]]:
    """What a customer does on one visit, and when it reaches the log, as the number of a visit."""
    chance = Random(number)
    customer = f"c-{int(CUSTOMERS * chance.random() ** 3)}"
    at = OPENED + timedelta(days=number * DAYS / VISITS)
    arrives = number + (chance.randrange(1, 4) * VISITS // DAYS if chance.random() < 0.05 else 0)
    heard = OPENED + timedelta(days=arrives * DAYS / VISITS)
    entries = []
    for _ in range(chance.randrange(1, 4)):
        product = PRODUCTS[int(len(PRODUCTS) * chance.random() ** 2)]
        count = chance.randrange(1, 4)
        line = {"product": product, "count": count, "at": at.isoformat(), "heard": heard.isoformat()}
        entries.append(Entry("added", customer, line))
        if chance.random() < 0.1:
            entries.append(Entry("removed", customer, line))
        elif chance.random() < 0.85:
            entries.append(Entry("sold", customer, {**line, "cents": count * PRICES[product]}))
        at += timedelta(seconds=chance.randrange(5, 300))
    return arrives, entries


def batches_of(writer: int, writers: int, visits: int) -> Iterator[list[Entry]]:
    """The work of one of several writers: its share of the visits as they reach the log, some hundred at a time."""
    mine = sorted((*visit(number), number) for number in range(writer, visits, writers))
    for start in range(0, len(mine), 200):
        yield [entry for _, entries, _ in mine[start : start + 200] for entry in entries]


# What is made of it. `headwater serve demo-data --app examples/demo/shop.py` keeps the documents up to date.

app = headwater.App()
app.binder("baskets").index("spent")


@app.projection(TOPIC, "baskets")
def basket_of(doc: dict[str, Any] | None, event: headwater.Event) -> dict[str, Any]:
    """What a customer has in the basket, and has spent so far."""
    line = event.value
    basket = doc or {"open": {}, "spent": 0, "bought": 0}
    product, count = line["product"], line["count"]
    left = basket["open"].get(product, 0) + (count if event.type == "added" else -count)
    basket["open"][product] = left
    if not left:
        del basket["open"][product]
    if event.type == "sold":
        basket["spent"] += line["cents"]
        basket["bought"] += count
    return basket


@app.projection(TOPIC, "stock", key="product", type="sold", unordered=True)
def stock_of(doc: dict[str, Any] | None, event: headwater.Event) -> dict[str, Any]:
    """How many of a product are left."""
    return {"left": (doc or {"left": DELIVERED})["left"] - event.value["count"]}


@app.pipeline(
    TOPIC, to="parquet:demo-data/revenue", schema="product string, cents bigint, at timestamp, heard timestamp"
)
def revenue(shop: DataFrame) -> DataFrame:
    """What was earned each day with each product, by when it was sold and not by when the log heard of it."""
    from pyspark.sql import functions as f

    sold = shop.where("type = 'sold'")
    by_day = sold.groupBy(f.to_date("at").alias("day"), "product")
    late = f.when(f.expr("heard > at + INTERVAL 12 HOURS"), f.col("cents")).otherwise(0)
    return by_day.agg(f.sum("cents").alias("cents"), f.sum(late).alias("late")).orderBy("day", "product")


def books(visits: int) -> Counter[tuple[date, str]]:
    """What the shop's own books say of that: cents by day and product."""
    found: Counter[tuple[date, str]] = Counter()
    for number in range(visits):
        for entry in visit(number)[1]:
            if entry.type == "sold":
                day = datetime.fromisoformat(entry.data["at"]).date()
                found[day, entry.data["product"]] += entry.data["cents"]
    return found
