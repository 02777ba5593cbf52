"""The rights that requests and frames need, and the table of those of TCP frames. Routes have theirs in `http.routes`.

docs/SECURITY.md lists both, and a test compares them. Where the right is of something that is not in the address of a
request, as of each topic of a transaction, its handler checks it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from headwater.server.scopes import ACTIONS, Action

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
