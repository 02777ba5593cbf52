"""Opening the store that a command names, with the credentials of its options and of the environment."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headwater.address import is_directory, is_server
from headwater.environment import export_options, open_options
from headwater.errors import HeadwaterError, Unsupported

if TYPE_CHECKING:
    from headwater.store import Store

F = TypeVar("F", bound=Callable[..., Any])

FILES = {
    "token_file": "File whose first line is the token.",
    "tls_ca": "Certificate authorities to trust, in PEM format.",
    "tls_cert": "Client certificate, in PEM format.",
    "tls_key": "Key of the client certificate, in PEM format.",
}
COMPLETION_S = 1.0  # how long a shell waits at most: a server that is slow completes nothing
_META = "headwater.server"


def server_options(function: F) -> F:
    """Return the options for servers, which commands need not know of: `open_log` finds them."""
    for name, help in reversed(FILES.items()):
        option = f"--{name.replace('_', '-')}"
        settings: dict[str, Any] = {"metavar": "FILE", "help": help, "hidden": True}
        function = click.option(option, expose_value=False, callback=_note, **settings)(function)
    return function


def directory_of(data: str) -> Path:
    """Return the path of a directory, for what needs one; raises Unsupported for an address."""
    if not is_directory(data):
        raise Unsupported(f"{data!r} is not a directory", hint="give the path of a directory")
    return Path(data)


def open_log(data: str, **options: Any) -> Store:
    """As `headwater.open`; for a server or a bucket, with what the options and the environment say of it."""
    import headwater

    return headwater.open(data, **options, **credentials(data))


def credentials(data: str) -> dict[str, Any]:
    """Return the options of `headwater.open` that the command line and the environment give for an address."""
    context = click.get_current_context(silent=True)
    return open_options(data, context.meta.get(_META) if context is not None else None)


def tell_workers(data: str) -> None:
    """Put the credentials into the environment of the worker processes that a job starts."""
    export_options(credentials(data))


def complete(data: str, ask: Callable[[Store], list[str]]) -> list[str]:
    """Return names in a log for a shell to complete; none if the log cannot be read quickly."""
    from headwater import open  # whatever has to be imported is not what a server is waited for

    found: list[str] = []
    server = credentials(data) | {"timeout": COMPLETION_S, "retry": 0.0} if is_server(data) else {}

    def look() -> None:
        with contextlib.suppress(HeadwaterError, OSError), open(data, mode="existing", **server) as hw:
            found.extend(ask(hw))

    if server:
        asking = threading.Thread(target=look, daemon=True)  # looking up a name cannot be cut short
        asking.start()
        asking.join(COMPLETION_S)
    else:
        look()
    return list(found)


def _note(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta.setdefault(_META, {})[param.name] = value
