"""The application of the tests of views: two projections, a function and two queries."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from headwater import App, Event

app = App()
app.binder("baskets").index("total")


@app.projection("orders", "baskets")
def basket(doc: dict[str, Any] | None, event: Event) -> dict[str, Any]:
    line = event.value
    doc = doc or {"items": 0, "total": 0}
    return {"items": doc["items"] + line["n"], "total": doc["total"] + line["n"] * line["price"]}


@app.projection("visits", "visitors", on_error="quarantine")
def visitor(doc: dict[str, Any] | None, event: Event) -> dict[str, Any]:
    if event.value == "ghost":
        raise ValueError("nobody is there")
    return {"visits": (doc or {"visits": 0})["visits"] + 1, "first": datetime(2025, 3, 1, tzinfo=UTC)}


@app.function("visits")
def greet(ctx: Any, event: Event) -> None:
    ctx.append("letters", {"to": (event.key or b"").decode()})


@app.query("top")
def top(views: Any, limit: int = 10) -> Any:
    return views.binder("baskets").find(sort="-total", limit=limit)


@app.query("counted")
def counted(views: Any, *, word: str) -> dict[str, Any]:
    return {"word": word, "baskets": views.binder("baskets").count()}
