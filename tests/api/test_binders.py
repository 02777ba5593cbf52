"""Binders are read in the same way in a directory and on a server: what is returned, and what is raised."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bson
import pytest

import headwater
from headwater import App
from headwater.document import Document
from headwater.errors import Closed, Invalid, NotFound, TooLarge, Unavailable
from headwater.opening import open_directory
from headwater.store import Store
from tests.api.proxy import proxied
from tests.server.process import ServerProcess
from tests.server.serving import Server

if TYPE_CHECKING:
    from headwater.store import Store

WHEN = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)
EVERYTHING = {
    "text": "kettle ½",
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

_numbers = count()


class Shop:
    """A topic and two binders of its own, which are filled in this process, and read through `hw`."""

    def __init__(self, local: Store, hw: Store) -> None:
        self.local = local
        self.hw = hw
        number = next(_numbers)
        self.topic, self.stock, self.everything = f"goods {number}", f"stock {number}", f"everything {number}"
        self.app = App()
        self.app.binder(self.stock).index("n")
        self.app.projection(self.topic, self.stock, name=self.stock)(_stock)
        one = self.app.projection(self.topic, self.everything, type="all", key=lambda _: "all", name=self.everything)
        one(lambda _, __: EVERYTHING)

    @property
    def binder(self) -> Any:
        return self.hw.binder(self.stock)

    def put(self, *numbers: int, kind: str = "cup") -> headwater.Refs:
        keys = [f"{kind}-{number}" for number in numbers]
        refs = self.local.append_many(self.topic, [{"n": each, "kind": kind} for each in numbers], keys=keys)
        self.catch_up()
        return refs

    def take(self, key: str) -> None:
        self.local.append(self.topic, {}, key=key, type="gone")
        self.catch_up()

    def catch_up(self) -> None:
        self.app.catch_up(self.local)


def _stock(doc: Any, event: headwater.Event) -> Any:
    if event.type == "gone":
        return None
    line = event.value
    return {"n": line["n"], "kind": line.get("kind", "cup"), "changes": (doc["changes"] if doc else 0) + 1}


@pytest.fixture(params=["directory", "server"])
def shop(request: pytest.FixtureRequest, local: Store, server: Server) -> Iterator[Shop]:
    with headwater.open(server.path if request.param == "directory" else server.url) as hw:
        yield Shop(local, hw)


def test_a_document_has_its_id_version_and_data(shop: Shop) -> None:
    refs = shop.put(1, 2)
    found = shop.binder.get("cup-2")
    assert found == Document("cup-2", refs[1].offset, {"n": 2, "kind": "cup", "changes": 1})
    assert shop.binder.get("cup-3") is None


def test_every_type_comes_back_as_it_was(shop: Shop) -> None:
    shop.local.append(shop.topic, {"n": 1}, type="all", key="x")
    shop.catch_up()
    found = shop.hw.binder(shop.everything).get("all")
    assert found is not None
    assert found.data == EVERYTHING
    for name, value in EVERYTHING.items():
        assert isinstance(found.data[name], type(value)), name
    (same,) = shop.hw.binder(shop.everything).find({"when": WHEN, "decimal": bson.Decimal128("1.1")})
    assert same == found


def test_documents_are_found_sorted_and_cut(shop: Shop) -> None:
    shop.put(3, 1, 2)
    shop.put(10, 20, kind="pot")
    binder = shop.binder
    assert [each.id for each in binder.find()] == ["cup-1", "cup-2", "cup-3", "pot-10", "pot-20"]
    assert [each.data["n"] for each in binder.find(sort="-n", skip=1, limit=2)] == [10, 3]
    assert [each.id for each in binder.find({"kind": "pot"}, sort=("kind", "-n"))] == ["pot-20", "pot-10"]
    (one,) = binder.find({"n": 10}, fields=["n"])
    assert one.data == {"n": 10}
    assert list(binder.find({"n": 99})) == []
    assert (binder.count(), binder.count({"n": {"$lt": 3}})) == (5, 2)


def test_how_documents_are_found_is_told(shop: Shop) -> None:
    shop.put(*range(500))
    binder = shop.binder
    assert binder.explain({"n": 1}) != binder.explain({"kind": "cup"})
    assert "n" in binder.explain({"n": 1}, sort="n")


def test_many_documents_come_one_after_the_other(shop: Shop) -> None:
    shop.put(*range(5000))
    found = shop.binder.find(sort="n")
    assert next(found).data["n"] == 0
    assert [each.data["n"] for each in found] == list(range(1, 5000))


def test_what_was_written_is_waited_for(shop: Shop) -> None:
    shop.put(1)
    binder = shop.binder
    refs = shop.hw.append_many(shop.topic, [{"n": 5}, {"n": 6}], keys=["late", "later"])
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
    shop.catch_up()
    waiting.join(30)
    assert got[0].data["n"] == 6
    assert binder.count(at_least=refs) == 3
    assert [each.id for each in binder.find({"n": 5}, at_least=refs)] == ["late"]


def test_changes_come_as_they_are_made(shop: Shop) -> None:
    shop.put(1)
    with shop.binder.follow(timeout=20) as changes:
        first = next(changes)
        while first.kind == "reset":
            first = next(changes)
        assert (first.kind, first.id, first.data["n"]) == ("put", "cup-1", 1)
        shop.put(2)
        second = next(changes)
        assert (second.kind, second.id) == ("put", "cup-2")
        shop.take("cup-1")
        third = next(changes)
        assert (third.kind, third.id, third.version, third.data) == ("delete", "cup-1", None, None)
    again = shop.binder.follow(after=second.place, timeout=0.2)
    assert [(each.kind, each.id) for each in again] == [("delete", "cup-1")]
    assert list(shop.binder.follow(after="latest", timeout=0.1)) == []


def test_an_index_is_made_and_the_binder_tells_of_itself(shop: Shop) -> None:
    shop.put(1, 2, 3)
    binder = shop.binder
    binder.index("kind")
    binder.index("kind")
    info = binder.info()
    assert (info.name, info.documents, info.indexes, info.projections) == (shop.stock, 3, ["kind", "n"], [shop.stock])
    assert {shop.everything, shop.stock} <= set(shop.hw.binders())


def test_what_is_wrong_is_raised_in_the_same_way(shop: Shop) -> None:
    shop.put(1)
    binder = shop.binder
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


def test_a_follower_goes_on_after_the_connection_broke(local: Store, server: Server) -> None:
    shop = Shop(local, local)
    shop.put(1)
    with proxied(server, "pass") as proxy, headwater.open(proxy.url) as hw:
        changes = hw.binder(shop.stock).follow(after="latest", timeout=20)
        for number in range(2, 6):
            proxy.cut_all()
            shop.put(number)
            assert next(changes).id == f"cup-{number}"


def test_a_follower_goes_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    with open_directory(tmp_path / "data") as local:
        shop = Shop(local, local)
        shop.put(1)
        server = ServerProcess(tmp_path / "data")
        with headwater.open(server.url) as hw:
            changes = hw.binder(shop.stock).follow(after="latest", timeout=30)
            shop.put(2)
            assert next(changes).id == "cup-2"
            server.kill()
            shop.put(3)
            server = ServerProcess(tmp_path / "data", port=server.port)
            assert next(changes).id == "cup-3"
        assert server.stop() == 0


def test_a_find_that_breaks_off_is_told(local: Store, server: Server) -> None:
    shop = Shop(local, local)
    shop.put(*range(20_000))
    with proxied(server, "pass") as proxy, headwater.open(proxy.url) as hw:
        found = hw.binder(shop.stock).find()
        next(found)
        proxy.cut_all()
        with pytest.raises(Unavailable) as failed:
            list(found)
        assert failed.value.code == "answer_cut_short"


def test_a_follower_is_stopped_from_another_thread(local: Store, server: Server) -> None:
    shop = Shop(local, local)
    shop.put(1)
    with headwater.open(server.url) as hw:
        changes = hw.binder(shop.stock).follow(after="latest")
        ended = threading.Thread(target=lambda: list(changes))
        ended.start()
        changes.stop()
        ended.join(20)
        assert not ended.is_alive()


def test_a_find_that_is_left_gives_its_connection_back(local: Store, server: Server) -> None:
    shop = Shop(local, local)
    shop.put(*range(20_000))
    with headwater.open(server.url) as hw:
        for _ in range(5):
            next(hw.binder(shop.stock).find())
        told = server.http.get("/metrics").text.splitlines()
        (line,) = (line for line in told if line.startswith("headwater_http_connections "))
        assert float(line.split()[-1]) <= 3
