"""The examples do what they say, and the one with orders adds up whatever is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from headwater import Event, Limits, Store
from headwater.opening import open_directory
from headwater.views.app import load_app
from tests.log.children import Child, Said
from tests.waiting import wait_for

ORDERS = Path(__file__).parent.parent / "examples" / "orders.py"
LIMITS = Limits(lease_ms=300, retry_ms=5, retry_ms_max=50)
PLACED = 90
KILLS = 6


@pytest.fixture
def orders_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    load_app(str(ORDERS))
    return sys.modules["orders"]


def test_the_orders_tell_a_story(tmp_path: Path) -> None:
    source = ORDERS.parent.parent / "src"
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, str(ORDERS)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "40 orders: " in done.stdout
    assert "sold out: placed -> cancelled" in done.stdout
    assert "card declined: placed -> reserved -> declined -> cancelled" in done.stdout
    check(tmp_path / "orders-data", tmp_path / "orders-payments.jsonl", 40, {"kettle": 12, "lamp": 30})


@pytest.mark.usefixtures("java_classes")
@pytest.mark.timeout(180)  # it starts a server, five processes and Spark
def test_the_demonstration_tells_the_whole_story(tmp_path: Path) -> None:
    """With a smaller shop. It compares each step with the shop's books by itself, and ends where one differs."""
    root = ORDERS.parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--visits", "2000"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for told in ("SIGKILL", "as in the books", "are one table", "equal to the live ones", "Look at what it left"):
        assert told in done.stdout
    assert (tmp_path / "demo-data" / "revenue.png").read_bytes().startswith(b"\x89PNG")
    with open_directory(tmp_path / "demo-data" / "log") as hw:
        assert hw.check().findings == []
        assert hw.binder("baskets").count() > 1000


def test_orders_and_stock_add_up_however_often_the_processes_are_killed(orders_module: Any, tmp_path: Path) -> None:
    random = Random(3)
    path = tmp_path / "orders-data"
    stock = {item: count * 3 for item, count in orders_module.STOCK.items()}
    orders_module.STOCK = stock

    def work(said: Said) -> None:
        with open_directory(path, limits=LIMITS) as hw, orders_module.app.running(hw):
            said.recv()

    with open_directory(path, limits=LIMITS) as hw:
        orders_module.open_shop(hw)
        for number in range(PLACED):
            orders_module.place(hw, number)
        children = [Child(work) for _ in range(2)]
        for number in range(KILLS):
            steps = PLACED + (number + random.random()) * PLACED / KILLS  # each order has one more, at least
            wait_for(lambda steps=steps: hw.describe("orders").events > steps)  # type: ignore[misc]
            time.sleep(random.random() * 0.005)  # not to wait for something: the moment is what varies
            children[number % 2].kill()
            children[number % 2] = Child(work)
        wait_for(lambda: not any(info.lag for info in hw.consumers()))
        for child in children:
            child.tell()
            child.result()
    check(path, tmp_path / "orders-payments.jsonl", PLACED, stock)


def check(data: Path, payments: Path, placed: int, stock: dict[str, int]) -> None:
    """Compare what is in the log with what must have happened to each order."""
    asked = Counter(json.loads(line)["request"] for line in payments.read_text().splitlines())
    with open_directory(data) as hw:
        assert [topic for topic in hw.topics() if topic.endswith(".dead")] == []
        events: dict[str, list[Event]] = {}
        for event in hw.read("orders"):
            events.setdefault(event.value["order"], []).append(event)
        assert len(events) == placed
        for order in events.values():
            check_order(order, asked)
        check_stock(hw, events, stock)


def check_order(order: list[Event], asked: Counter[str]) -> None:
    steps = [event.type for event in order]
    assert steps in (
        ["placed", "cancelled"],
        ["placed", "reserved", "paid", "completed"],
        ["placed", "reserved", "declined", "cancelled"],
    )
    for event in order:
        if event.type == "reserved":
            assert asked[str(event.id)] >= 1
            assert steps[2] == ("declined" if event.value["card"].endswith("13") else "paid")


def check_stock(hw: Store, orders: dict[str, list[Event]], stock: dict[str, int]) -> None:
    left: Counter[str] = Counter()
    changes: dict[str, list[int]] = {}
    for event in hw.read("stock"):
        item = (event.key or b"").decode()
        left[item] += event.value["change"]
        assert left[item] >= 0
        changes.setdefault(event.value["order"], []).append(event.value["change"])
    for name, order in orders.items():
        count, steps = order[0].value["count"], [event.type for event in order]
        wanted = {"paid": [-count], "declined": [-count, count]}.get(steps[2], []) if len(steps) > 2 else []
        assert changes.get(name, []) == wanted
    for item, count in stock.items():
        completed = [
            each[0].value["count"]
            for each in orders.values()
            if each[-1].type == "completed" and each[0].value["item"] == item
        ]
        assert left[item] == count - sum(completed)
        level = hw.binder("stock").get(item)
        assert level is not None
        assert level.data == {"left": left[item]}
    for name, order in orders.items():
        document = hw.binder("orders").get(name)
        assert document is not None
        assert document.data["state"] == order[-1].type
        assert document.data["steps"] == [event.type for event in order]
