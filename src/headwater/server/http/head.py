"""Encodes the head of a response: its status line and headers."""

from __future__ import annotations

from http import HTTPStatus

from headwater.server.http.message import Response

_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus}
SAFE = b"x-content-type-options: nosniff\r\ncache-control: no-store\r\n"  # nothing of a log is for others' caches


def head(
    response: Response, *, length: int | None, close: bool, chunked: bool = True, keep_alive: bool = False
) -> bytes:
    """Return the status line and the headers of an answer; `keep_alive` says what clients of HTTP/1.0 must be told."""
    lines = [b"HTTP/1.1 %d %b\r\n" % (response.status, _PHRASES.get(response.status, b"")), SAFE]
    lines += [f"{name}: {value}\r\n".encode("latin-1") for name, value in response.headers]
    if length is not None:
        if response.status != 204:
            lines.append(b"content-length: %d\r\n" % length)
    elif chunked:
        lines.append(b"transfer-encoding: chunked\r\n")
    if close:
        lines.append(b"connection: close\r\n")
    elif keep_alive:
        lines.append(b"connection: keep-alive\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
