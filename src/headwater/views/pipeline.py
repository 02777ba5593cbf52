"""What an application declares of a pipeline: code that makes a table of topics. It runs on Spark, which is not here.

Everything that can be told without Spark is checked where it is written, so that a mistake shows before anything runs.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from headwater.errors import Invalid
from headwater.event import CONTENTS, Content

Mode = Literal["batch", "stream"]
Kind = Literal["topic", "binder", "parquet"]
Schema = str | Mapping[str, str] | None
OF_THE_PIPELINE = ("topic", "path", "start", "end")  # options of the source that it sets itself


class PipelineTarget(msgspec.Struct, frozen=True):
    """Where the rows of a pipeline go: `topic:big-orders`, `binder:revenue` or `parquet:out/revenue`."""

    kind: Kind
    place: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}"


class Pipeline(msgspec.Struct, frozen=True):
    """Code that makes a table of topics: `compute(*frames) -> frame`, with one frame for each of them."""

    name: str
    topics: tuple[str, ...]
    target: PipelineTarget
    compute: Callable[..., Any]
    mode: Mode = "batch"
    schema: Mapping[str, str] = {}
    start: str | int = "earliest"
    every: float | None = None
    partition_by: tuple[str, ...] = ()
    content: Content | None = None
    options: Mapping[str, str] = {}
    version: int = 1

    def declared(self) -> dict[str, Any]:
        """Return the parts of the declaration that may not change while a stream continues from its checkpoint."""
        return {
            "topics": list(self.topics),
            "to": str(self.target),
            "mode": self.mode,
            "schema": dict(self.schema),
            "start": str(self.start),
            "partition_by": list(self.partition_by),
            "version": self.version,
        }

    def fingerprint(self) -> str:
        """Return a hash that depends only on `declared`."""
        return hashlib.sha256(json.dumps(self.declared(), sort_keys=True).encode()).hexdigest()[:16]


def declared(
    name: str,
    topics: Sequence[str],
    compute: Callable[..., Any],
    *,
    to: str,
    mode: Mode,
    schema: Schema,
    start: str | int,
    every: float | None,
    partition_by: str | Sequence[str],
    content: Content | None,
    options: Mapping[str, Any] | None,
    version: int,
) -> Pipeline:
    """Return a pipeline as it is written. Raises Invalid for what cannot be, with the name of the pipeline."""
    try:
        _check_topics(topics)
        target = _target(to)
        if target.kind == "topic" and target.place in topics:
            raise Invalid("it would read its own output forever", hint="write to another topic")
        columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        _check_mode(mode, start, every)
        if columns and target.kind != "parquet":
            raise Invalid("partition_by is only for Parquet", hint="omit it, or write to parquet:PATH")
        if content is not None and (target.kind != "topic" or content not in CONTENTS):
            raise Invalid(f"{to} does not support content {content!r}", hint=f"a topic supports {', '.join(CONTENTS)}")
        if version < 1:
            raise Invalid("version must be at least 1")
        _check_signature(compute, topics)
        fields, chosen = _schemas(schema, topics), _options(options)
    except Invalid as error:
        raise Invalid(f"pipeline {name!r}: {error.message}", hint=error.hint, code="bad_pipeline") from None
    return Pipeline(name, tuple(topics), target, compute, mode, fields, start, every, columns, content, chosen, version)


def _check_topics(topics: Sequence[Any]) -> None:
    if not topics:
        raise Invalid("it reads no topic", hint='as in @app.pipeline("orders", to="parquet:out")')
    for topic in topics:
        if not isinstance(topic, str) or not topic:
            raise Invalid(
                f"a topic is named by text, not {topic!r}", hint="decorate the function; do not pass it as an argument"
            )
    if len({*topics}) < len(topics):
        raise Invalid("it names a topic twice", hint="name it once; the function may use its DataFrame more than once")


def _target(to: str) -> PipelineTarget:
    kind, colon, place = to.partition(":")
    if not colon or kind not in get_args(Kind):
        raise Invalid(f"it cannot write to {to!r}", hint="use topic:NAME, binder:NAME or parquet:PATH")
    if not place:
        raise Invalid(f"{to!r} lacks a name", hint=f"as in {kind}:{'out' if kind == 'parquet' else 'revenue'}")
    if kind == "parquet" and "://" in place:
        raise Invalid(
            f"Parquet is written to a directory, not to {place!r}",
            hint="use parquet:PATH, which may be a mounted directory",
        )
    return PipelineTarget(kind, place)  # type: ignore[arg-type]  # it is one of them: this was looked at above


def _check_mode(mode: str, start: str | int, every: Any) -> None:
    if mode not in get_args(Mode):
        raise Invalid(f"unknown mode {mode!r}", hint="use 'batch' or 'stream'")
    if mode == "batch" and start == "latest":
        raise Invalid("a batch from 'latest' has no events", hint="use mode='stream' to process new events")
    if every is None:
        return
    if mode == "batch":
        raise Invalid("every= is only for streams", hint="use mode='stream', or schedule headwater pipeline run")
    if not isinstance(every, int | float) or isinstance(every, bool) or not 0 <= every < math.inf:
        raise Invalid(f"every must be a number of seconds, not {every!r}")


def _check_signature(compute: Callable[..., Any], topics: Sequence[str]) -> None:
    if inspect.iscoroutinefunction(compute) or inspect.isgeneratorfunction(compute):
        raise Invalid("its function cannot be async or a generator", hint="return one DataFrame")
    try:
        inspect.signature(compute).bind(*topics)
    except TypeError as error:
        listed = ", ".join(topics)
        raise Invalid(
            f"its function must take one DataFrame for each of {listed}: {error}", hint="one argument for each topic"
        ) from None


def _schemas(schema: Schema, topics: Sequence[str]) -> dict[str, str]:
    """Return the fields that are wanted of each topic, as Spark writes columns."""
    found: dict[str, Any] = dict.fromkeys(topics, schema) if isinstance(schema, str) else dict(schema or {})
    for topic, columns in found.items():
        if topic not in topics:
            raise Invalid(f"schema names {topic!r}, which it does not read", hint=f"it reads {', '.join(topics)}")
        if not isinstance(columns, str) or not columns.strip():
            raise Invalid("a schema needs columns", hint='as in schema="product string, cents bigint"')
    return found


def _options(options: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the options as text, which is what Spark takes."""
    found = {}
    for key, value in (options or {}).items():
        if key.lower() in OF_THE_PIPELINE:
            raise Invalid(f"{key} is not an option of a pipeline", hint="topics, to= and start= are separate arguments")
        found[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return found
