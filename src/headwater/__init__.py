"""Headwater: an event log that grows with its users.

`headwater.open("data")` is the door. What comes out of it: `Engine`, for a server `Remote`, for a bucket `Bucket`, with
all the verbs; `Event`, what is read; `Ref`, where an appended event is; `Transaction` and `Producer`, to append with
care; `Limits`, what may be changed. Every error is a `HeadwaterError`.
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
    from headwater.api import open, promote, replica, replicate  # `open` is the verb users expect, as in gzip.open
    from headwater.client.remote import Remote
    from headwater.document import Change, Document
    from headwater.engine.appends import Transaction
    from headwater.engine.bucket import AppendHandle, Bucket
    from headwater.engine.consumer import Consumer
    from headwater.engine.engine import Engine
    from headwater.engine.follow import Follow
    from headwater.engine.restoring import restore
    from headwater.event import Event, Ref, Refs
    from headwater.format.events import EventBatch
    from headwater.format.producers import Producer
    from headwater.info import DrainResult
    from headwater.limits import Limits
    from headwater.server.http.asgi import asgi
    from headwater.views.aggregate import Aggregate, Repository
    from headwater.views.app import App
    from headwater.views.local import Local

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "App",
    "AppendHandle",
    "Bucket",
    "Change",
    "Closed",
    "Conflict",
    "Consumer",
    "Corrupt",
    "Denied",
    "Document",
    "DrainResult",
    "Engine",
    "Event",
    "EventBatch",
    "Fenced",
    "Follow",
    "HeadwaterError",
    "Invalid",
    "Limits",
    "Local",
    "NotFound",
    "Producer",
    "Ref",
    "Refs",
    "Remote",
    "Repository",
    "TooLarge",
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
    "AppendHandle": "headwater.engine.bucket",
    "Bucket": "headwater.engine.bucket",
    "Change": "headwater.document",
    "Consumer": "headwater.engine.consumer",
    "Document": "headwater.document",
    "DrainResult": "headwater.info",
    "Engine": "headwater.engine.engine",
    "Event": "headwater.event",
    "EventBatch": "headwater.format.events",
    "Follow": "headwater.engine.follow",
    "Limits": "headwater.limits",
    "Local": "headwater.views.local",
    "Producer": "headwater.format.producers",
    "Ref": "headwater.event",
    "Refs": "headwater.event",
    "Remote": "headwater.client.remote",
    "Repository": "headwater.views.aggregate",
    "Transaction": "headwater.engine.appends",
    "asgi": "headwater.server.http.asgi",
    "open": "headwater.api",
    "promote": "headwater.api",
    "replica": "headwater.api",
    "replicate": "headwater.api",
    "restore": "headwater.engine.restoring",
}


def __getattr__(name: str) -> Any:
    """Import the engine when it is first used: help and completion of the command line are quick without it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
