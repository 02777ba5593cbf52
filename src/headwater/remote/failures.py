"""Errors of a client: what the server raised (docs/HTTP.md, "Errors"), and what the connection did."""

from __future__ import annotations

from typing import Any

import msgspec

from headwater import errors
from headwater.errors import HeadwaterError, Invalid, NotFound, Unavailable, Unsupported
from headwater.remote.server_address import ServerAddress


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error."""

    kind: str
    code: str = ""
    message: str = ""
    hint: str = ""
    facts: dict[str, Any] = {}


_decode = msgspec.json.Decoder(ErrorBody).decode
_KINDS: dict[str, type[HeadwaterError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, HeadwaterError)
}
_RESERVED = ("message", "hint", "code")  # what an error has besides its facts


def error_of(status: int, body: bytes, address: ServerAddress) -> HeadwaterError:
    """Return the error that is in a response."""
    try:
        told = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _of_a_stranger(status, address)
    return revive(told, status)


def revive(told: ErrorBody, status: int = 500) -> HeadwaterError:
    """Return the error that the server raised."""
    kind = _KINDS.get(told.kind) or _by_status(status)
    facts = {name: fact for name, fact in told.facts.items() if name not in _RESERVED}
    return kind(told.message, hint=told.hint, code=told.code, **facts)


def unreachable(address: ServerAddress, reason: str) -> Unavailable:
    """Return the error for a connection that could not be made."""
    return Unavailable(
        f"{address} cannot be reached: {reason}",
        hint="is 'headwater serve' running there, and is the address right?",
        code="unreachable",
    )


def lost(address: ServerAddress, reason: str, **facts: Any) -> Unavailable:
    """Return the error for a request whose response is lost: it may have been carried out."""
    again = "producer" in facts
    return Unavailable(
        f"the response from {address} was lost: {reason}",
        hint="the request may have been carried out: "
        + ("pass the error's producer= to retry it safely" if again else "check before you retry it"),
        code="answer_lost",
        **facts,
    )


def not_headwater(address: ServerAddress) -> Unsupported:
    """Return the error for a response that lacks the headers of a Headwater server."""
    return Unsupported(
        f"the response from {address} is not that of a Headwater server",
        hint="is the server older, or does a proxy in front of it remove headers?",
        code="bad_answer",
    )


def cut_short(address: ServerAddress, reason: str) -> Unavailable:
    """Return the error for a response that ended too early."""
    return Unavailable(
        f"the response from {address} was cut short: {reason}", hint="try again", code="answer_cut_short"
    )


def _of_a_stranger(status: int, address: ServerAddress) -> HeadwaterError:
    """Return the error for a response of a proxy, or of a server that is not Headwater."""
    return _by_status(status)(
        f"{address} responded with status {status}",
        hint="is this the address of a Headwater server, or of a proxy in front of one?",
        code="bad_answer",
        status=status,
    )


def _by_status(status: int) -> type[HeadwaterError]:
    if status >= 500:
        return Unavailable
    return NotFound if status == 404 else Invalid
