r"""Documents and their changes as JSON, the way they go over a wire: relaxed Extended JSON, as BSON's events have it.

    encode(value) -> bytes                    any value that BSON or JSON can hold; a `Document` as an object
    encode_change(change) -> bytes            the same for what followers get
    decode_document(line), decode_change(line), decode(text)

What is plain JSON needs no codec of BSON, and is as fast as JSON. Without the codec, values of other types stay the
objects that Extended JSON makes of them. One line each, without a line feed. Bytes only; safe from any thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from headwater.document import Change, Document

_decode_document = msgspec.json.Decoder(Document).decode
_decode_change = msgspec.json.Decoder(Change).decode
_decode_any = msgspec.json.Decoder().decode
_SIGN = b'"$'  # how the names of Extended JSON begin


def encode(value: Any) -> bytes:
    """Return a value in relaxed Extended JSON; raises TypeError or ValueError for what has no such form."""
    plain, exact = _encoders()
    try:
        return plain(value).encode()
    except ValueError:  # a number that JSON lacks, as infinity
        return exact(value).encode()


def encode_change(change: Change) -> bytes:
    """Return a change: only what it has."""
    told: dict[str, Any] = {"kind": change.kind, "place": change.place}
    if change.kind != "reset":
        told["id"] = change.id
    if change.kind == "put":
        told |= {"version": change.version, "data": change.data}
    return encode(told)


def decode_document(line: bytes) -> Document:
    """Return the document of a line; raises ValueError."""
    if _SIGN not in line:
        return _decode_document(line)
    return msgspec.convert(decode(line), Document)


def decode_change(line: bytes) -> Change:
    """Return the change of a line; raises ValueError."""
    if _SIGN not in line:
        return _decode_change(line)
    return msgspec.convert(decode(line), Change)


def decode(text: bytes) -> Any:
    """Return a value, with BSON's types where there is its codec; raises ValueError."""
    loads = _loads() if _SIGN in text else None
    if loads is not None:
        try:
            return loads(text.decode())
        except (ValueError, TypeError, KeyError):  # fields of the user's own that look like Extended JSON, and are none
            pass
    return _decode_any(text)


@cache
def _encoders() -> tuple[Callable[[Any], str], Callable[[Any], str]]:
    """Return what encodes nearly everything, and what encodes the rest, slowly."""
    options, json_util = _codec()

    def other(value: Any) -> Any:
        if isinstance(value, Document):
            return {"id": value.id, "version": value.version, "data": value.data}
        if json_util is None:
            raise TypeError(f"{type(value).__name__} cannot be written as JSON")
        return json_util.default(value, options)

    def exact(value: Any) -> str:
        if json_util is None:
            raise TypeError("NaN and infinity cannot be written without pymongo")
        text: str = json_util.dumps(_plain(value), json_options=options, **style)
        return text

    style: dict[str, Any] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    return json.JSONEncoder(default=other, **style).encode, exact


def _plain(value: Any) -> Any:
    """Return the same value with documents as objects."""
    if isinstance(value, Document):
        return {"id": value.id, "version": value.version, "data": value.data}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


@cache
def _loads() -> Any:
    options, json_util = _codec()
    return None if json_util is None else lambda text: json_util.loads(text, json_options=options)


def _codec() -> tuple[Any, Any]:
    """Return what becomes of each type, and what knows how; None where BSON's codec is not installed."""
    try:
        from bson import json_util
        from bson.binary import UuidRepresentation
        from bson.codec_options import DatetimeConversion
    except ImportError:
        return None, None
    options = json_util.JSONOptions(
        json_mode=json_util.JSONMode.RELAXED,
        uuid_representation=UuidRepresentation.STANDARD,
        tz_aware=True,
        datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    )
    return options, json_util
