"""An order reserves stock, takes a payment, and gives the stock back if the payment is declined.

Each step is a function of an event that appends the next one. A step happens once inside the log, whatever is killed
whenever; together they are a transaction over three parties that ends either `completed` or `cancelled`:

    placed ── reserve ──> reserved ── pay ──> paid ── complete ──> completed
                 │                     └────> declined ── give_back ──> cancelled
                 └──> cancelled (sold out)

Run it with `python examples/orders.py`: it makes ./orders-data afresh and tells what became of 40 orders. Or run the
application by itself, in as many terminals as you like: `headwater views run orders-data --app examples/orders.py`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import headwater
from headwater import App, Event
from headwater.views.context import Context

DATA = Path("orders-data")
PAYMENTS = Path("orders-payments.jsonl")
ORDERS = 40
STOCK = {"kettle": 12, "lamp": 30}

app = App()
app.binder("orders").index("state")


# The service that takes payments. It is outside of the log: it may be asked twice for the same order, and told so by
# the id of the event, takes the money once. Some cards are declined, and sometimes it does not answer.


class NoAnswerError(Exception):
    """The payment may have been taken, or not."""


def charge(request: str, card: str, amount: int) -> bool:
    """Take a payment; the same request again takes nothing more. Whether it was taken."""
    lost = random.random() < 0.1  # the request never arrives
    if lost:
        raise NoAnswerError("the payment service did not answer")
    line = json.dumps({"request": request, "card": card, "amount": amount}) + "\n"
    file = os.open(PAYMENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)
    if random.random() < 0.1:  # it did, but we are not told
        raise NoAnswerError("the payment service did not answer")
    return not card.endswith("13")


# The steps. What fails, as a charge without an answer, or a stock that somebody else has changed meanwhile, is tried
# again a little later.


@app.function("orders", type="placed", tries=50)
def reserve(ctx: Context, event: Event) -> None:
    order = event.value
    version = ctx.version("stock", order["item"])  # first: whatever comes after it is a conflict
    left = sum(change.value["change"] for change in ctx.read("stock", key=order["item"]))
    if left < order["count"]:
        ctx.append("orders", {**order, "why": "sold out"}, key=event.key, type="cancelled")
        return
    taken = {"change": -order["count"], "order": order["order"]}
    ctx.append("stock", taken, key=order["item"], expected_version="none" if version is None else version)
    ctx.append("orders", order, key=event.key, type="reserved")


@app.function("orders", type="reserved", tries=50)
def pay(ctx: Context, event: Event) -> None:
    taken = charge(str(event.id), event.value["card"], event.value["amount"])
    ctx.append("orders", event.value, key=event.key, type="paid" if taken else "declined")


@app.function("orders", type="paid", tries=50)
def complete(ctx: Context, event: Event) -> None:
    ctx.append("orders", event.value, key=event.key, type="completed")


@app.function("orders", type="declined", tries=50)
def give_back(ctx: Context, event: Event) -> None:
    order = event.value
    ctx.append("stock", {"change": order["count"], "order": order["order"]}, key=order["item"])
    ctx.append("orders", {**order, "why": "card declined"}, key=event.key, type="cancelled")


# What can be asked.


@app.projection("orders", "orders")
def state(doc: dict[str, Any] | None, event: Event) -> dict[str, Any]:
    steps = [*doc["steps"], event.type] if doc else [event.type]
    return {**event.value, "state": event.type, "steps": steps}


@app.projection("stock", "stock")
def level(doc: dict[str, Any] | None, event: Event) -> dict[str, Any]:
    return {"left": (doc["left"] if doc else 0) + event.value["change"]}


@app.query()
def unfinished(views: Any) -> Any:
    return views.binder("orders").find({"state": {"$nin": ["completed", "cancelled"]}})


# The program.


def open_shop(hw: headwater.Store) -> None:
    """Make the topics, and fill the shelves."""
    hw.create("orders", partitions=4)
    for item, count in STOCK.items():
        hw.append("stock", {"change": count, "order": None}, key=item, expected_version="none")


def place(hw: headwater.Store, number: int) -> headwater.Ref:
    name = f"o-{number}"
    order = {
        "order": name,
        "item": "kettle" if number % 3 else "lamp",
        "count": 1 + number % 2,
        "amount": 20 + number,
        "card": f"4000-{number % 7 + 10}",
    }
    return hw.append("orders", order, key=name, type="placed", expected_version="none")


def main() -> None:
    shutil.rmtree(DATA, ignore_errors=True)
    PAYMENTS.unlink(missing_ok=True)
    with headwater.open(DATA) as hw:
        open_shop(hw)
        with app.running(hw) as runner:
            for number in range(ORDERS):
                place(hw, number)
            runner.settle()
        tell(hw)


def tell(hw: headwater.Store) -> None:
    orders = list(hw.binder("orders").find())
    states = Counter(order.data["state"] for order in orders)
    print(f"{len(orders)} orders: " + ", ".join(f"{count} {name}" for name, count in sorted(states.items())))
    for why in ("sold out", "card declined"):
        found = next((order for order in orders if order.data.get("why") == why), None)
        if found is not None:
            print(f"  {found.id}, {why}: {' -> '.join(found.data['steps'])}")
    for item in hw.binder("stock").find():
        sold = sum(each.data["count"] for each in orders if is_sold(each.data, item.id))
        print(f"{item.id}: there were {STOCK[item.id]}, {sold} are sold, {item.data['left']} are left")
        assert STOCK[item.id] == sold + item.data["left"]
    asked = [json.loads(line)["request"] for line in PAYMENTS.read_text().splitlines()]
    print(f"the payment service was asked {len(asked)} times for {len(set(asked))} payments")
    assert not list(app.ask(hw, "unfinished"))


def is_sold(order: dict[str, Any], item: str) -> bool:
    return (order["state"], order["item"]) == ("completed", item)


if __name__ == "__main__":
    main()
