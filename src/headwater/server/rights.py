"""Rights: what the scopes of users grant, and what requests and frames need.

A scope grants actions on topics whose names match a pattern; binders and named queries have names of their own in it.
The table of TCP frames is here; routes have their rights in `http/routes.py`. docs/SECURITY.md lists both, and a test
compares them. Where the right is for something that is not in the address of a request, such as each topic of a
transaction, its handler checks it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

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


Needed = Action | Literal["user"] | None
Of = Literal["", "topic", "each topic", "bus", "all topics", "binder", "query"]


class Right(NamedTuple):
    """The right that a request needs: an action on a resource; "user" needs only authentication, None nothing."""

    needed: Needed
    of: Of = ""


OPEN = Right(None)
USER = Right("user")
READ = Right("read", "topic")
APPEND = Right("append", "topic")
ADMIN = Right("admin", "topic")
BINDER = Right("read", "binder")

FRAMES: dict[str, Right] = {
    "CONNECT": OPEN,
    "PING": USER,
    "EMIT": APPEND,
    "STARTTX": USER,
    "ABORTTX": USER,
    "COMMITTX": Right("append", "each topic"),
    "SUBSCRIBE": READ,
    "SUBSCRIBE with binder": BINDER,
    "ACKEV": USER,
    "UNSUBSCRIBE": USER,
    "UNSUBSCRIBE with delete": ADMIN,
    "QUERY": BINDER,
    "QUERYACK": USER,
}


def action_of(frame: str) -> Action:
    """Return the action that a frame needs which needs one; `frame` is the name of a row."""
    needed = FRAMES[frame].needed
    assert needed in ACTIONS
    return needed
