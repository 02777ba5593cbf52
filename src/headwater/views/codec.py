"""Documents as BSON: what a fold returns is stored as that, and what it is given was read from that."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from headwater.errors import Corrupt, Invalid, TooLarge, Unsupported
from headwater.limits import DOCUMENT_BYTES_MAX, DOCUMENT_ID_BYTES_MAX

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], dict[str, Any]]


@cache
def codec() -> tuple[Encode, Decode]:
    """How documents become bytes and back. Raises Unsupported where the codec of BSON is not installed.

    Encoding raises Invalid for what is no document, TooLarge, or what the codec raises for types it does not know.
    Decoding raises Corrupt for what is not BSON.
    """
    try:
        import bson
        from bson.binary import UuidRepresentation
        from bson.codec_options import CodecOptions, DatetimeConversion
        from bson.errors import BSONError
    except ImportError as error:
        raise Unsupported("documents need the codec of BSON", hint="pip install 'headwater[bson]'") from error
    options: CodecOptions[dict[str, Any]] = CodecOptions(
        tz_aware=True,
        uuid_representation=UuidRepresentation.STANDARD,
        datetime_conversion=DatetimeConversion.DATETIME_AUTO,
    )
    to_bytes, from_bytes = bson.encode, bson.decode

    def encode(document: Any) -> bytes:
        if not isinstance(document, dict):
            raise Invalid(
                f"a document is a dict, not {type(document).__name__}", hint="return a dict, or None to delete it"
            )
        data = to_bytes(document, False, options)
        if len(data) > DOCUMENT_BYTES_MAX:
            raise TooLarge(
                f"the document has {len(data)} bytes", limit="document_bytes_max", maximum=DOCUMENT_BYTES_MAX
            )
        return data

    def decode(data: bytes) -> dict[str, Any]:
        try:
            return from_bytes(data, options)
        except BSONError as error:
            hint = "delete the binder's files while no application runs, and it is made again from the log"
            raise Corrupt(f"a document is damaged: {error}", hint=hint) from error

    return encode, decode


def document_id(key: Any) -> str | None:
    """The id of a document, from a key of whatever kind; None stands for no document. Raises Invalid."""
    if key.__class__ is str:
        id = key
    elif key is None:
        return None
    elif isinstance(key, bytes):
        try:
            id = key.decode()
        except UnicodeDecodeError:
            raise Invalid(f"the key {key!r} is not UTF-8", hint="give a key= that makes text of it") from None
    elif isinstance(key, int) and not isinstance(key, bool):
        id = str(int(key))
    elif isinstance(key, str):
        id = str(key)
    else:
        raise Invalid(f"a document's id is text, not {type(key).__name__}", hint="give a key= that makes text of it")
    if len(id) > DOCUMENT_ID_BYTES_MAX // 4 and len(id.encode()) > DOCUMENT_ID_BYTES_MAX:
        raise TooLarge(f"the id {id[:20]}… is too long", limit="document_id_bytes_max", maximum=DOCUMENT_ID_BYTES_MAX)
    return id
