"""What is counted, and how Prometheus reads it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from headwater.info import ConsumerInfo, ViewInfo
from headwater.opening import open_directory
from headwater.server import metrics as counting
from headwater.server import prometheus
from headwater.server.metrics import COMMIT_BOUNDS, Histogram, Metrics
from headwater.store import Store

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def engine(tmp_path: Path, metrics: Metrics) -> Iterator[Store]:
    with open_directory(tmp_path / "data", disk=metrics.disk) as opened:
        yield opened


def scraped(metrics: Metrics, engine: Store) -> Samples:
    """All samples; each may be there only once."""
    found: Samples = {}
    for family in text_string_to_metric_families(prometheus.render(metrics, engine).decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def labelled(samples: Samples, name: str, label: str) -> set[str]:
    return {dict(labels)[label] for sample, labels in samples if sample == name}


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 1000)), max_size=30))
def test_a_histogram_counts_each_value_under_every_bound_that_it_does_not_pass(seen: list[tuple[float, int]]) -> None:
    histogram = Histogram(COMMIT_BOUNDS)
    for number, count in seen:
        histogram.observe(number, count)
    for bound, total in histogram.buckets():
        assert total == sum(count for number, count in seen if number <= float(bound))
    assert histogram.sum == pytest.approx(sum(number * count for number, count in seen))


def test_counting_an_append_and_its_answer_costs_a_few_microseconds_at_most(metrics: Metrics) -> None:
    route = metrics.route("POST", "/topic/{name}/items")

    def spent(rounds: int = 20_000) -> float:
        begun = time.perf_counter()
        for _ in range(rounds):
            metrics.appended("orders", 1, 100)
            metrics.committed(0.0007, 64)
            route.answered(200, 0.001)
        return (time.perf_counter() - begun) / rounds

    assert min(spent() for _ in range(5)) < 5e-6  # about one on the machine that this was made on


def test_appends_are_shown_by_topic(metrics: Metrics, engine: Store) -> None:
    metrics.appended("orders", 1, 100)
    metrics.appended("orders", 1000, 5000)
    metrics.appended('we"ird\n\\', 1, 1)
    samples = scraped(metrics, engine)
    assert value(samples, "headwater_appends_total", topic="orders") == 2
    assert value(samples, "headwater_append_events_total", topic="orders") == 1001
    assert value(samples, "headwater_append_bytes_total", topic="orders") == 5100
    assert value(samples, "headwater_appends_total", topic='we"ird\n\\') == 1


def test_only_so_many_topics_have_labels_and_the_rest_is_added_up(
    metrics: Metrics, engine: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "TOPICS_MAX", 3)
    monkeypatch.setattr(prometheus, "TOPICS_MAX", 3)
    for name in ("a", "b", "other", "c", "d", "e"):
        engine.create(name)
        metrics.appended(name, 1, 1)
    samples = scraped(metrics, engine)
    assert labelled(samples, "headwater_appends_total", "topic") == {"a", "b", "other"}
    assert value(samples, "headwater_appends_total", topic="other") == 4
    assert len(labelled(samples, "headwater_log_bytes", "topic")) == 3
    assert value(samples, "headwater_topics") == 6


def test_requests_are_shown_by_method_route_and_status(metrics: Metrics, engine: Store) -> None:
    metrics.route("GET", "/topics").answered(200, 0.004)
    metrics.route("GET", "/topics").answered(503, 0.2)
    for method in ("BREW", "WHEN"):
        metrics.route(method, "").answered(404, 0.1)
    samples = scraped(metrics, engine)
    assert value(samples, "headwater_http_requests_total", method="GET", route="/topics", status="200") == 1
    assert value(samples, "headwater_http_requests_total", method="GET", route="/topics", status="503") == 1
    assert value(samples, "headwater_http_requests_total", method="other", route="other", status="404") == 2
    assert value(samples, "headwater_http_request_seconds_bucket", method="GET", route="/topics", le="0.005") == 1
    assert value(samples, "headwater_http_request_seconds_count", method="GET", route="/topics") == 2
    assert value(samples, "headwater_http_request_seconds_sum", method="GET", route="/topics") == pytest.approx(0.204)


def test_errors_are_shown_by_code_up_to_a_number(
    metrics: Metrics, engine: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "CODES_MAX", 2)
    for code in ("conflict", "conflict", "invalid", "third", "fourth", "conflict"):
        metrics.failed(code)
    samples = scraped(metrics, engine)
    assert labelled(samples, "headwater_errors_total", "code") == {"conflict", "invalid", "other"}
    assert value(samples, "headwater_errors_total", code="conflict") == 3
    assert value(samples, "headwater_errors_total", code="other") == 2


def test_every_sync_is_counted(metrics: Metrics, engine: Store) -> None:
    engine.create("orders")
    engine.append("orders", b"the first makes the segment")
    before = metrics.disk.syncs
    for _ in range(5):
        engine.append("orders", b"x")
    assert metrics.disk.syncs == before + 5
    engine.append("orders", b"x", durability="os")
    assert metrics.disk.syncs == before + 5
    engine.sync("orders")
    assert metrics.disk.syncs == before + 6
    samples = scraped(metrics, engine)
    assert value(samples, "headwater_fsyncs_total") == metrics.disk.syncs
    assert 0 < value(samples, "headwater_fsync_seconds_total") < 60


def test_the_size_of_the_log_and_the_lag_of_consumers_are_shown(metrics: Metrics, engine: Store) -> None:
    engine.create("orders", partitions=2)
    for partition, count in ((0, 3), (1, 5)):
        engine.append_many("orders", [b"x"] * count, partition=partition)
    with engine.consumer("billing", "orders", timeout=0) as consumer:
        for event in consumer:
            if event.partition == 1:
                consumer.ack(event)
    samples = scraped(metrics, engine)
    assert value(samples, "headwater_log_events", topic="orders") == 8
    assert value(samples, "headwater_log_bytes", topic="orders") > 0
    assert value(samples, "headwater_log_segments", topic="orders") == 2
    assert value(samples, "headwater_log_frozen_partitions", topic="orders") == 0
    assert value(samples, "headwater_consumer_lag_events", consumer="billing", topic="orders", partition="0") == 3
    assert value(samples, "headwater_consumer_lag_events", consumer="billing", topic="orders", partition="1") == 0


def test_too_many_lags_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def lags(consumers: int, partitions: int) -> dict[tuple[str, str], float]:
        infos = [
            ConsumerInfo(f"c{number}", "t", partition, 0, 2, 2, None, 0, 0, 0)
            for number in range(consumers)
            for partition in range(partitions)
        ]
        samples = prometheus._lags(infos).samples
        return {(sample.labels["consumer"], sample.labels["partition"]): sample.value for sample in samples}

    monkeypatch.setattr(prometheus, "LAGS_MAX", 3)
    assert lags(1, 3) == {("c0", "0"): 2, ("c0", "1"): 2, ("c0", "2"): 2}
    assert lags(2, 5) == {("c0", "all"): 10, ("c1", "all"): 10}
    assert lags(4, 5) == {("other", "all"): 40}


def test_too_many_views_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(views: int, topics: int) -> dict[str, dict[tuple[str, str, str], float]]:
        infos = [
            ViewInfo("projection", f"v{number}", f"t{number % topics}", "b", 1, state, 5, 7, 0.0, 0, 0, 1, 2, None, [])
            for number, state in zip(range(views), cycle(("stopped", "running")), strict=False)
        ]
        return {
            family.name: {
                (sample.labels["kind"], sample.labels["name"], sample.labels["topic"]): sample.value
                for sample in family.samples
            }
            for family in prometheus._views(infos)
        }

    monkeypatch.setattr(prometheus, "VIEWS_MAX", 3)
    few = shown(2, 2)
    assert few["headwater_view_lag_events"] == {("projection", "v0", "t0"): 5, ("projection", "v1", "t1"): 5}
    assert few["headwater_view_stopped"] == {("projection", "v0", "t0"): 1, ("projection", "v1", "t1"): 0}
    assert {name: sum(values.values()) for name, values in few.items()} == {
        "headwater_view_lag_events": 10,
        "headwater_view_events": 14,
        "headwater_view_errors": 2,
        "headwater_view_aside_events": 4,
        "headwater_view_stopped": 1,
    }
    assert shown(4, 2)["headwater_view_stopped"] == {
        ("projection", "other", "t0"): 2,
        ("projection", "other", "t1"): 0,
    }
    assert shown(8, 8)["headwater_view_lag_events"] == {("projection", "other", "other"): 40}


def test_an_application_is_shown_where_there_is_one(metrics: Metrics, engine: Store) -> None:
    assert not any(name.startswith("headwater_application") for name, _ in scraped(metrics, engine))
    metrics.application.up, metrics.application.restarts = True, 3
    samples = scraped(metrics, engine)
    assert value(samples, "headwater_application_up") == 1
    assert value(samples, "headwater_application_restarts_total") == 3


def test_a_damaged_topic_does_not_hide_the_others(metrics: Metrics, engine: Store) -> None:
    engine.append("sound", b"x")
    engine.append("damaged", b"x")
    metrics.appended("sound", 1, 1)
    (engine.path / "topics" / "damaged" / "topic.json").write_bytes(b"{}")
    samples = scraped(metrics, engine)
    assert value(samples, "headwater_log_events", topic="sound") == 1
    assert value(samples, "headwater_scrape_errors") == 1


def test_what_runs_and_what_it_uses_is_shown(metrics: Metrics, engine: Store) -> None:
    samples = scraped(metrics, engine)
    (build,) = (dict(labels) for name, labels in samples if name == "headwater_build_info")
    assert build.keys() == {"version", "format", "python"}
    resident = value(samples, "process_resident_memory_bytes")
    assert 0 < value(samples, "headwater_anonymous_memory_bytes") <= resident
    assert value(samples, "process_cpu_seconds_total") > 0
