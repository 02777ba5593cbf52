"""The one reader of `HEADWATER_*` environment variables that configure how a store is opened.

Secrets come from the environment or from a file, never from arguments or options of a job: those are seen in the list
of processes, in plans and in logs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from headwater.address import is_bucket, is_server
from headwater.errors import Invalid

FILES = ("tls_ca", "tls_cert", "tls_key")


def open_options(address: str, given: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the options of `open` for an address: credentials for a server, the coordinator for a bucket.

    `given` names files (and `token_file`) that count instead of the environment. Raises Invalid.
    """
    if is_bucket(address):
        return _without_none({"coordinator": _variable("coordinator")})
    return _server_options(given or {}) if is_server(address) else {}


def export_options(options: Mapping[str, Any]) -> None:
    """Put options of `open` into the environment, where the worker processes of a job find them."""
    for name, value in options.items():
        if isinstance(value, str | tuple):
            os.environ[f"HEADWATER_{name.upper()}"] = value if isinstance(value, str) else ":".join(value)


def _server_options(given: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {name: given.get(name) or _variable(name) for name in FILES}
    token_file = given.get("token_file") or _variable("token_file")
    if token_file is not None:
        options["token"] = _first_line(token_file)
    elif (token := _variable("token")) is not None:
        options["token"] = token.strip()
    elif (user := _variable("user")) is not None:
        name, colon, password = user.partition(":")
        if not colon:
            raise Invalid("HEADWATER_USER has no password", hint="set it to name:password")
        options["user"] = name, password
    return _without_none(options)


def _variable(name: str) -> str | None:
    return os.environ.get(f"HEADWATER_{name.upper()}") or None


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            token = file.readline().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"the token file {path} cannot be read: {error}", hint="its first line is the token") from error
    if not token:
        raise Invalid(f"{path} contains no token", hint="its first line is the token that 'headwater auth add' printed")
    return token


def _without_none(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
