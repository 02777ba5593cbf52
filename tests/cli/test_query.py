"""`headwater query`: binders, and queries with a name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.cli.conftest import Run
from tests.cli.views import SHOP, fill, run_app
from tests.server.serving import serving

ANN = {"id": "ann", "version": 0, "data": {"items": 1, "total": 120}}
BOB = {"id": "bob", "version": 1, "data": {"items": 6, "total": 42}}


@pytest.fixture(scope="module")
def shop_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("query") / "data"
    fill(data)
    run_app(data)
    return data


def test_documents_that_match_are_lines_of_json_in_a_pipe(run: Run, shop_data: Path) -> None:
    assert run("query", shop_data, "baskets").objects == [ANN, BOB]
    assert run("query", shop_data, "baskets", '{"total": {"$gt": 100}}').objects == [ANN]
    assert run("query", shop_data, "baskets", '{"total": {"$gt": 1000}}').out == ""


def test_they_are_sorted_cut_and_stripped_of_fields(run: Run, shop_data: Path) -> None:
    assert run("query", shop_data, "baskets", "--sort", "total").objects == [BOB, ANN]
    assert run("query", shop_data, "baskets", "--sort", "-total", "--skip", "1", "--limit", "5").objects == [BOB]
    assert run("query", shop_data, "baskets", "--sort", "items,-total", "--limit", "1").objects == [ANN]
    (told,) = run("query", shop_data, "baskets", '{"items": 6}', "--fields", "total").objects
    assert told["data"] == {"total": 42}


def test_a_table_has_a_column_for_each_field(run: Run, shop_data: Path) -> None:
    lines = run("query", shop_data, "baskets", "--table", "--sort", "-total").lines
    assert [line.split() for line in lines if "─" not in line] == [
        ["id", "version", "items", "total"],
        ["ann", "0", "1", "120"],
        ["bob", "1", "6", "42"],
    ]
    assert "mutually exclusive" in run("query", shop_data, "baskets", "--table", "--json", code=2).err


def test_counts_and_plans(run: Run, shop_data: Path) -> None:
    assert run("query", shop_data, "baskets", "--count").out == "2\n"
    assert run("query", shop_data, "baskets", '{"total": 42}', "--count", "--json").objects == [{"count": 1}]
    assert "leave out" in run("query", shop_data, "baskets", "--count", "--limit", "1", code=2).err
    indexed = run("query", shop_data, "baskets", '{"total": {"$gt": 10}}', "--sort", "-total", "--explain").out
    (told,) = run("query", shop_data, "baskets", '{"items": 6}', "--explain", "--json").objects
    assert "the index on 'total'" in indexed
    assert told["plan"].startswith("all documents")


def test_a_bad_match_and_an_unknown_binder_are_told(run: Run, shop_data: Path) -> None:
    run("query", shop_data, "baskets", '{"total": {"$near": 1}}', code=1)
    told = msgspec.json.decode(run("query", shop_data, "shelves", "--json", code=1).err)
    assert told["error"] == "no_such_binder"


def test_a_query_with_a_name_is_called_with_arguments(run: Run, shop_data: Path) -> None:
    assert run("query", shop_data, "top", "--app", SHOP).objects == [ANN, BOB]
    assert run("query", shop_data, "top", "--app", SHOP, "--set", "limit=1").objects == [ANN]
    counted = run("query", shop_data, "counted", "--app", SHOP, "--set", "word=many of them")
    assert counted.objects == [{"word": "many of them", "baskets": 2}]
    assert run("query", shop_data, "baskets", "--app", SHOP, "--count").out == "2\n"  # it is no query, but a binder


def test_wrong_uses_of_queries_are_told(run: Run, shop_data: Path) -> None:
    assert "'word'" in run("query", shop_data, "counted", "--app", SHOP, code=1).err
    assert "takes no --limit" in run("query", shop_data, "top", "--app", SHOP, "--limit", "1", code=2).err
    assert "takes no MATCH" in run("query", shop_data, "top", "{}", "--app", SHOP, code=2).err
    assert "give --app" in run("query", shop_data, "top", "--set", "limit=1", code=2).err
    assert "no such file" in run("query", shop_data, "top", "--app", "nowhere.py", code=1).err


def test_a_server_answers_both(run: Run, shop_data: Path) -> None:
    with serving(shop_data, app=str(SHOP)) as server:
        assert run("query", server.url, "baskets", '{"total": {"$gt": 100}}').objects == [ANN]
        assert run("query", server.url, "baskets", "--count").out == "2\n"
        assert "index" in run("query", server.url, "baskets", "--sort", "total", "--explain").out
        assert run("query", server.url, "top", "--set", "limit=1").objects == [ANN]
        assert "no binder 'shelves'" in run("query", server.url, "shelves", code=1).err
