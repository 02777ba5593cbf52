"""A match as text, as it comes from a command line or over a wire: JSON, in which Extended JSON names BSON's types.

`bad_match` makes the error for every match that is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headwater.errors import Invalid, Unsupported
from headwater.limits import MATCH_BYTES_MAX

EXTENDED = frozenset(
    (
        "$binary",
        "$date",
        "$numberDecimal",
        "$numberDouble",
        "$numberInt",
        "$numberLong",
        "$oid",
        "$timestamp",
        "$uuid",
    )
)
_EXTENDED_HINT = """as in {"$oid": "65f1c0ffee65f1c0ffee65f1"} or {"$date": "2025-03-01T12:00:00Z"}"""
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def parse(text: str | bytes) -> dict[str, Any]:
    """Return the match that a JSON text holds, for `compile`; raises Invalid with the code `bad_match`."""
    encoded = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if len(encoded) > MATCH_BYTES_MAX:
        raise bad_match(
            f"a match may have at most {MATCH_BYTES_MAX} bytes, not {len(encoded)}", "match on fewer values"
        )
    try:
        found = _decode(encoded)
    except (ValueError, RecursionError) as error:
        raise bad_match(f"the match is not JSON: {error}", """write it like {"total": {"$gt": 10}}""") from error
    if not isinstance(found, dict):
        raise bad_match("a match is a JSON object", """write it like {"total": {"$gt": 10}}""")
    return found


def is_extended(value: Mapping[str, Any]) -> bool:
    """Return whether an object is a value of BSON in Extended JSON, as in `{"$date": "2025-03-01T12:00:00Z"}`."""
    return next(iter(value), None) in EXTENDED


def extended(value: Mapping[str, Any]) -> Any:
    """Return the value that Extended JSON names; raises Invalid, or Unsupported without BSON's codec."""
    try:
        from bson import json_util
    except ImportError as error:
        raise Unsupported("BSON values need pymongo", hint="pip install 'headwater[bson]'") from error
    name = next(iter(value))
    options = json_util.JSONOptions(tz_aware=True)
    try:
        found = json_util.loads(_encode(value).decode(), json_options=options)
    except Exception as error:  # the codec raises whatever its parts raise, and all of it means the same
        raise bad_match(f"{name} has no valid value of Extended JSON", _EXTENDED_HINT) from error
    if isinstance(found, dict):
        raise bad_match(f"{name} has no valid value of Extended JSON", _EXTENDED_HINT)
    return found


def bad_match(message: str, hint: str) -> Invalid:
    return Invalid(message, hint=hint, code="bad_match")
