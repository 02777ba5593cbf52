"""The table of routes: what is served, who may ask for it, with which parameters, and who answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

from headwater.errors import Invalid, NotFound
from headwater.server.http import appending, bus, consumers, parameters, reading, system, topics, transactions
from headwater.server.http.message import Request, Response
from headwater.server.http.parameters import Parameter
from headwater.server.scopes import Action
from headwater.server.store import Store

Handler = Callable[[Store, Request], Awaitable[Response]]


class Route(NamedTuple):
    """One route. `action` is what one must be allowed to do with the topic in the path, or, without one, with all.

    "user" only asks who it is, and None not even that.

    Parts of the pattern in braces stand for any name; the topic's is `{name}`, or `{topic}` where there are two.
    """

    method: str
    pattern: str
    action: Action | Literal["user"] | None
    handler: Handler
    parameters: tuple[Parameter, ...] = ()
    on_bus: bool = False  # whether it is about the bus's topic

    def topic(self, path: tuple[str, ...]) -> str | None:
        """The topic in a path of this route."""
        parts = self.pattern.split("/")[1:]
        at = parts.index("{topic}") if "{topic}" in parts else parts.index("{name}") if "{name}" in parts else None
        return None if at is None else path[at]


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
    Route("POST", "/transaction", "user", transactions.commit),
    Route("GET", "/consumers", "user", consumers.list_consumers, parameters.CONSUMERS),
    Route("GET", "/consumer/{name}/{topic}/items", "read", consumers.join, parameters.CONSUME),
    Route("POST", "/consumer/{name}/{topic}/acks", "read", consumers.settle),
    Route("POST", "/consumer/{name}/{topic}/seek", "read", consumers.seek),
    Route("DELETE", "/consumer/{name}/{topic}", "admin", consumers.forget),
    Route("POST", "/api/events", "append", bus.publish, parameters.PUBLISH, on_bus=True),
    Route("GET", "/api/events", "read", bus.follow, parameters.BUS, on_bus=True),
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
        """The routes of a path, by method; raises NotFound if nothing is there."""
        for pattern, methods in self._by_length.get(len(path), ()):
            if all(part == named or (part[:1] == "{" and named) for part, named in zip(pattern, path, strict=True)):
                return methods
        raise NotFound("nothing is at this address", hint="GET /openapi.json lists what is", code="no_such_route")

    def find(self, method: str, path: tuple[str, ...]) -> Route:
        """The route of a request; raises NotFound, or Invalid for another method."""
        methods = self.methods(path)
        found = methods.get("GET" if method == "HEAD" else method)
        if found is None:
            may = allowed(methods)
            raise Invalid(f"{method} does not go here", hint=f"use {may}", code="method_not_allowed", allow=may)
        return found


def allowed(methods: dict[str, Route]) -> str:
    """What the `Allow` header says."""
    names = {*methods, "OPTIONS", *(("HEAD",) if "GET" in methods else ())}
    return ", ".join(sorted(names))
