"""Headwater: an event log that grows with its users.

`headwater.open("data")` returns a `Store` with all the verbs, for a directory, a bucket or a server. `Event` is what it
reads, `Ref` tells where an appended event is; `Consumer`, `Follow`, `Transaction` and `Binder` are what other verbs
return. Every error is a `HeadwaterError`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwater.errors import (
    Closed,
    Conflict,
    Corrupt,
    Denied,
    Fenced,
    HeadwaterError,
    Invalid,
    NotFound,
    TooLarge,
    Unavailable,
    Unsupported,
)

if TYPE_CHECKING:
    from headwater.document import Change, Document
    from headwater.event import Event, Ref, Refs
    from headwater.format.events import EventBatch
    from headwater.format.producers import Producer
    from headwater.history.restore import restore
    from headwater.info import DrainResult, TopicInfo
    from headwater.limits import Limits
    from headwater.opening import open, promote, replica, replicate  # `open` is the verb users expect, as in gzip.open
    from headwater.protocols import AppendHandle, Binder, Consumer, Follow
    from headwater.server.http.asgi import asgi
    from headwater.store import Store
    from headwater.transaction import Transaction
    from headwater.views.aggregate import Aggregate, Repository
    from headwater.views.app import App
    from headwater.views.context import Context

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "App",
    "AppendHandle",
    "Binder",
    "Change",
    "Closed",
    "Conflict",
    "Consumer",
    "Context",
    "Corrupt",
    "Denied",
    "Document",
    "DrainResult",
    "Event",
    "EventBatch",
    "Fenced",
    "Follow",
    "HeadwaterError",
    "Invalid",
    "Limits",
    "NotFound",
    "Producer",
    "Ref",
    "Refs",
    "Repository",
    "Store",
    "TooLarge",
    "TopicInfo",
    "Transaction",
    "Unavailable",
    "Unsupported",
    "asgi",
    "open",
    "promote",
    "replica",
    "replicate",
    "restore",
]

_HOMES = {
    "Aggregate": "headwater.views.aggregate",
    "App": "headwater.views.app",
    "AppendHandle": "headwater.protocols",
    "Binder": "headwater.protocols",
    "Change": "headwater.document",
    "Context": "headwater.views.context",
    "Store": "headwater.store",
    "TopicInfo": "headwater.info",
    "Consumer": "headwater.protocols",
    "Document": "headwater.document",
    "DrainResult": "headwater.info",
    "Event": "headwater.event",
    "EventBatch": "headwater.format.events",
    "Follow": "headwater.protocols",
    "Limits": "headwater.limits",
    "Producer": "headwater.format.producers",
    "Ref": "headwater.event",
    "Refs": "headwater.event",
    "Repository": "headwater.views.aggregate",
    "Transaction": "headwater.transaction",
    "asgi": "headwater.server.http.asgi",
    "open": "headwater.opening",
    "promote": "headwater.opening",
    "replica": "headwater.opening",
    "replicate": "headwater.opening",
    "restore": "headwater.history.restore",
}


def __getattr__(name: str) -> Any:
    """Import the engine when it is first used: help and completion of the command line are quick without it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
