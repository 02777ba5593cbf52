"""Headwater: an event log that grows with its users.

`headwater.open("data")` is the door. What comes out of it: `Engine`, with all the verbs; `Event`, what is read;
`Ref`, where an appended event is; `Limits`, what may be changed. Every error is a `HeadwaterError`.
"""

from headwater.api import open  # the verb users expect, as in gzip.open
from headwater.engine.batches import EventBatch
from headwater.engine.engine import Engine
from headwater.engine.follow import Follow
from headwater.errors import (
    Closed,
    Conflict,
    Corrupt,
    Fenced,
    HeadwaterError,
    Invalid,
    NotFound,
    TooLarge,
    Unavailable,
    Unsupported,
)
from headwater.event import Event, Ref, Refs
from headwater.limits import Limits

__version__ = "0.1.0"

__all__ = [
    "Closed",
    "Conflict",
    "Corrupt",
    "Engine",
    "Event",
    "EventBatch",
    "Fenced",
    "Follow",
    "HeadwaterError",
    "Invalid",
    "Limits",
    "NotFound",
    "Ref",
    "Refs",
    "TooLarge",
    "Unavailable",
    "Unsupported",
    "open",
]
