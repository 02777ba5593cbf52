"""The table of routes: what is served, who may ask for it, with which parameters, and who answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

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
from headwater.server.scopes import Action, binder_scope, query_scope
from headwater.server.store import Store

Handler = Callable[[Store, Request], Awaitable[Response]]


class Route(NamedTuple):
    """One route. `action` is what one must be allowed to do with the topic in the path, or, without one, with all.

    "user" only asks who it is, and None not even that.

    Parts of the pattern in braces stand for any name; the topic's is `{name}`, or `{topic}` where there are two. What
    is not about a topic is granted as if it were one of another kind of name: see `scopes`.
    """

    method: str
    pattern: str
    action: Action | Literal["user"] | None
    handler: Handler
    parameters: tuple[Parameter, ...] = ()
    on_bus: bool = False  # whether it is about the bus's topic

    def topic(self, path: tuple[str, ...]) -> str | None:
        """The topic in a path of this route, or what stands for one in scopes."""
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
    Route("GET", "/topics", "user", topics.list_topics),
    Route("PUT", "/topic/{name}", "append", topics.create, parameters.CREATE),
    Route("GET", "/topic/{name}", "read", topics.describe),
    Route("DELETE", "/topic/{name}", "admin", topics.delete),
    Route("GET", "/topic/{name}/version", "read", topics.version, parameters.VERSION),
    Route("POST", "/topic/{name}/sync", "append", topics.sync),
    Route("POST", "/topic/{name}/retain", "admin", topics.retain),
    Route("POST", "/topic/{name}/replay", "admin", topics.replay, parameters.REPLAY),
    Route("POST", "/topic/{name}/items", "append", appending.append, parameters.APPEND),
    Route("GET", "/topic/{name}/items", "read", reading.read, parameters.READ),
    Route("GET", "/topic/{name}/splits", "read", reading.splits, parameters.SPLITS),
    Route("GET", "/topic/{name}/producers", "read", replication.remembered, parameters.PRODUCERS),
    Route("GET", "/replication/topics", "user", replication.list_topics),
    Route("POST", "/replication/batches", "user", replication.batches),
    Route("POST", "/transaction", "user", transactions.commit),
    Route("GET", "/consumers", "user", consumers.list_consumers, parameters.CONSUMERS),
    Route("POST", "/consumer/{name}/{topic}/items", "read", consumers.join, parameters.CONSUME),
    Route("POST", "/consumer/{name}/{topic}/acks", "read", consumers.settle),
    Route("POST", "/consumer/{name}/{topic}/seek", "read", consumers.seek),
    Route("DELETE", "/consumer/{name}/{topic}", "admin", consumers.forget),
    Route("POST", "/api/events", "append", bus.publish, parameters.PUBLISH, on_bus=True),
    Route("GET", "/api/events", "read", bus.follow, parameters.BUS, on_bus=True),
    Route("GET", "/binders", "user", binders.list_binders),
    Route("GET", "/binders/{binder}", "read", binders.describe),
    Route("POST", "/binders/{binder}/query", "read", binders.query, parameters.PASSED),
    Route("GET", "/binders/{binder}/changes", "read", binders.changes, parameters.CHANGES),
    Route("POST", "/binders/{binder}/index", "admin", binders.index),
    Route("GET", "/binders/{binder}/{id}", "read", binders.get, parameters.PASSED),
    Route("GET", "/views", "user", views.list_views),
    Route("POST", "/query/{query}", "read", views.ask),
    Route("GET", "/health", None, system.health),
    Route("GET", "/version", None, system.version),
    Route("GET", "/metrics", "read", system.metrics),
    Route("GET", "/openapi.json", None, system.openapi),
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
        """The routes of a path, by method; raises NotFound if nothing is there.

        Of several that fit, the first counts for each method: a document may have the name of another route.
        """
        found: dict[str, Route] = {}
        for pattern, methods in self._by_length.get(len(path), ()):
            if all(map(_fits, pattern, path)):
                found = methods | found
        if not found:
            raise NotFound("nothing is at this address", hint="GET /openapi.json lists what is", code="no_such_route")
        return found

    def find(self, method: str, path: tuple[str, ...]) -> Route:
        """The route of a request; raises NotFound, or Invalid for another method."""
        methods = self.methods(path)
        found = methods.get("GET" if method == "HEAD" else method)
        if found is None:
            may = allowed(methods)
            raise Invalid(f"{method} does not go here", hint=f"use {may}", code="method_not_allowed", allow=may)
        return found


def _fits(part: str, named: str) -> bool:
    """Whether a part of a path is what the pattern wants: that, or any name. Only a document's may be empty."""
    return part == named or (part[:1] == "{" and (named != "" or part == "{id}"))


def allowed(methods: dict[str, Route]) -> str:
    """What the `Allow` header says."""
    names = {*methods, "OPTIONS", *(("HEAD",) if "GET" in methods else ())}
    return ", ".join(sorted(names))
