"""The table of routes, with their parameters and handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

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


@dataclass(frozen=True)
class Route:
    """One route. Which right it needs, and of what, is in `rights`.

    Parts of the pattern in braces stand for any name; the topic's is `{name}`, or `{topic}` where there are two. What
    is not about a topic is granted as if it were one of another kind of name: see `scopes`.
    """

    method: str
    pattern: str
    handler: Handler
    parameters: tuple[Parameter, ...] = ()

    @cached_property
    def right(self) -> Right:
        """Return the right that a request needs."""
        return RIGHTS[f"{self.method} {self.pattern}"]

    @cached_property
    def query_names(self) -> tuple[str, ...]:
        """Return the names of the parameters that may be in the query."""
        return parameters.names(self.parameters)

    @cached_property
    def _named(self) -> tuple[int, Callable[[str], str]] | None:
        """Return where in a path the name is that a right is of, and what stands for it in scopes."""
        parts = self.pattern.split("/")[1:]
        return next(((parts.index(name), scope) for name, scope in _SCOPES if name in parts), None)

    def topic(self, path: tuple[str, ...], bus: str) -> str | None:
        """Return the topic in a path of this route, or what stands for one in scopes; `bus` is that of the bus."""
        if self.right.of == "bus":
            return bus
        if self._named is None:
            return None
        at, scope = self._named
        return scope(path[at])


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


class _RouteNode:
    """The routes below one part of a path: by the next part where that is a word, or any name."""

    __slots__ = ("methods", "name", "name_may_be_empty", "words")

    def __init__(self) -> None:
        self.methods: dict[str, Route] = {}
        self.words: dict[str, _RouteNode] = {}
        self.name: _RouteNode | None = None
        self.name_may_be_empty = False

    def child(self, part: str) -> _RouteNode:
        """Return the node below for a part of a pattern, which is made if there is none."""
        if part[:1] != "{":
            return self.words.setdefault(part, _RouteNode())
        self.name = self.name or _RouteNode()
        self.name_may_be_empty = part == "{id}"  # of a document
        return self.name


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: Iterable[Route] = ROUTES) -> None:
        self._root = _RouteNode()
        for route in routes:
            node = self._root
            for part in route.pattern.split("/")[1:]:
                node = node.child(part)
            node.methods[route.method] = route

    def methods(self, path: tuple[str, ...]) -> dict[str, Route]:
        """Return the routes of a path, by method; raises NotFound if nothing is there.

        For each method, a word in a pattern wins over a name: a document may have the name of another route.
        """
        nodes = [self._root]
        for part in path:
            below = [node.words[part] for node in nodes if part in node.words]
            nodes = below + [node.name for node in nodes if node.name and (part or node.name_may_be_empty)]
        found: dict[str, Route] = {}
        for node in nodes:
            found = node.methods | found
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


def allowed(methods: dict[str, Route]) -> str:
    """Return the value of the `Allow` header."""
    names = {*methods, "OPTIONS", *(("HEAD",) if "GET" in methods else ())}
    return ", ".join(sorted(names))
