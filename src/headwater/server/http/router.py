"""Finds the route of a request by its method and path."""

from __future__ import annotations

from collections.abc import Iterable

from headwater.errors import Invalid, NotFound
from headwater.server.http.route import Route
from headwater.server.http.routes import ROUTES


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
