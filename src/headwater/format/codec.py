"""The codec of BSON, which is an extra: its fastest functions, with our options."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from headwater.errors import Unsupported


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
    """Return the codec of BSON. Raises Unsupported where it is not installed."""
    try:
        import bson
        from bson.binary import UuidRepresentation
        from bson.codec_options import CodecOptions, DatetimeConversion
        from bson.errors import BSONError
    except ImportError as error:
        raise Unsupported("this needs pymongo", hint="pip install 'headwater[bson]'") from error
    options: CodecOptions[dict[str, Any]] = CodecOptions(
        tz_aware=True,
        uuid_representation=UuidRepresentation.STANDARD,
        datetime_conversion=DatetimeConversion.DATETIME_AUTO,  # one that Python cannot hold stays a number
    )

    class BsonMarker(dict[str, Any]):
        """What the codec looks for in the class of the options at each call, and takes long to see missing in others.

        It says that this is a dict like any other, and is used for nothing else while a document is encoded.
        """

        _type_marker = 0

    # Without the functions around them, which look at the arguments once more and take as long as the work itself.
    encode, decode = getattr(bson, "_dict_to_bson", bson.encode), getattr(bson, "_bson_to_dict", bson.decode)
    encoding = options.with_options(document_class=BsonMarker)
    return Codec(encode, decode, bson.decode_all, options, encoding, BSONError)
