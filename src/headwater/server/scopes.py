"""The permissions of users: scopes, each of which grants actions on topics whose names match a pattern.

In a pattern, `*` stands for any text, the empty one too, and everything else for itself: `orders.*` is every topic
whose name begins with `orders.`. As text, a scope is `read,append:orders.*`. Binders and queries with a name are
granted as topics are, under `binder/` and `query/`. Safe from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from headwater.errors import Invalid
from headwater.limits import DEFAULTS, SERVER_DEFAULTS

Action = Literal["read", "append", "admin"]
ACTIONS: tuple[Action, ...] = get_args(Action)
EVERY_TOPIC = "*"
HINT = "a scope is actions, a colon and a pattern of topics, as in 'read,append:orders.*' or 'admin:*'"


def binder_scope(name: str) -> str:
    """Return what a pattern must match for the right to a binder."""
    return f"binder/{name}"


def query_scope(name: str) -> str:
    """Return what a pattern must match for the right to run a named query."""
    return f"query/{name}"


class Scope(msgspec.Struct, frozen=True):
    """One grant: the actions, and the pattern of the topics."""

    actions: frozenset[Action]
    topics: str

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Read `read,append:orders.*`; raises Invalid with the code `bad_scope`."""
        named, _, topics = text.partition(":")
        actions = {action.strip() for action in named.split(",")}
        granted: frozenset[Action] = frozenset(action for action in ACTIONS if action in actions)
        if len(granted) < len(actions) or not 0 < len(topics.encode(errors="replace")) <= DEFAULTS.topic_name_bytes_max:
            raise Invalid(f"{text!r} is not a scope", hint=HINT, code="bad_scope", scope=text)
        return cls(granted, topics)

    def __str__(self) -> str:
        return f"{','.join(action for action in ACTIONS if action in self.actions)}:{self.topics}"

    def covers(self, topic: str) -> bool:
        """Return True if the topic's name matches the pattern, in time linear in the length of the name."""
        first, *others = self.topics.split("*")
        if not others:
            return topic == first
        *middle, last = others
        place, end = len(first), len(topic) - len(last)
        if not (topic.startswith(first) and topic.endswith(last)):
            return False
        for part in middle:  # the first place where a part fits leaves most to those after it
            found = topic.find(part, place, end)
            if found < 0:
                return False
            place = found + len(part)
        return place <= end


class User:
    """An authenticated user and its scopes."""

    __slots__ = ("_decisions", "name", "scopes")

    def __init__(self, name: str, scopes: Iterable[Scope]) -> None:
        self.name = name
        self.scopes = tuple(scopes)
        self._decisions: dict[tuple[str, str | None], bool] = {}

    def __repr__(self) -> str:
        return f"User({self.name!r}, {', '.join(map(str, self.scopes))!r})"

    def may(self, action: Action, topic: str | None) -> bool:
        """Return whether the user may do this to the topic. None means all topics, also future ones: pattern `*`."""
        decision = self._decisions.get((action, topic))
        if decision is None:
            if len(self._decisions) >= SERVER_DEFAULTS.user_decisions_max:
                self._decisions.clear()  # names come from outside: what is remembered of them is bounded
            decision = self._decisions[action, topic] = any(
                action in scope.actions and (scope.topics == EVERY_TOPIC if topic is None else scope.covers(topic))
                for scope in self.scopes
            )
        return decision


EVERYONE = User("everyone", [Scope(frozenset(ACTIONS), EVERY_TOPIC)])
NOBODY = User("nobody", [])
