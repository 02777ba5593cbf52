"""The messages between a server and its application: JSON, each after its length as a big-endian u32.

The application begins, with `Ready` or `BrokenApplication`. Then the server sends `QueryCall`s, and gets an
`QueryReply` or a `QueryFailure` for each, in any order. Nothing in them is code. Bytes only; safe from any thread.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import msgspec

from headwater import errors
from headwater.errors import HeadwaterError, Invalid, TooLarge
from headwater.limits import ANSWER_BYTES_MAX, QUESTION_BYTES_MAX

LENGTH = Struct(">I")
MESSAGE_BYTES_MAX = ANSWER_BYTES_MAX + QUESTION_BYTES_MAX


class WireError(msgspec.Struct, frozen=True):
    """An error as it is sent: its message and facts, without its traceback."""

    kind: str
    code: str
    message: str
    hint: str = ""
    facts: dict[str, Any] = {}


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The application runs, and answers these queries."""

    queries: list[str]


class BrokenApplication(msgspec.Struct, frozen=True, tag="broken"):
    """The application cannot run."""

    error: WireError


class QueryCall(msgspec.Struct, frozen=True):
    """A call of a named query."""

    id: int
    name: str
    arguments: dict[str, Any]


class QueryReply(msgspec.Struct, frozen=True, tag="answered"):
    """The result of a query, as JSON."""

    id: int
    answer: msgspec.Raw


class QueryFailure(msgspec.Struct, frozen=True, tag="failed"):
    """The error of a query."""

    id: int
    error: WireError


Message = Ready | BrokenApplication | QueryReply | QueryFailure

_encode = msgspec.json.Encoder(enc_hook=str).encode
_decode_message = msgspec.json.Decoder(Message).decode
_decode_question = msgspec.json.Decoder(QueryCall).decode
_KINDS: dict[str, type[HeadwaterError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, HeadwaterError)
}


def framed(message: Message | QueryCall) -> bytes:
    """Return a message behind its length; raises TooLarge."""
    data = _encode(message)
    if len(data) > MESSAGE_BYTES_MAX:
        raise TooLarge(f"a message has {len(data)} bytes", limit="answer_bytes_max", maximum=ANSWER_BYTES_MAX)
    return LENGTH.pack(len(data)) + data


def length_of(head: bytes) -> int:
    """Return the length of the message that follows; raises Invalid if it cannot be one of ours."""
    (length,) = LENGTH.unpack(head)
    if length > MESSAGE_BYTES_MAX:
        raise Invalid(f"invalid message length: {length} bytes", code="bad_message")
    return int(length)


def message_of(data: bytes) -> Message:
    """What the application says; raises Invalid."""
    try:
        said: Message = _decode_message(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the application sent an invalid message: {error}", code="bad_message") from error
    return said


def question_of(data: bytes) -> QueryCall:
    """What the server asks; raises Invalid."""
    try:
        return _decode_question(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the server sent an invalid request: {error}", code="bad_message") from error


def told(error: HeadwaterError) -> WireError:
    """Return an error, to be sent."""
    kind = next((kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "headwater.errors"), "")
    return WireError(kind, error.code, error.message, error.hint, error.facts)


def raised(told: WireError) -> HeadwaterError:
    """Return an error that was sent, as it was raised."""
    kind = _KINDS.get(told.kind, HeadwaterError)
    facts = {name: fact for name, fact in told.facts.items() if name not in ("message", "hint", "code")}
    return kind(told.message, hint=told.hint, code=told.code, **facts)
