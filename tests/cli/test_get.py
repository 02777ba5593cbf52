"""`headwater get`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.cli.conftest import Run
from tests.cli.views import fill, run_app
from tests.server.serving import serving


@pytest.fixture(scope="module")
def shop_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("get") / "data"
    fill(data)
    run_app(data)
    return data


def test_a_document_is_printed_over_several_lines(run: Run, shop_data: Path) -> None:
    assert run("get", shop_data, "baskets", "bob").out == '{\n  "items": 6,\n  "total": 42\n}\n'


def test_json_has_its_id_and_version_and_types_of_bson_in_extended_json(run: Run, shop_data: Path) -> None:
    (told,) = run("get", shop_data, "visitors", "ann", "--json").objects
    first = {"$date": "2025-03-01T00:00:00Z"}
    assert told == {"id": "ann", "version": 0, "data": {"visits": 1, "first": first}}
    assert '"$date": "2025-03-01T00:00:00Z"' in run("get", shop_data, "visitors", "ann").out


def test_what_is_not_there_is_told_and_1(run: Run, shop_data: Path) -> None:
    assert run("get", shop_data, "baskets", "cyd", code=1).err == "error: binder 'baskets' has no document 'cyd'\n"
    told = msgspec.json.decode(run("get", shop_data, "baskets", "cyd", "--json", code=1).err)
    assert told["error"] == "no_such_document"
    told = msgspec.json.decode(run("get", shop_data, "shelves", "cyd", "--json", code=1).err)
    assert told["error"] == "no_such_binder"


def test_it_waits_until_a_place_is_passed(run: Run, shop_data: Path) -> None:
    run("get", shop_data, "baskets", "bob", "--at-least", "1")
    run("get", shop_data, "baskets", "bob", "--at-least", "orders:0:1")
    behind = ("get", shop_data, "baskets", "bob", "--timeout", "0", "--json", "--at-least")
    for place in ("2", "orders:0:2", "orders:0:1,orders:0:2"):
        assert msgspec.json.decode(run(*behind, place, code=1).err)["error"] == "view_behind"
    assert "is not a place" in run(*behind, "orders:2", code=2).err
    assert "--timeout needs --at-least" in run("get", shop_data, "baskets", "bob", "--timeout", "1", code=2).err


def test_a_server_gives_the_same(run: Run, shop_data: Path) -> None:
    with serving(shop_data) as server:
        assert run("get", server.url, "visitors", "ann").out == run("get", shop_data, "visitors", "ann").out
        assert (
            run("get", server.url, "baskets", "bob", "--json").out
            == run("get", shop_data, "baskets", "bob", "--json").out
        )
        assert "has no document" in run("get", server.url, "baskets", "cyd", code=1).err
