"""The server, a process of its own, and beside it the application that keeps baskets and stock up to date."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headwater
from examples.demo import shop
from examples.demo.screen import bar, expect, note, say, timed

PATIENCE_S = 60.0
_URL = re.compile(r"http://\S+")


@contextlib.contextmanager
def server(data: Path) -> Iterator[str]:
    """`headwater serve` on a free port; its address. Stopped at the end."""
    application = Path(shop.__file__)
    command = [sys.executable, "-m", "headwater.cli", "serve", str(data), "--http", "127.0.0.1:0"]
    command += ["--tcp", "127.0.0.1:0", "--app", str(application)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            found = _URL.search(line)
            if found is not None:
                yield found[0]
                break
        else:
            expect(False, f"the server did not start: {process.wait()}")
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def wait_for_documents(hw: headwater.Store, url: str, expected: int) -> None:
    """Until all events are folded, by the application beside the server."""
    until_s = time.monotonic() + PATIENCE_S
    with bar("folded into documents") as update:
        while True:
            left = sum(view.lag for view in hw.views())
            update(2 * expected - left, 2 * expected)
            if hw.views() and not left:
                break
            expect(time.monotonic() < until_s, "the documents do not get ready")
            time.sleep(0.05)
    check_documents(hw)
    with headwater.open(url) as remote:
        best, took = timed(lambda: next(iter(remote.binder("baskets").find(sort="-spent", limit=1))))
    say(f"{hw.binder('baskets').count():,} baskets and {hw.binder('stock').count()} products in stock are documents")
    note("find the best customer, by HTTP", f"{best.id} spent {best.data['spent'] / 100:,.0f}", took)
    note("the same events for curl", f"{len(first_items(url))} lines of JSON")


def first_items(url: str) -> list[bytes]:
    """What curl would get: the first events of a partition, a line of JSON for each."""
    address = f"{url}/topic/{shop.TOPIC}/items?partition=0&from=0&max_items=3"
    request = urllib.request.Request(address, headers={"Accept": "application/x-ndjson"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        lines: list[bytes] = answer.read().splitlines()
    expect(all("product" in json.loads(line)["data"] for line in lines), "the server says something else")
    return lines


def check_documents(hw: headwater.Store) -> None:
    """They are what a plain loop over the log makes of it."""
    baskets: dict[str, Any] = {}
    stock: dict[str, Any] = {}
    for event in hw.read(shop.TOPIC):
        key = (event.key or b"").decode()
        baskets[key] = shop.basket_of(baskets.get(key), event)
        if event.type == "sold":
            stock[event.value["product"]] = shop.stock_of(stock.get(event.value["product"]), event)
    expect(documents(hw, "baskets") == baskets, "the baskets are not what their events make of them")
    expect(documents(hw, "stock") == stock, "the stock is not what was sold")


def documents(hw: headwater.Store, binder: str) -> dict[str, Any]:
    return {document.id: document.data for document in hw.binder(binder).find()}
