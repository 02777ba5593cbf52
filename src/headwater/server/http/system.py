"""Routes about the server itself: its health, its version, its metrics, its OpenAPI document.

One thread at a time checks the disk, however many requests there are, so that probes cannot overload the server.
"""

from __future__ import annotations

import asyncio
import logging
import platform

import headwater
from headwater.errors import HeadwaterError, Unavailable
from headwater.format.settings import FORMAT
from headwater.server.http.message import JSON, Request, Response, json
from headwater.server.service import Service

HEALTH_S = 5.0  # a disk that has not answered by then is not well; load balancers wait about as long

_log = logging.getLogger("headwater.server")


async def health(service: Service, _request: Request) -> Response:
    """Return whether the log can be read, and takes appends. What is wrong in full is for the server's own log."""
    try:
        await asyncio.wait_for(service.shared("health", service.backend.probe), HEALTH_S)
    except TimeoutError as error:
        raise Unavailable(f"the disk did not respond within {HEALTH_S:g} s", code="disk_hangs") from error
    except (HeadwaterError, OSError) as error:
        _log.error("the log cannot be read: %s", error)  # without its traceback, as probes come every few seconds
        code = error.code if isinstance(error, HeadwaterError) else "disk_failed"
        raise Unavailable("the log cannot be read", hint="see the server's log", code=code) from error
    frozen = service.backend.frozen()
    if frozen:
        names = not service.access.authenticates  # else anybody could learn which topics there are
        logs = [
            {"topic": topic, "partition": partition, "reason": why} if names else {"reason": why}
            for topic, partition, why in frozen
        ]
        raise Unavailable(
            f"{len(frozen)} logs refuse appends",
            hint="fix the disk, and they recover by themselves; see the server's log",
            code="frozen",
            frozen=logs,
        )
    return json({"status": "ok"})


async def version(service: Service, _request: Request) -> Response:
    """Return the version of the server, and the uuid of its log."""
    told = {"version": headwater.__version__, "format": FORMAT, "python": platform.python_version()}
    return json(told | {"uuid": service.backend.uuid})


async def metrics(service: Service, _request: Request) -> Response:
    """Return the metrics of server and log for Prometheus."""
    content_type, text = await service.shared("metrics", _render, service)
    return Response(200, (("content-type", content_type),), text)


async def openapi(service: Service, request: Request) -> Response:
    """Return the OpenAPI document."""
    body = await service.shared(f"openapi {request.root}", _document, service.access.authenticates, request.root)
    return Response(200, (("content-type", JSON),), body)


def _render(service: Service) -> tuple[str, bytes]:
    from headwater.server import prometheus  # at the first scrape: it brings a library of some megabytes

    return prometheus.CONTENT_TYPE, prometheus.render(service.metrics, service.store)


def _document(authenticates: bool, root: str) -> bytes:
    from headwater.server.http import openapi  # it describes the routes, which this module is one of

    return openapi.encoded(authenticates, root)
