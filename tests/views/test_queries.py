"""Queries with a name, asked in a directory."""

from __future__ import annotations

from typing import Any

import pytest

from headwater import App, Event, Invalid, NotFound, Store
from headwater.views.context import Views


def shop() -> App:
    app = App()

    @app.projection("orders", "baskets")
    def basket(doc: dict[str, Any] | None, event: Event) -> dict[str, Any]:
        return {"total": (doc or {"total": 0})["total"] + event.value["total"]}

    @app.query("top")
    def top(views: Views, limit: int = 10) -> Any:
        return views.binder("baskets").find(sort="-total", limit=limit)

    @app.query()
    def orders_of(views: Views, name: str, *, least: int = 0) -> list[int]:
        found = views.read("orders", key=name, match={"total": {"$gte": least}})
        return [event.value["total"] for event in found]

    @app.query()
    def last(views: Views, hw: str) -> int | None:
        return views.version("orders", hw)

    @app.query()
    def broken(_views: Views) -> Any:
        raise TypeError("a mistake in it")

    return app


def test_a_query_reads_binders_events_and_versions(hw: Store) -> None:
    app = shop()
    for key, total in (("ann", 5), ("bob", 9), ("ann", 7)):
        hw.append("orders", {"total": total}, key=key)
    app.catch_up(hw)
    assert [(doc.id, doc.data) for doc in app.ask(hw, "top", limit=1)] == [("ann", {"total": 12})]
    assert [doc.id for doc in app.ask(hw, "top")] == ["ann", "bob"]
    assert app.ask(hw, "orders_of", name="ann", least=6) == [7]  # also arguments that have the names of ask's own
    assert app.ask(hw, "last", hw="ann") == 2


def test_a_query_that_is_not_there_is_told_with_those_that_are(hw: Store) -> None:
    with pytest.raises(NotFound) as caught:
        shop().ask(hw, "tops")
    assert caught.value.code == "no_such_query"
    assert caught.value.hint == "it has broken, last, orders_of, top"


@pytest.mark.parametrize("arguments", [{}, {"name": "ann", "most": 5}, {"nam": "ann"}])
def test_wrong_arguments_are_invalid_and_the_right_ones_are_told(hw: Store, arguments: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as caught:
        shop().ask(hw, "orders_of", **arguments)
    assert caught.value.code == "wrong_arguments"
    assert "name: 'str'" in caught.value.hint or "name: str" in caught.value.hint


def test_an_error_within_a_query_is_its_own(hw: Store) -> None:
    with pytest.raises(TypeError, match="a mistake in it"):
        shop().ask(hw, "broken")


def test_a_query_can_only_read(hw: Store) -> None:
    app = App()
    given: list[Views] = []
    app.query("keep")(given.append)
    app.ask(hw, "keep")
    public = {name for name in dir(given[0]) if not name.startswith("_")}
    assert public == {"binder", "read", "version"}
