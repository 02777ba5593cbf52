"""Binders are read in the same way in a directory and on a server: what is returned, and what is raised."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import pytest

import headwater
from headwater import App
from headwater.document import Document
from headwater.errors import Closed, Invalid, NotFound, TooLarge, Unavailable
from headwater.views.local import Local
from tests.api.proxy import proxied
from tests.server.process import Server as Process
from tests.server.serving import Server, serving

if TYPE_CHECKING:
    from headwater.api import Log

WHEN = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)
EVERYTHING = {
    "text": "kettle – ½",
    "whole": 2**53 + 1,
    "float": 1.0,
    "infinite": float("inf"),
    "yes": True,
    "nothing": None,
    "list": [1, [2.5, {"a": None}]],
    "when": WHEN,
    "bytes": b"\x00\xff",
    "id": bson.ObjectId("65f0a0a0a0a0a0a0a0a0a0a0"),
    "decimal": bson.Decimal128("1.10"),
    "uuid": uuid.UUID("12345678-1234-5678-1234-567812345678"),
}

app = App()
app.binder("stock").index("n")


@app.projection("goods", "stock")
def stock(doc: Any, event: headwater.Event) -> Any:
    if event.type == "gone":
        return None
    line = event.value
    return {"n": line["n"], "kind": line.get("kind", "cup"), "changes": (doc["changes"] if doc else 0) + 1}


@app.projection("goods", "everything", type="all", key=lambda event: "all")  # noqa: ARG005
def everything(doc: Any, event: headwater.Event) -> Any:  # noqa: ARG001
    return EVERYTHING


class Shop:
    """A log that is filled in this process, and read through `hw`."""

    def __init__(self, local: Local, hw: Log) -> None:
        self.local = local
        self.hw = hw

    def put(self, *numbers: int, kind: str = "cup") -> headwater.Refs:
        keys = [f"{kind}-{number}" for number in numbers]
        refs = self.local.append_many("goods", [{"n": each, "kind": kind} for each in numbers], keys=keys)
        app.catch_up(self.local)
        return refs

    def take(self, key: str) -> None:
        self.local.append("goods", {}, key=key, type="gone")
        app.catch_up(self.local)


@pytest.fixture(params=["directory", "http"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    with Local(tmp_path / "data") as local:
        if request.param == "directory":
            with headwater.open(tmp_path / "data") as hw:
                yield Shop(local, hw)
        else:
            with serving(tmp_path / "data") as server, headwater.open(server.url) as remote:
                yield Shop(local, remote)


def test_a_document_has_its_id_version_and_data(shop: Shop) -> None:
    refs = shop.put(1, 2)
    found = shop.hw.binder("stock").get("cup-2")
    assert found == Document("cup-2", refs[1].offset, {"n": 2, "kind": "cup", "changes": 1})
    assert shop.hw.binder("stock").get("cup-3") is None


def test_every_type_comes_back_as_it_was(shop: Shop) -> None:
    shop.local.append("goods", {"n": 1}, type="all", key="x")
    app.catch_up(shop.local)
    found = shop.hw.binder("everything").get("all")
    assert found is not None
    assert found.data == EVERYTHING
    for name, value in EVERYTHING.items():
        assert isinstance(found.data[name], type(value)), name
    (same,) = shop.hw.binder("everything").find({"when": WHEN, "decimal": bson.Decimal128("1.1")})
    assert same == found


def test_documents_are_found_sorted_and_cut(shop: Shop) -> None:
    shop.put(3, 1, 2)
    shop.put(10, 20, kind="pot")
    binder = shop.hw.binder("stock")
    assert [each.id for each in binder.find()] == ["cup-1", "cup-2", "cup-3", "pot-10", "pot-20"]
    assert [each.data["n"] for each in binder.find(sort="-n", skip=1, limit=2)] == [10, 3]
    assert [each.id for each in binder.find({"kind": "pot"}, sort=("kind", "-n"))] == ["pot-20", "pot-10"]
    (one,) = binder.find({"n": 10}, fields=["n"])
    assert one.data == {"n": 10}
    assert list(binder.find({"n": 99})) == []
    assert (binder.count(), binder.count({"n": {"$lt": 3}})) == (5, 2)


def test_how_documents_are_found_is_told(shop: Shop) -> None:
    shop.put(*range(500))
    binder = shop.hw.binder("stock")
    assert binder.explain({"n": 1}) != binder.explain({"kind": "cup"})
    assert "n" in binder.explain({"n": 1}, sort="n")


def test_many_documents_come_one_after_the_other(shop: Shop) -> None:
    shop.put(*range(5000))
    found = shop.hw.binder("stock").find(sort="n")
    assert next(found).data["n"] == 0
    assert [each.data["n"] for each in found] == list(range(1, 5000))


def test_what_was_written_is_waited_for(shop: Shop) -> None:
    shop.put(1)
    binder = shop.hw.binder("stock")
    refs = shop.hw.append_many("goods", [{"n": 5}, {"n": 6}], keys=["late", "later"])
    for at_least in (refs, refs[0], [refs[0], refs[1]], refs[1].offset):
        with pytest.raises(Unavailable) as failed:
            binder.get("late", at_least=at_least, timeout=0.05)
        assert failed.value.code == "view_behind"
    with pytest.raises(Unavailable):
        binder.count(at_least=refs, timeout=0)
    with pytest.raises(Unavailable):
        binder.find(at_least=refs, timeout=0)
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(binder.get("later", at_least=refs, timeout=30)))
    waiting.start()
    app.catch_up(shop.local)
    waiting.join(30)
    assert got[0].data["n"] == 6
    assert binder.count(at_least=refs) == 3
    assert [each.id for each in binder.find({"n": 5}, at_least=refs)] == ["late"]


def test_changes_come_as_they_are_made(shop: Shop) -> None:
    shop.put(1)
    with shop.hw.binder("stock").follow(timeout=20) as changes:
        first = next(changes)
        while first.kind == "reset":
            first = next(changes)
        assert (first.kind, first.id, first.data["n"]) == ("put", "cup-1", 1)  # type: ignore[index]
        shop.put(2)
        second = next(changes)
        assert (second.kind, second.id) == ("put", "cup-2")
        shop.take("cup-1")
        third = next(changes)
        assert (third.kind, third.id, third.version, third.data) == ("delete", "cup-1", None, None)
    again = shop.hw.binder("stock").follow(after=second.place, timeout=0.2)
    assert [(each.kind, each.id) for each in again] == [("delete", "cup-1")]
    assert list(shop.hw.binder("stock").follow(after="latest", timeout=0.1)) == []


def test_an_index_is_made_and_the_binder_tells_of_itself(shop: Shop) -> None:
    shop.put(1, 2, 3)
    binder = shop.hw.binder("stock")
    binder.index("kind")
    binder.index("kind")
    info = binder.info()
    assert (info.name, info.documents, info.indexes, info.projections) == ("stock", 3, ["kind", "n"], ["stock"])
    assert shop.hw.binders() == ["everything", "stock"]


def test_what_is_wrong_is_raised_in_the_same_way(shop: Shop) -> None:
    shop.put(1)
    binder = shop.hw.binder("stock")
    for kind, ask in (
        (NotFound, lambda: shop.hw.binder("none").get("x")),
        (NotFound, lambda: shop.hw.binder("none").count()),
        (NotFound, lambda: list(shop.hw.binder("none").find())),
        (NotFound, lambda: next(shop.hw.binder("none").follow())),
        (NotFound, lambda: shop.hw.binder("none").info()),
        (Invalid, lambda: list(binder.find({"n": {"$above": 1}}))),
        (Invalid, lambda: next(binder.follow(after="nonsense!"))),
        (Invalid, lambda: shop.hw.binder("")),
        (TooLarge, lambda: shop.hw.binder("x" * 100).get("x")),
    ):
        with pytest.raises(kind):
            ask()
    shop.hw.close()
    with pytest.raises(Closed):
        binder.get("cup-1")


# Only over a network


@pytest.fixture
def stocked(tmp_path: Path) -> Iterator[tuple[Shop, Server]]:
    with Local(tmp_path / "data") as local, serving(tmp_path / "data") as server:
        yield Shop(local, local), server


def test_a_follower_goes_on_after_the_connection_broke(stocked: tuple[Shop, Server]) -> None:
    shop, server = stocked
    shop.put(1)
    with proxied(server, "pass") as proxy, headwater.open(proxy.url) as hw:
        changes = hw.binder("stock").follow(after="latest", timeout=20)
        for number in range(2, 6):
            proxy.cut_all()
            shop.put(number)
            assert next(changes).id == f"cup-{number}"


def test_a_follower_goes_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    with Local(tmp_path / "data") as local:
        shop = Shop(local, local)
        shop.put(1)
        server = Process(tmp_path / "data")
        with headwater.open(server.url) as hw:
            changes = hw.binder("stock").follow(after="latest", timeout=30)
            shop.put(2)
            assert next(changes).id == "cup-2"
            server.kill()
            shop.put(3)
            server = Process(tmp_path / "data", port=server.port)
            assert next(changes).id == "cup-3"
        assert server.stop() == 0


def test_a_find_that_breaks_off_is_told(stocked: tuple[Shop, Server]) -> None:
    shop, server = stocked
    shop.put(*range(20_000))
    with proxied(server, "pass") as proxy, headwater.open(proxy.url) as hw:
        found = hw.binder("stock").find()
        next(found)
        proxy.cut_all()
        with pytest.raises(Unavailable) as failed:
            list(found)
        assert failed.value.code == "answer_cut_short"


def test_a_follower_is_stopped_from_another_thread(stocked: tuple[Shop, Server]) -> None:
    shop, server = stocked
    shop.put(1)
    with headwater.open(server.url) as hw:
        changes = hw.binder("stock").follow(after="latest")
        ended = threading.Thread(target=lambda: list(changes))
        ended.start()
        changes.stop()
        ended.join(20)
        assert not ended.is_alive()


def test_a_find_that_is_left_gives_its_connection_back(stocked: tuple[Shop, Server]) -> None:
    shop, server = stocked
    shop.put(*range(20_000))
    with headwater.open(server.url) as hw:
        for _ in range(5):
            next(hw.binder("stock").find())
        open_now = [line for line in server.http.get("/metrics").text.splitlines() if "headwater_http_connections " in line]
        assert float(open_now[-1].split()[-1]) <= 3
