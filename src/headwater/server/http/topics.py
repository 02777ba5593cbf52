"""Topics over HTTP: create, list, describe, delete, and set retention."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from headwater.errors import Invalid
from headwater.server.http.message import Request, Response, json
from headwater.server.service import Service
from headwater.server.wire.decoding import decoded

_SMALL_BODY = 64 * 1024


Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class RetentionBody(msgspec.Struct, forbid_unknown_fields=True):
    """A new retention policy; omitted fields keep their values."""

    retention_bytes: Number | UnsetType = UNSET
    retention_segments: Number | UnsetType = UNSET
    retention_age_ms: Number | UnsetType = UNSET
    retention_consumers: bool | UnsetType = UNSET
    retention_bytes_hard: Number | UnsetType = UNSET
    overflow: Literal["delete", "refuse"] | UnsetType = UNSET


class Retain(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /topic/{name}/retain`."""

    before: Number | Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    partition: Number | None = None
    dry_run: bool = False
    changes: RetentionBody = msgspec.field(default_factory=RetentionBody)


_decode_retain = msgspec.json.Decoder(Retain).decode
_NUMBERS = ("segment_bytes", "segment_age_ms", "retention_bytes", "retention_segments", "retention_age_ms")


async def list_topics(service: Service, request: Request) -> Response:
    """Return the names of all topics that the user may read."""
    names = await service.blocking(service.store.topics)
    return json([name for name in names if request.user.may("read", name)])


async def create(service: Service, request: Request) -> Response:
    """Make a topic."""
    query = request.query
    settings: dict[str, Any] = {name: query.number(name) for name in (*_NUMBERS, "retention_bytes_hard")}
    settings["partitions"] = query.number("partitions", 1)
    settings["data_bytes_max"] = query.number("data_bytes_max", service.limits.item_bytes_max)
    settings["compression"] = query.choice("compression", ("none", "zstd"))
    settings["overflow"] = query.choice("overflow", ("delete", "refuse"))
    settings["retention_consumers"] = query.flag("retention_consumers") if "retention_consumers" in query else None
    given = {name: value for name, value in settings.items() if value is not None}
    return json(await service.blocking(service.store.create, request.name, **given))


async def describe(service: Service, request: Request) -> Response:
    """Return the settings and the size of a topic."""
    return json(msgspec.to_builtins(await service.blocking(service.store.describe, request.name)))


async def delete(service: Service, request: Request) -> Response:
    """Delete a topic and all its events."""
    await service.blocking(service.store.delete, request.name)
    return json(True)


async def version(service: Service, request: Request) -> Response:
    """Return the offset of a key's last event."""
    key = request.query.data("key")
    if key is None:
        raise Invalid("the parameter 'key' is missing", code="bad_parameter")
    partition = request.query.number("partition")
    return json(await service.blocking(service.store.version, request.name, key, partition=partition))


async def sync(service: Service, request: Request) -> Response:
    """Make all events of a topic durable."""
    await service.blocking(service.store.sync, request.name)
    return json(True)


async def retain(service: Service, request: Request) -> Response:
    """Delete the oldest segments, and change what is kept."""
    asked = decoded(_decode_retain, await request.body(_SMALL_BODY) or b"{}")
    deleted = await service.blocking(
        service.store.retain,
        request.name,
        before=asked.before,
        partition=asked.partition,
        dry_run=asked.dry_run,
        **msgspec.to_builtins(asked.changes),
    )
    return json([msgspec.to_builtins(each) for each in deleted])


async def replay(service: Service, request: Request) -> Response:
    """Append dead-lettered events to the topic again."""
    return json(await service.blocking(service.store.replay, request.name, consumer=request.query.text("consumer")))
