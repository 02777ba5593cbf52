"""Topics and binders are the tables of SQL."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

import headwater
import headwater.spark
from headwater import HeadwaterError, Invalid, NotFound
from headwater.cli import show
from headwater.spark.session import open_place
from tests.cli.conftest import PROGRAM, Run, run
from tests.planting import plant
from tests.server.process import served
from tests.views.filling import Filling

__all__ = ["run"]  # a fixture

ORDERS: list[Any] = [
    {"n": 1, "type": "of data", "by": {"name": "x"}, "at": "2024-02-29T10:00:00+02:00", "note": "a, b"},
    {"n": 2, "by": {"name": None, "age": 3}, "note": None},
    {"n": 3.5, "tags": ["a", 1], "note": 'say "hi"\n'},
]
BASKETS: dict[str, Any] = {"k1": {"total": 10, "items": ["a"]}, "k3": {"total": 2.5}}


def fill(hw: Any) -> None:
    hw.create("orders", partitions=2)
    hw.create("my-shop.paid")
    hw.create("empty")
    for number, document in enumerate(ORDERS, 1):
        hw.append("orders", document, key=f"k{number}", type="paid" if number % 2 else "sent")
    if hw.backend.kind != "server":  # a server does not take it
        plant(hw, "orders", b"{poison", type="odd")
    hw.append("my-shop.paid", {"n": 1})
    hw.append("my-shop.paid", {"n": "later it was text"})


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("sql") / "data"
    with headwater.open(place) as hw:
        fill(hw)
        with Filling(hw, "baskets") as binder:
            binder.put(BASKETS)
        with Filling(hw, "empty") as binder:
            binder.put({"e": {"x": 1}})
    return str(place)


def rows(spark: SparkSession, data: str, query: str, **options: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in headwater.spark.sql(spark, data, query, **options).collect()]


def test_topics_and_binders_are_tables(spark: SparkSession, address: str) -> None:
    query = """
        WITH paid AS (SELECT n, key, by.name FROM Orders WHERE type = 'paid')
        SELECT p.n * 2 AS twice, name, b.total, (SELECT count(*) FROM empty)
        FROM paid p JOIN baskets b ON p.key = b._id
        WHERE EXISTS (SELECT 1 FROM `my-shop.paid`) AND p.n IN (SELECT n FROM orders)
        ORDER BY twice
    """
    assert rows(spark, address, query) == [(2.0, "x", 10.0, 0), (7.0, None, 2.5, 0)]
    assert spark.catalog.listTables() == []


def test_a_binder_with_the_name_of_a_topic_can_be_named(spark: SparkSession, address: str) -> None:
    assert rows(spark, address, "SELECT _id, x, (SELECT count(*) FROM empty) FROM `binder:empty`") == [("e", 1, 0)]


def test_all_columns_are_those_of_the_log_and_of_the_data(spark: SparkSession, address: str) -> None:
    frame = headwater.spark.sql(spark, address, "SELECT * FROM orders")
    assert frame.columns == [
        *["topic", "partition", "offset", "time", "id", "type", "key", "data", "meta"],
        *["n", "data.type", "by", "at", "note", "tags"],
    ]
    assert dict(frame.dtypes)["by"] == "struct<name:string,age:bigint>"
    assert headwater.spark.sql(spark, address, "TABLE baskets").columns == ["_id", "total", "items"]
    assert rows(spark, address, "SELECT sum(data_bytes), max(content) FROM empty") == [(None, None)]


def test_a_poison_event_has_no_fields_and_a_field_with_several_types_is_text(spark: SparkSession, address: str) -> None:
    assert rows(spark, address, "SELECT n, note FROM orders WHERE type = 'odd'") == [(None, None)]
    assert rows(spark, address, "SELECT n FROM `my-shop.paid`") == [("1",), ("later it was text",)]


def test_only_the_columns_that_a_query_names_are_read(spark: SparkSession, address: str) -> None:
    def read(query: str, **options: Any) -> str:
        frame: Any = headwater.spark.sql(spark, address, query, **options)
        return str(frame._jdf.queryExecution().analyzed().toString())

    plan = read("SELECT type, count(*), sum(n * 2) FROM orders GROUP BY type")
    assert "RelationV2[type#" in plan
    assert "note#" not in plan
    assert "offset#" not in plan
    for query in (
        "SELECT count(DISTINCT *) FROM orders",
        "SELECT * EXCEPT (n) FROM orders",
        "SELECT /*+ COALESCE(1) */ -- all of it\n * FROM orders",
        "FROM orders",
        "SELECT n FROM (FROM orders INTERSECT FROM orders)",
        "WITH o AS (TABLE orders) SELECT count(*) FROM o",
    ):
        assert "note#" in read(query), query
    strict: dict[str, Any] = {"schemas": {"orders": "n double, note int"}, "mode": "failfast"}
    assert "note#" not in read("SELECT n FROM orders", **strict)
    aliased = "SELECT a FROM `my-shop.paid` AS o(a, b, c, d, e, f, g, h, i, j) LIMIT 1"
    assert rows(spark, address, aliased) == [("my-shop.paid",)]


def test_a_schema_can_be_given(spark: SparkSession, address: str) -> None:
    schemas = {"orders": "n decimal(10, 2), at timestamp, `by.age` int"}
    found = rows(spark, address, "SELECT n, hour(at), `by.age` FROM orders WHERE n < 3 ORDER BY n", schemas=schemas)
    assert [(float(n), hour, age) for n, hour, age in found] == [(1.0, 8, None), (2.0, None, 3)]


def test_views_of_the_session_can_be_used_and_stay(spark: SparkSession, address: str) -> None:
    spark.createDataFrame([(1, "one")], "n int, word string").createOrReplaceTempView("words")
    try:
        assert rows(spark, address, "SELECT word FROM orders JOIN words USING (n)") == [("one",)]
        assert [table.name for table in spark.catalog.listTables()] == ["words"]
    finally:
        spark.catalog.dropTempView("words")


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        ("SELECT * FROM orderz", NotFound, "no topic or binder 'orderz' (did you mean orders?)"),
        ("SELECT * FROM my-shop.paid", Invalid, "back quoted"),
        ("SELECT * FROM my_shop.paid", NotFound, "did you mean `my-shop.paid`?"),
        (
            "SELECT nothing FROM orders",
            Invalid,
            "`nothing` cannot be resolved. Did you mean one of the following? [`note`",
        ),
        ("SELECT n FORM orders", Invalid, "line 1, pos 14)\n== SQL ==\nSELECT n FORM orders\n--------------^^^"),
        ("  ", Invalid, "unexpected empty statement"),
        ("SELECT 1; SELECT 2", Invalid, "Syntax error at or near 'SELECT'"),
        ("INSERT INTO orders SELECT 1", Invalid, "only queries are supported"),
        ("DROP TABLE orders", Invalid, "only queries are supported"),
        ("CREATE TABLE other AS SELECT * FROM orders", Invalid, "only queries are supported"),
        ("WITH o AS (SELECT 1) INSERT INTO orders SELECT * FROM o", Invalid, "only queries are supported"),
        ("SET a = b", Invalid, "only queries are supported"),
        ("BEGIN SELECT 1; END", Invalid, "only queries are supported"),
    ],
)
def test_what_cannot_be_asked_is_told_without_java(
    spark: SparkSession,
    address: str,
    query: str,
    error: type[HeadwaterError],
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(error) as caught:
        headwater.spark.sql(spark, address, query)
    told = f"{caught.value.message} ({caught.value.hint})"
    assert message in told
    assert "at org.apache" not in told
    assert "'Project" not in told
    assert capfd.readouterr().err == ""


def test_schemas_that_are_not_used_or_cannot_be_read_are_refused(spark: SparkSession, address: str) -> None:
    with pytest.raises(Invalid, match="'basket', which the query does not use"):
        headwater.spark.sql(spark, address, "SELECT * FROM orders", schemas={"basket": "n int"})
    with pytest.raises(Invalid, match="invalid schema of 'orders'"):
        headwater.spark.sql(spark, address, "SELECT * FROM orders", schemas={"orders": "n whole"})


@pytest.fixture(params=["objects", "s3", "server"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path, users_file: Path) -> Iterator[str]:
    if request.param != "server":
        yield f"objects://{tmp_path / 'objects'}" if request.param == "objects" else request.getfixturevalue("s3_url")
        return
    with headwater.open(tmp_path / "data") as hw, Filling(hw, "baskets") as binder:
        binder.put(BASKETS)
    with served(tmp_path / "data", "--auth", str(users_file)) as server:
        yield server.url


def test_a_bucket_and_a_server_have_tables_too(spark: SparkSession, elsewhere: str) -> None:
    with open_place(elsewhere, mode="create") as hw:
        fill(hw)
    assert rows(spark, elsewhere, "SELECT sum(n) FROM orders") == [(6.5,)]
    if elsewhere.startswith("http"):
        assert rows(spark, elsewhere, "SELECT _id, total FROM baskets ORDER BY _id") == [("k1", 10.0), ("k3", 2.5)]


# The command, with the session that is there.

TABLE = """\
type      n   data.type   by                        tags
─────────────────────────────────────────────────────────────
paid    1.0   of data     {"name":"x","age":null}   null
sent    2.0   null        {"name":null,"age":3}     null
paid    3.5   null        null                      ["a","1"]
odd    null   null        null                      null
"""
QUERY = "SELECT type, n, `data.type`, by, tags FROM orders ORDER BY n NULLS LAST"


@pytest.mark.usefixtures("spark")
def test_the_command_prints_a_table(run: Run, address: str) -> None:
    printed = run("sql", address, QUERY, "--format", "table").out
    assert [line.rstrip() for line in printed.splitlines()] == TABLE.splitlines()


@pytest.fixture
def elsewhere_on_earth(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A zone of this process and, as a setting, of the session."""
    zone = "Asia/Tokyo"
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    yield f"spark.sql.session.timeZone={zone}"
    monkeypatch.undo()
    time.tzset()
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_the_command_prints_json_lines_in_utc(run: Run, address: str, elsewhere_on_earth: str) -> None:
    with headwater.open(address) as hw:
        first = next(iter(hw.read("orders", key="k1")))
    query = "SELECT time, at, key, x'ff' AS raw, by FROM orders WHERE n = 1"
    schema = "orders: n double, at timestamp, by map<string, string>"
    (found,) = run("sql", address, query, "--schema", schema).objects
    assert run("sql", address, query, "--schema", schema, "--config", elsewhere_on_earth).objects == [found]
    (hour,) = run(
        "sql",
        address,
        "SELECT hour(at) AS hour FROM orders WHERE n = 1",
        "--schema",
        schema,
        "--config",
        elsewhere_on_earth,
    ).objects
    assert hour == {"hour": 17}  # which is a question of the session's zone
    assert found == {
        "time": show.utc(first.time),
        "at": "2024-02-29T08:00:00.000000Z",
        "key": "k1",
        "raw": "\\xff",
        "by": {"name": "x"},
    }


@pytest.mark.usefixtures("spark")
def test_the_command_writes_files(run: Run, address: str, tmp_path: Path) -> None:
    query = "SELECT n, note FROM orders WHERE n IS NOT NULL ORDER BY n"
    run("sql", address, query, "--output", tmp_path / "notes.csv")
    assert (tmp_path / "notes.csv").read_text() == 'n,note\n1.0,"a, b"\n2.0,\n3.5,"say ""hi""\n"\n'
    run("sql", address, query, "--output", tmp_path / "notes.parquet", "--limit", "2")
    table = pyarrow.parquet.read_table(tmp_path / "notes.parquet")
    assert table.to_pydict() == {"n": [1.0, 2.0], "note": ["a, b", None]}
    failed = run("sql", address, "SELECT n, n FROM orders", "--output", tmp_path / "twice.json", code=1)
    assert "duplicate column 'n'" in failed.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.csv", "notes.parquet"]


@pytest.mark.usefixtures("spark")
def test_the_command_limits_a_table(run: Run, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.cli.sql.TABLE_ROWS", 2)
    assert len(run("sql", address, "SELECT n FROM orders", "--format", "table").lines) == 4
    assert len(run("sql", address, "SELECT n FROM orders").lines) == 4
    assert len(run("sql", address, "SELECT n FROM orders", "--limit", "3").lines) == 3


@pytest.mark.usefixtures("spark")
def test_the_command_tells_what_fails_in_a_task(run: Run, address: str) -> None:
    failed = run("sql", address, "SELECT 1 / (n - 1) FROM orders", code=1)
    assert "Division by zero" in failed.err
    assert "at org.apache" not in failed.err


def test_the_command_is_told_what_it_can_use(run: Run, address: str) -> None:
    assert "is not a known format" in run("sql", address, "SELECT 1", "--output", "x.txt", code=1).err
    assert "is not 'TABLE: FIELDS'" in run("sql", address, "SELECT 1", "--schema", "orders", code=2).err
    assert "mutually exclusive" in run("sql", address, "SELECT 1", "--json", "--format", "csv", code=2).err


@pytest.mark.usefixtures("java_classes")
def test_a_process_of_its_own(address: str) -> None:
    words = [*PROGRAM, "sql", address, "-", "--format", "csv"]
    query = "SELECT type, count(*) AS count FROM orders GROUP BY type ORDER BY type"
    done = subprocess.run(words, input=query, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "type,count\nodd,1\npaid,2\nsent,1\n"), done.stderr
    assert done.stderr == ""
    assert sys.executable in words


def test_long_values_are_cut_in_a_table() -> None:
    from headwater.cli import rows as formatting

    out = io.BytesIO()
    formatting.write_table(pyarrow.table({"text": ["x" * 100]}), out)
    assert "x" * 59 + "…" in out.getvalue().decode()
    assert "x" * 60 not in out.getvalue().decode()
