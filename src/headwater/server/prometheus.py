"""Metrics of the server and its log in the format of Prometheus (docs/RUNNING.md lists the names).

`render` reads the log, so it belongs in a worker thread. Anything unreadable, such as a damaged topic, is omitted
and counted in `headwater_scrape_errors`: a scrape never fails because of it. The library that writes the format is
imported with this module, at the first scrape: it takes some megabytes that a server without Prometheus need not have.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

import headwater
from headwater.errors import HeadwaterError
from headwater.format.settings import FORMAT
from headwater.info import ConsumerInfo, TopicInfo, ViewInfo
from headwater.server.metrics import OTHER, TOPICS_MAX, Histogram, Metrics
from headwater.store import Store
from headwater.views.status import views as views_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
VIEWS_MAX = 200  # projections and functions that have series of their own; what more of them do is added up
LAGS_MAX = 1000  # series of lag; above, the partitions of a consumer are added up, and then the consumers of a topic

_VIEW = ("kind", "name", "topic")
_process = ProcessCollector(registry=None)


def render(metrics: Metrics, store: Store) -> bytes:
    """Everything, in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(metrics, store))
    return generate_latest(registry)


class _Families(Collector):
    """One scrape."""

    def __init__(self, metrics: Metrics, store: Store) -> None:
        self._metrics = metrics
        self._store = store

    def collect(self) -> Iterator[Metric]:
        yield from _appends(self._metrics)
        yield from _requests(self._metrics)
        yield from _connections(self._metrics)
        yield from _log(self._metrics, self._store)
        yield from _application(self._metrics)
        yield from _process_families()


def _appends(metrics: Metrics) -> Iterator[Metric]:
    appends = CounterMetricFamily("headwater_appends", "Append requests.", labels=["topic"])
    events = CounterMetricFamily("headwater_append_events", "Events appended.", labels=["topic"])
    sizes = CounterMetricFamily("headwater_append_bytes", "Bytes of data appended.", labels=["topic"])
    for topic, meter in metrics.topics.copy().items():
        label = [topic]
        appends.add_metric(label, meter.appends)
        events.add_metric(label, meter.events)
        sizes.add_metric(label, meter.bytes)
    yield from (appends, events, sizes)
    yield _counter("headwater_commits", "Commits; concurrent appends share one.", metrics.commits)
    took = HistogramMetricFamily(
        "headwater_commit_seconds", "Seconds from the arrival of an append at the log to its commit."
    )
    _add_histogram(took, [], metrics.commit_seconds)
    yield took
    yield _counter("headwater_fsyncs", "Syncs of files and directories.", metrics.disk.syncs)
    yield _counter("headwater_fsync_seconds", "Seconds spent in syncs.", metrics.disk.sync_seconds)


def _requests(metrics: Metrics) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "headwater_http_requests", "Requests answered, over HTTP and TCP.", labels=["method", "route", "status"]
    )
    seconds = HistogramMetricFamily(
        "headwater_http_request_seconds",
        "Seconds from the head of a request, or its frame, to the head of its response.",
        labels=["method", "route"],
    )
    for meter in metrics.routes.copy().values():
        label = [meter.method, meter.route or OTHER]
        for status, count in sorted(meter.statuses.copy().items()):
            requests.add_metric([*label, str(status)], count)
        _add_histogram(seconds, label, meter.seconds)
    errors = CounterMetricFamily("headwater_errors", "Error responses, by code.", labels=["code"])
    for code, count in sorted(metrics.errors.copy().items()):
        errors.add_metric([code], count)
    yield from (requests, seconds, errors)


def _connections(metrics: Metrics) -> Iterator[Metric]:
    yield _gauge("headwater_http_connections", "Open connections, over HTTP and TCP.", metrics.connections)
    for name, told, value in (
        ("headwater_http_connections_accepted", "Connections accepted.", metrics.connections_accepted),
        (
            "headwater_http_connections_refused",
            "Connections refused because of the limit.",
            metrics.connections_refused,
        ),
        ("headwater_http_received_bytes", "Bytes received.", metrics.bytes_received),
        ("headwater_http_sent_bytes", "Bytes of bodies and frames sent.", metrics.bytes_sent),
        ("headwater_deliveries", "Events delivered to live streams.", metrics.live.events),
        ("headwater_delivery_bytes", "Bytes delivered to live streams.", metrics.live.bytes),
        ("headwater_delivery_gaps", "Times that retention overtook a live stream.", metrics.live.gaps),
        ("headwater_subscribers_behind", "Times that the client of a live stream was too slow.", metrics.live.behind),
    ):
        yield _counter(name, told, value)
    yield _gauge("headwater_subscribers", "Open live streams.", metrics.live.subscribers)
    yield _gauge("headwater_channels", "Readers shared by live streams.", metrics.live.channels)
    if metrics.access_log is not None:
        yield _counter("headwater_access_log_dropped", "Lines dropped from the access log.", metrics.access_log.dropped)


def _log(metrics: Metrics, store: Store) -> Iterator[Metric]:
    """Yield metrics of the directory: of topics that have labels, and of as many others as may have one."""
    errors = 0
    try:
        names = store.topics()
        yield _gauge("headwater_topics", "Topics.", len(names))
    except HeadwaterError:
        errors, names = 1, []
    shown = list(dict.fromkeys([*metrics.topics.copy(), *names]))[:TOPICS_MAX]
    topics: list[TopicInfo] = []
    consumers: list[ConsumerInfo] = []
    for name in shown:
        try:
            topics.append(store.describe(name))
            for consumer in store.consumers(name):
                if consumer.error is None:
                    consumers.append(consumer)
                else:
                    errors += 1
        except (HeadwaterError, OSError):
            errors += name in names  # one that was deleted meanwhile is none
    views: list[ViewInfo] = []
    try:
        views = views_of(store)
    except (HeadwaterError, OSError):
        errors += 1
    yield from _sizes(topics)
    yield _lags(consumers)
    yield from _views(views)
    yield _gauge("headwater_scrape_errors", "Sources of metrics that failed in this scrape.", errors)


def _views(views: list[ViewInfo]) -> Iterator[Metric]:
    """Yield the metrics of projections and functions; above the limit, sums by kind and topic, then by kind."""
    labels: list[tuple[str, str, str]] = [(each.kind, each.name, each.topic) for each in views]
    if len(labels) > VIEWS_MAX:
        labels = [(kind, OTHER, topic) for kind, _, topic in labels]
    if len(set(labels)) > VIEWS_MAX:
        labels = [(kind, name, OTHER) for kind, name, _ in labels]
    for family, read in (
        (GaugeMetricFamily("headwater_view_lag_events", "Events not handled yet.", labels=_VIEW), "lag"),
        (CounterMetricFamily("headwater_view_events", "Events handled.", labels=_VIEW), "events"),
        (CounterMetricFamily("headwater_view_errors", "Errors raised by the view's code.", labels=_VIEW), "errors"),
        (
            GaugeMetricFamily("headwater_view_aside_events", "Events quarantined or dead-lettered.", labels=_VIEW),
            "aside",
        ),
        (GaugeMetricFamily("headwater_view_stopped", "Views stopped by an error.", labels=_VIEW), "stopped"),
    ):
        sums: dict[tuple[str, str, str], float] = {}
        for label, each in zip(labels, views, strict=True):
            value = each.state == "stopped" if read == "stopped" else getattr(each, read)
            sums[label] = sums.get(label, 0) + value
        for label, value in sums.items():
            family.add_metric(list(label), value)
        yield family


def _application(metrics: Metrics) -> Iterator[Metric]:
    application = metrics.application
    if application.up is not None:
        yield _gauge("headwater_application_up", "1 if the application is running.", application.up)
        yield _counter("headwater_application_restarts", "Restarts of the application.", application.restarts)


def _sizes(topics: Iterable[TopicInfo]) -> Iterator[Metric]:
    events = GaugeMetricFamily("headwater_log_events", "Events in the topic.", labels=["topic"])
    sizes = GaugeMetricFamily("headwater_log_bytes", "Bytes of the topic's files.", labels=["topic"])
    segments = GaugeMetricFamily("headwater_log_segments", "Segments of the topic.", labels=["topic"])
    frozen = GaugeMetricFamily(
        "headwater_log_frozen_partitions", "Partitions that refuse appends because of a failed disk.", labels=["topic"]
    )
    for topic in topics:
        events.add_metric([topic.name], topic.events)
        sizes.add_metric([topic.name], topic.bytes)
        segments.add_metric([topic.name], sum(partition.segments for partition in topic.partitions))
        frozen.add_metric([topic.name], sum(partition.state.startswith("frozen") for partition in topic.partitions))
    yield from (events, sizes, segments, frozen)


def _lags(consumers: list[ConsumerInfo]) -> Metric:
    """Return how far each consumer is behind. There may be thousands of partitions, so what is too much is added up."""
    labels = [(each.name, each.topic, str(each.partition)) for each in consumers]
    if len(labels) > LAGS_MAX:
        labels = [(name, topic, "all") for name, topic, _ in labels]
    if len(set(labels)) > LAGS_MAX:
        labels = [(OTHER, topic, partition) for _, topic, partition in labels]
    lags: dict[tuple[str, str, str], int] = {}
    for label, each in zip(labels, consumers, strict=True):
        lags[label] = lags.get(label, 0) + each.lag
    family = GaugeMetricFamily(
        "headwater_consumer_lag_events",
        "Events not acknowledged by the consumer.",
        labels=["consumer", "topic", "partition"],
    )
    for label, lag in sorted(lags.items()):
        family.add_metric(label, lag)
    return family


def _process_families() -> Iterator[Metric]:
    build = InfoMetricFamily("headwater_build", "What runs.")
    build.add_metric([], {"version": headwater.__version__, "format": str(FORMAT), "python": platform.python_version()})
    yield build
    with contextlib.suppress(OSError, ValueError):  # not Linux
        pages = Path("/proc/self/statm").read_bytes().split()
        anonymous = (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGESIZE")
        told = "Private memory of the process; the resident memory also counts mapped files of the log."
        yield _gauge("headwater_anonymous_memory_bytes", told, anonymous)
    yield from _process.collect()


def _counter(name: str, told: str, value: float) -> Metric:
    return CounterMetricFamily(name, told, value)


def _gauge(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(name, told, value)


def _add_histogram(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    family.add_metric(labels, histogram.buckets(), sum_value=histogram.sum)
