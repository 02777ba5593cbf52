"""The table of routes, with their parameters and handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from headwater.errors import Invalid, NotFound
from headwater.server.http import (
    appending,
    binders,
    bus,
    consumers,
    parameters,
    reading,
    replication,
    system,
    topics,
    transactions,
    views,
)
from headwater.server.http.message import Request, Response
from headwater.server.http.parameters import Parameter
from headwater.server.rights import RIGHTS, Right
from headwater.server.scopes import binder_scope, query_scope
from headwater.server.service import Service

Handler = Callable[[Service, Request], Awaitable[Response]]


class Route(NamedTuple):
    """One route. Which right it needs, and of what, is in `rights`.

    Parts of the pattern in braces stand for any name; the topic's is `{name}`, or `{topic}` where there are two. What
    is not about a topic is granted as if it were one of another kind of name: see `scopes`.
    """

    method: str
    pattern: str
    handler: Handler
    parameters: tuple[Parameter, ...] = ()

    @property
    def right(self) -> Right:
        """What it takes to be answered."""
        return RIGHTS[f"{self.method} {self.pattern}"]

    def topic(self, path: tuple[str, ...], bus: str) -> str | None:
        """Return the topic in a path of this route, or what stands for one in scopes; `bus` is that of the bus."""
        if self.right.of == "bus":
            return bus
        for named, scope in _SCOPES:
            if named in self.pattern:
                return scope(path[self.pattern.split("/")[1:].index(named)])
        return None


_SCOPES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("{binder}", binder_scope),
    ("{query}", query_scope),
    ("{topic}", str),
    ("{name}", str),
)

ROUTES = (
    Route("GET", "/topics", topics.list_topics),
    Route("PUT", "/topic/{name}", topics.create, parameters.CREATE),
    Route("GET", "/topic/{name}", topics.describe),
    Route("DELETE", "/topic/{name}", topics.delete),
    Route("GET", "/topic/{name}/version", topics.version, parameters.VERSION),
    Route("POST", "/topic/{name}/sync", topics.sync),
    Route("POST", "/topic/{name}/retain", topics.retain),
    Route("POST", "/topic/{name}/replay", topics.replay, parameters.REPLAY),
    Route("POST", "/topic/{name}/items", appending.append, parameters.APPEND),
    Route("GET", "/topic/{name}/items", reading.read, parameters.READ),
    Route("GET", "/topic/{name}/splits", reading.splits, parameters.SPLITS),
    Route("GET", "/topic/{name}/producers", replication.remembered, parameters.PRODUCERS),
    Route("GET", "/replication/topics", replication.list_topics),
    Route("POST", "/replication/batches", replication.batches),
    Route("POST", "/transaction", transactions.commit),
    Route("GET", "/consumers", consumers.list_consumers, parameters.CONSUMERS),
    Route("POST", "/consumer/{name}/{topic}/items", consumers.join, parameters.CONSUME),
    Route("POST", "/consumer/{name}/{topic}/acks", consumers.settle),
    Route("POST", "/consumer/{name}/{topic}/seek", consumers.seek),
    Route("DELETE", "/consumer/{name}/{topic}", consumers.forget),
    Route("POST", "/api/events", bus.publish, parameters.PUBLISH),
    Route("GET", "/api/events", bus.follow, parameters.BUS),
    Route("GET", "/binders", binders.list_binders),
    Route("GET", "/binders/{binder}", binders.describe),
    Route("POST", "/binders/{binder}/query", binders.query, parameters.PASSED),
    Route("GET", "/binders/{binder}/changes", binders.changes, parameters.CHANGES),
    Route("POST", "/binders/{binder}/index", binders.index),
    Route("GET", "/binders/{binder}/{id}", binders.get, parameters.PASSED),
    Route("GET", "/views", views.list_views),
    Route("POST", "/query/{query}", views.ask),
    Route("GET", "/health", system.health),
    Route("GET", "/version", system.version),
    Route("GET", "/metrics", system.metrics),
    Route("GET", "/openapi.json", system.openapi),
)


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: tuple[Route, ...] = ROUTES) -> None:
        self._by_length: dict[int, list[tuple[tuple[str, ...], dict[str, Route]]]] = {}
        for route in routes:
            parts = tuple(route.pattern.split("/")[1:])
            group = self._by_length.setdefault(len(parts), [])
            methods = next((methods for pattern, methods in group if pattern == parts), None)
            if methods is None:
                methods = {}
                group.append((parts, methods))
            methods[route.method] = route

    def methods(self, path: tuple[str, ...]) -> dict[str, Route]:
        """Return the routes of a path, by method; raises NotFound if nothing is there.

        Of several that fit, the first counts for each method: a document may have the name of another route.
        """
        found: dict[str, Route] = {}
        for pattern, methods in self._by_length.get(len(path), ()):
            if all(map(_fits, pattern, path)):
                found = methods | found
        if not found:
            raise NotFound("no such route", hint="GET /openapi.json lists all routes", code="no_such_route")
        return found

    def find(self, method: str, path: tuple[str, ...]) -> Route:
        """Return the route of a request; raises NotFound, or Invalid for another method."""
        methods = self.methods(path)
        found = methods.get("GET" if method == "HEAD" else method)
        if found is None:
            may = allowed(methods)
            raise Invalid(f"{method} is not allowed here", hint=f"use {may}", code="method_not_allowed", allow=may)
        return found


def _fits(part: str, named: str) -> bool:
    """Return whether a part of a path is what the pattern wants: that, or any name. Only a document's may be empty."""
    return part == named or (part[:1] == "{" and (named != "" or part == "{id}"))


def allowed(methods: dict[str, Route]) -> str:
    """What the `Allow` header says."""
    names = {*methods, "OPTIONS", *(("HEAD",) if "GET" in methods else ())}
    return ", ".join(sorted(names))
