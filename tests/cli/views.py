"""A log with views in it, made by the application in `shop.py`."""

from __future__ import annotations

from pathlib import Path

import headwater
from tests.cli.shop import app

SHOP = Path(__file__).with_name("shop.py")


def fill(data: Path) -> None:
    """Two baskets: ann's with a total of 120, bob's with one of 42; a visit of ann, and one that is quarantined."""
    with headwater.open(data) as hw:
        hw.append("orders", {"n": 1, "price": 120}, key="ann", type="added")
        hw.append("orders", {"n": 6, "price": 7}, key="bob", type="added")
        hw.append("visits", "knocks", key="ann")
        hw.append("visits", "ghost", key="ann", type="seen")


def run_app(data: Path) -> None:
    """Run the application until nothing is left to do."""
    with headwater.open(data) as hw:
        app.catch_up(hw)
