"""What a request asks for: the parts of its path, percent-decoded one by one, and its query."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import httptools

from headwater.errors import Invalid


def parts_of(url: bytes) -> tuple[tuple[str, ...], bytes]:
    """Return the parts and the raw query. A part may hold any character, also a slash: it is a name, never a path."""
    if url[:1] != b"/":
        try:
            parsed = httptools.parse_url(url)
        except httptools.HttpParserInvalidURLError as error:
            raise Invalid("the URL cannot be parsed", code="bad_request") from error
        path, query = parsed.path or b"/", parsed.query or b""
    else:
        path, _, query = url.partition(b"?")
        query = query.partition(b"#")[0]
    return decode_path(path), query


def decode_path(path: bytes) -> tuple[str, ...]:
    """The parts of a path that is still percent-encoded. A slash at its end means nothing: many clients add one."""
    if len(path) > 1:
        path = path.removesuffix(b"/")
    try:
        if b"%" in path:
            return tuple(unquote_to_bytes(part).decode() for part in path.split(b"/")[1:])
        return tuple(path.decode().split("/")[1:])
    except UnicodeDecodeError as error:
        raise Invalid("the URL is not UTF-8", code="bad_request") from error
