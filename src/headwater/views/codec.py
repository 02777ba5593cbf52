"""Documents as BSON: what a fold returns is stored as that, and what it is given was read from that."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from headwater.errors import Corrupt, Invalid, TooLarge, Unsupported
from headwater.format import names
from headwater.limits import DOCUMENT_BYTES_MAX, DOCUMENT_ID_BYTES_MAX


class Codec(NamedTuple):
    """How documents become bytes and back: `encode(document, False, encoding)`, `decode(data, options)`.

    Encoding raises what the codec raises for something else than a mapping, and for types that it does not know. With
    `decode_all(data, options)`, many that stand behind each other take a third of the time.
    """

    encode: Callable[[Any, bool, Any], bytes]
    decode: Callable[[bytes, Any], dict[str, Any]]
    decode_all: Callable[[bytes, Any], list[dict[str, Any]]]
    options: Any
    encoding: Any
    damage: type[Exception]  # what decoding raises for what is not BSON


@cache
def codec() -> Codec:
    """The codec of BSON. Raises Unsupported where it is not installed."""
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
        datetime_conversion=DatetimeConversion.DATETIME_AUTO,  # one that Python cannot hold stays a number
    )

    class Marked(dict[str, Any]):
        """What the codec looks for in the class of the options at each call, and takes long to see missing in others.

        It says that this is a dict like any other, and is used for nothing else while a document is encoded.
        """

        _type_marker = 0

    # Without the functions around them, which look at the arguments once more and take as long as the work itself.
    encode, decode = getattr(bson, "_dict_to_bson", bson.encode), getattr(bson, "_bson_to_dict", bson.decode)
    encoding = options.with_options(document_class=Marked)
    return Codec(encode, decode, bson.decode_all, options, encoding, BSONError)


def decode(data: bytes) -> dict[str, Any]:
    """A document that was stored, an object of its own; raises Corrupt if it is none."""
    found = codec()
    try:
        return found.decode(data, found.options)
    except found.damage as error:
        hint = "delete the binder's files while no application runs, and it is made again from the log"
        raise Corrupt(f"a document is damaged: {error}", hint=hint) from error


def encode(document: Any) -> bytes:
    """A document as it is stored; raises TypeError or what BSON raises for one that is none, and TooLarge."""
    found = codec()
    data = found.encode(document, False, found.encoding)
    if len(data) > DOCUMENT_BYTES_MAX:
        raise too_large(data)
    return data


def too_large(data: bytes) -> TooLarge:
    """A document above the limit."""
    return TooLarge(f"the document has {len(data)} bytes", limit="document_bytes_max", maximum=DOCUMENT_BYTES_MAX)


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
    if not id.isascii():
        names.utf8(id, "a document's id")  # raises for what UTF-8 does not have
    if len(id) > DOCUMENT_ID_BYTES_MAX // 4 and len(id.encode()) > DOCUMENT_ID_BYTES_MAX:
        raise TooLarge(f"the id {id[:20]}… is too long", limit="document_id_bytes_max", maximum=DOCUMENT_ID_BYTES_MAX)
    return id
