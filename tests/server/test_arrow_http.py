"""Arrow streams over HTTP: a table goes in, in as many batches as it needs, and comes out by an address alone."""

from __future__ import annotations

import io
from typing import Any
from uuid import uuid4

import httpx
import pyarrow as pa
import pytest
from pyarrow import ipc

from tests.server.process import ServerProcess

ARROW = "application/vnd.apache.arrow.stream"


def made(process: ServerProcess, partitions: int = 1) -> str:
    url = f"{process.url}/topic/{uuid4()}"
    assert httpx.put(url, params={"partitions": partitions}).json() is True
    return url


def stream(table: pa.Table) -> bytes:
    out = io.BytesIO()
    with ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def post(topic: str, table: pa.Table, headers: dict[str, str] | None = None, **query: Any) -> httpx.Response:
    headers = {"content-type": ARROW} | (headers or {})
    return httpx.post(f"{topic}/items", content=stream(table), headers=headers, params=query, timeout=30)


def read(topic: str, **query: Any) -> pa.Table:
    answer = httpx.get(f"{topic}/items", params={"format": "arrow"} | query, timeout=30)
    assert (answer.status_code, answer.headers["content-type"]) == (200, ARROW)
    return ipc.open_stream(answer.content).read_all()


def test_a_table_goes_in_and_comes_out(process: ServerProcess) -> None:
    topic = made(process)
    table = pa.table({"data": [b"a", b"b"], "key": [b"k", None], "type": ["x", "y"], "meta": [None, b'{"m":"1"}']})
    told = post(topic, table).json()
    assert (told["count"], [run["offset"] for run in told["runs"]]) == (2, [0])
    assert "rows" not in told["runs"][0]
    assert read(topic, columns="data,key,type,meta").to_pydict() == table.to_pydict()
    assert read(topic, columns="offset", end_before=1).to_pydict() == {"offset": [0]}
    assert read(made(process)).num_rows == 0


def test_a_large_table_is_split_and_its_runs_follow_each_other(process: ServerProcess) -> None:
    topic = made(process)
    table = pa.table({"data": [b"%d" % i for i in range(150_000)]})
    told = post(topic, table, durability="os").json()
    assert told["count"] == 150_000
    assert len(told["runs"]) > 1
    assert all("rows" not in run for run in told["runs"])
    assert sum(run["count"] for run in told["runs"]) == 150_000
    assert read(topic, columns="data")["data"].to_pylist() == table["data"].to_pylist()


def test_over_several_partitions_each_run_tells_its_rows(process: ServerProcess) -> None:
    topic = made(process, partitions=3)
    keys = [b"k%d" % (i % 50) for i in range(70_000)]
    table = pa.table({"data": [b"%d" % i for i in range(70_000)], "key": keys})
    told = post(topic, table, durability="os").json()
    rows = sorted(row for run in told["runs"] for row in run["rows"])
    assert rows == list(range(70_000))
    found = read(topic, columns="partition,offset,data")
    places = {(row["partition"], row["offset"]): int(row["data"]) for row in found.to_pylist()}
    for run in told["runs"]:
        assert [places[run["partition"], run["offset"] + i] for i in range(run["count"])] == run["rows"]


def test_a_type_and_a_key_in_the_query_are_of_rows_that_have_none(process: ServerProcess) -> None:
    topic = made(process)
    post(topic, pa.table({"data": ["x", "y"]}), type="t", key="k")
    found = read(topic, columns="type,key,content,data").to_pydict()
    assert found == {"type": ["t", "t"], "key": [b"k", b"k"], "content": ["text"] * 2, "data": [b"x", b"y"]}


def test_no_rows_are_no_events(process: ServerProcess) -> None:
    told = post(made(process), pa.table({"data": pa.array([], pa.binary())})).json()
    assert (told["count"], told["runs"]) == (0, [])


@pytest.mark.parametrize(
    ("table", "headers", "status", "code"),
    [
        (pa.table({"colour": ["red"]}), {}, 400, "bad_columns"),
        (pa.table({"data": [1]}), {}, 400, "bad_columns"),
        (pa.table({"data": [b"x"] * 150_000}), {"headwater-producer": "p", "headwater-seq": "1"}, 400, "bad_parameter"),
        (pa.table({"data": pa.array([b""] * 1_000_001, pa.binary(0))}), {}, 413, "too_large"),
    ],
    ids=["columns", "numbers", "producer", "rows"],
)
def test_what_cannot_be_appended_is_refused_and_nothing_is(
    process: ServerProcess, table: pa.Table, headers: dict[str, str], status: int, code: str
) -> None:
    topic = made(process)
    answer = post(topic, table, headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert read(topic).num_rows == 0


def test_a_small_table_of_a_producer_is_appended_once(process: ServerProcess) -> None:
    topic = made(process)
    producer = {"headwater-producer": "p", "headwater-seq": "1"}
    table = pa.table({"data": [b"a", b"b"]})
    assert post(topic, table, producer).json() == post(topic, table, producer).json()
    assert read(topic).num_rows == 2


def test_an_unknown_column_is_refused(process: ServerProcess) -> None:
    answer = httpx.get(f"{made(process)}/items", params={"format": "arrow", "columns": "colour"})
    assert (answer.status_code, answer.json()["kind"]) == (400, "Invalid")


def test_a_stream_of_very_many_empty_batches_is_refused_at_once(process: ServerProcess) -> None:
    topic = made(process)
    empty = pa.record_batch([pa.array([], pa.binary())], names=["data"])
    out = io.BytesIO()
    with ipc.new_stream(out, empty.schema) as writer:
        for _ in range(60_000):
            writer.write_batch(empty)
    answer = httpx.post(f"{topic}/items", content=out.getvalue(), headers={"content-type": ARROW}, timeout=10)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_many_batches")
