"""The record of a route, and the vocabulary of its description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headwater.server.http.message import Request, Response
from headwater.server.http.parameters import Parameter, Schema, names
from headwater.server.rights import ACTIONS, Action, Right, binder_scope, query_scope
from headwater.server.service import Service

Handler = Callable[[Service, Request], Awaitable[Response]]
Content = dict[str, Any]
"""Schemas by media type: written out, or the type that is encoded and decoded; None for what has none."""


@dataclass(frozen=True)
class Route:
    """One route. `right` is what a request needs, `also` what it needs in addition under a condition, by its name.

    Parts of the pattern in braces stand for any name; the topic's is `{name}`, or `{topic}` where there are two. What
    is not about a topic is granted as if it were one of another kind of name: see `scopes`. `answer` is the body of a
    response with status 200, and `headers` are its headers; `errors` are the statuses besides those that any request
    may return.
    """

    method: str
    pattern: str
    handler: Handler
    right: Right
    summary: str
    answer: Content
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    body: Content | None = None
    body_required: bool = True
    headers: tuple[tuple[str, Schema], ...] = ()
    also: Mapping[str, Right] = field(default_factory=dict)

    @property
    def rights(self) -> dict[str, Right]:
        """Return the rights by the names that docs/SECURITY.md gives them."""
        name = f"{self.method} {self.pattern}"
        return {name: self.right} | {f"{name} {condition}": right for condition, right in self.also.items()}

    def action(self, condition: str = "") -> Action:
        """Return the action that a request needs, or needs under a condition."""
        needed = (self.also[condition] if condition else self.right).needed
        assert needed in ACTIONS
        return needed

    @cached_property
    def query_names(self) -> tuple[str, ...]:
        """Return the names of the parameters that may be in the query."""
        return names(self.parameters)

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


def ref(name: str) -> Schema:
    """Return a reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def json_of(schema: Any) -> Content:
    """Return the content of a body in JSON."""
    return {"application/json": schema}


def list_of(schema: Schema) -> Schema:
    """Return the schema of an array."""
    return {"type": "array", "items": schema}


def object_of(required: Iterable[str] = (), **properties: Schema) -> Schema:
    """Return the schema of an object."""
    return {"type": "object", "properties": properties, "required": list(required)}
