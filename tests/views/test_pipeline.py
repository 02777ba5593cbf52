"""What an application says of pipelines, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from headwater import App, Conflict, Invalid


def compute(frame: Any) -> Any:
    return frame


def test_a_pipeline_is_declared_with_what_it_reads_and_writes() -> None:
    app = App()

    @app.pipeline("orders", "payments", to="parquet:out/paid", schema={"orders": "cents bigint"}, partition_by="day")
    def paid(orders: Any, payments: Any) -> Any:
        return orders, payments

    found = app.pipelines["paid"]
    assert found.topics == ("orders", "payments")
    assert (found.target.kind, found.target.place) == ("parquet", "out/paid")
    assert found.schema == {"orders": "cents bigint"}
    assert found.partition_by == ("day",)
    assert found.mode == "batch"
    assert found.compute is paid  # the decorator leaves it as it is


def test_a_schema_is_that_of_all_topics_and_options_become_text() -> None:
    app = App()
    options = {"failOnDataLoss": False, "maxEventsPerTrigger": 1000}
    app.pipeline("a", to="topic:b", name="copy", mode="stream", every=5, schema="n int", options=options)(compute)
    found = app.pipelines["copy"]
    assert found.schema == {"a": "n int"}
    assert found.options == {"failOnDataLoss": "false", "maxEventsPerTrigger": "1000"}


@pytest.mark.parametrize(
    ("topics", "arguments", "told"),
    [
        ((), {}, "it reads no topic"),
        (("a", "a"), {}, "it names a topic twice"),
        ((compute,), {}, "a topic is named by text"),
        (("a",), {"to": "out"}, "it cannot write to 'out'"),
        (("a",), {"to": "delta:out"}, "it cannot write to 'delta:out'"),
        (("a",), {"to": "binder:"}, "lacks a name"),
        (("a",), {"to": "parquet:s3://bucket/out"}, "Parquet is written to a directory"),
        (("a",), {"to": "topic:a"}, "it would read its own output"),
        (("a",), {"mode": "often"}, "unknown mode 'often'"),
        (("a",), {"start": "latest"}, "a batch from 'latest' has no events"),
        (("a",), {"every": 5}, "every= is only for streams"),
        (("a",), {"mode": "stream", "every": "5s"}, "every must be a number of seconds"),
        (("a",), {"to": "topic:b", "partition_by": ["day"]}, "partition_by is only for Parquet"),
        (("a",), {"content": "json"}, "parquet:out does not support content 'json'"),
        (("a",), {"to": "topic:b", "content": "xml"}, "topic:b does not support content 'xml'"),
        (("a",), {"version": 0}, "version must be at least 1"),
        (("a", "b"), {}, "its function must take one DataFrame for each of a, b"),
        (("a",), {"schema": {"b": "n int"}}, "schema names 'b', which it does not read"),
        (("a",), {"schema": " "}, "a schema needs columns"),
        (("a",), {"options": {"Topic": "b"}}, "Topic is not an option of a pipeline"),
    ],
)
def test_what_cannot_be_is_told_where_it_is_written(topics: Any, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(Invalid, match="pipeline 'compute'") as caught:
        App().pipeline(*topics, **{"to": "parquet:out", **arguments})(compute)
    assert told in caught.value.message
    assert caught.value.code == "bad_pipeline"


def test_a_function_that_would_not_run_when_called_is_refused() -> None:
    async def later(frame: Any) -> Any:
        return frame

    with pytest.raises(Invalid, match="cannot be async or a generator"):
        App().pipeline("a", to="topic:b")(later)


def test_two_pipelines_have_two_names() -> None:
    app = App()
    app.pipeline("a", to="topic:b")(compute)
    with pytest.raises(Conflict, match="duplicate pipeline name 'compute'"):
        app.pipeline("a", to="topic:c")(compute)


def test_what_a_pipeline_fills_nothing_else_does() -> None:
    app = App()
    app.pipeline("a", to="binder:b", name="one")(compute)
    app.pipeline("a", to="parquet:out", name="two")(compute)
    app.pipeline("a", to="topic:t", name="three")(compute)
    app.pipeline("b", to="topic:t", name="four")(compute)  # a topic takes what it is given
    for to in ("binder:b", "parquet:out"):
        with pytest.raises(Conflict, match=f"would both fill {to}"):
            app.pipeline("a", to=to, name="five")(compute)
    with pytest.raises(Conflict, match="'six' and 'one' would both fill binder:b"):
        app.projection("a", "b", name="six")(compute)
    app.projection("a", "c", name="seven")(compute)
    with pytest.raises(Conflict, match="'eight' and 'seven' would both fill binder:c"):
        app.pipeline("a", to="binder:c", name="eight")(compute)
    assert sorted(app.binders) == ["b", "c"]


def test_the_fingerprint_is_that_of_what_is_declared() -> None:
    def of(**arguments: Any) -> str:
        app = App()
        app.pipeline("a", **{"to": "parquet:out", **arguments})(compute)
        return app.pipelines["compute"].fingerprint()

    assert of() == of()
    assert of(options={"splitBytes": 1000}) == of()  # how it is read changes nothing of what is written
    changed = [of(), of(to="topic:b"), of(schema="n int"), of(version=2), of(mode="stream"), of(start="7")]
    assert len({*changed}) == len(changed)
