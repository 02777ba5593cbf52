"""Encodes documents as BSON and errors of view code as JSON, as a binder stores them."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime
from typing import Any

import msgspec

from headwater.errors import Corrupt, Invalid, TooLarge
from headwater.event import Event
from headwater.format import names
from headwater.format.codec import codec
from headwater.info import ViewError
from headwater.limits import DOCUMENT_BYTES_MAX, DOCUMENT_ID_BYTES_MAX

ERROR_CHARACTERS_MAX = 4000  # of an error and its trace that are kept
_decode_error = msgspec.json.Decoder(ViewError)


def decode(data: bytes) -> dict[str, Any]:
    """Return a document that was stored, an object of its own; raises Corrupt if it is none."""
    found = codec()
    try:
        return found.decode(data, found.options)
    except found.damage as error:
        hint = "delete the binder's files while no application runs; it is then rebuilt from the log"
        raise Corrupt(f"a document is damaged: {error}", hint=hint) from error


def encode(document: Any) -> bytes:
    """Return a document as it is stored; raises TypeError or what BSON raises for one that is none, and TooLarge."""
    found = codec()
    data = found.encode(document, False, found.encoding)
    if len(data) > DOCUMENT_BYTES_MAX:
        raise too_large(data)
    return data


def too_large(data: bytes) -> TooLarge:
    """Return the error for a document above the limit."""
    return TooLarge(f"the document has {len(data)} bytes", limit="document_bytes_max", maximum=DOCUMENT_BYTES_MAX)


def document_id(key: Any) -> str | None:
    """Return the id of a document, from a key of whatever kind; None stands for no document. Raises Invalid."""
    if key.__class__ is str:
        id = key
    elif key is None:
        return None
    elif isinstance(key, bytes):
        try:
            id = key.decode()
        except UnicodeDecodeError:
            raise Invalid(f"the key {key!r} is not UTF-8", hint="give a key= that returns text") from None
    elif isinstance(key, int) and not isinstance(key, bool):
        id = str(int(key))
    elif isinstance(key, str):
        id = str(key)
    else:
        raise Invalid(f"a document's id must be text, not {type(key).__name__}", hint="give a key= that returns text")
    if not id.isascii():
        names.utf8(id, "a document's id")  # raises for what UTF-8 does not have
    if len(id) > DOCUMENT_ID_BYTES_MAX // 4 and len(id.encode()) > DOCUMENT_ID_BYTES_MAX:
        raise TooLarge(f"the id {id[:20]}… is too long", limit="document_id_bytes_max", maximum=DOCUMENT_ID_BYTES_MAX)
    return id


def view_error(event: Event, error: object) -> ViewError:
    """Return an error of the user's code, with the event that it was called for."""
    trace = ""
    if isinstance(error, BaseException):
        frames = traceback.extract_tb(error.__traceback__)[1:]  # without the call here
        trace = _clean("".join(traceback.format_list(frames))[-ERROR_CHARACTERS_MAX:])
        told = f"{type(error).__name__}: {_text(error)}"
    else:
        told = str(error)
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    place = event.topic, event.partition, event.offset, str(event.id), event.type
    return ViewError(*place, _clean(told[:ERROR_CHARACTERS_MAX]), trace, now)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # it is the user's code, too
        return "(it cannot be shown)"


def _clean(text: str) -> str:
    """Return a text without characters that UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()


def encode_error(error: ViewError) -> str:
    """Return an error as it is stored."""
    return msgspec.json.encode(error).decode()


def decode_error(text: str | None) -> ViewError | None:
    """Return a stored error; None if there is none."""
    return None if text is None else _decode_error.decode(text)
