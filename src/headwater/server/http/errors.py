"""Errors as responses: a status for what the caller should do, and the error as JSON (docs/HTTP.md, "Errors")."""

from __future__ import annotations

from typing import Any

import msgspec

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
from headwater.server.http.message import JSON, Headers, Response, whole

STATUS_BY_KIND: dict[type[HeadwaterError], int] = {
    TooLarge: 413,
    Invalid: 400,
    Denied: 403,
    NotFound: 404,
    Conflict: 409,
    Fenced: 409,
    Unavailable: 503,
    Closed: 503,
    Corrupt: 500,
    Unsupported: 501,
}
STATUS_BY_CODE = {
    "offset_gone": 410,
    "not_acceptable": 406,
    "unsupported_media_type": 415,
    "method_not_allowed": 405,
    "expectation_failed": 417,
    "timeout": 408,
    "headers_too_large": 431,
    "unauthenticated": 401,
    "forbidden": 403,
    "too_many_failures": 429,
    "query_failed": 500,
}
RETRY_AFTER_S = 1
_encode = msgspec.json.Encoder(enc_hook=str).encode


def status_of(error: HeadwaterError) -> int:
    """Return the status that tells the caller what to do."""
    found = STATUS_BY_CODE.get(error.code)
    if found is not None:
        return found
    return next((status for kind, status in STATUS_BY_KIND.items() if isinstance(error, kind)), 500)


def kind_of(error: HeadwaterError) -> str:
    """Return the name of its class, of those that clients know."""
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "headwater.errors"), "Error")


def response_of(error: HeadwaterError, headers: Headers = ()) -> Response:
    """Return the answer to a request that failed."""
    return _response(status_of(error), kind_of(error), error.code, error.message, error.hint, error.facts, headers)


def error_line(error: HeadwaterError) -> bytes:
    """Return the last line of an answer of lines that cannot go on."""
    return b'{"error":' + whole(response_of(error)) + b"}\n"


def of_status(status: int, message: str, code: str, hint: str, headers: Headers = ()) -> Response:
    """Return the answer to what is wrong with the HTTP itself."""
    kind = "Unavailable" if status == 503 else "Error" if status == 500 else "Invalid"
    return _response(status, kind, code, message, hint, {}, headers)


def _response(
    status: int, kind: str, code: str, message: str, hint: str, facts: dict[str, Any], headers: Headers
) -> Response:
    told = {"kind": kind, "code": code, "message": message, "hint": hint, "facts": facts}
    if status == 405:
        headers = (*headers, ("allow", facts["allow"]))
    if status in (429, 503):
        headers = (*headers, ("retry-after", str(facts.get("retry_s", RETRY_AFTER_S))))
    return Response(status, (("content-type", JSON), *headers), _encode(told))
