"""From what the command line names to an open log: a directory, or a server and who asks it.

A token in an argument would be in the list of processes, so it comes from the environment (HEADWATER_TOKEN, or
HEADWATER_USER as name:password) or from a file.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headwater.errors import HeadwaterError, Invalid, Unsupported

if TYPE_CHECKING:
    from headwater.api import Log

F = TypeVar("F", bound=Callable[..., Any])

FILES = {
    "token_file": "A file whose first line is the token.",
    "tls_ca": "The authorities to trust, in PEM format.",
    "tls_cert": "The certificate that says who asks.",
    "tls_key": "Its key.",
}
COMPLETION_S = 1.0  # how long a shell waits at most: a server that is slow completes nothing
_META = "headwater.server"


def server_options(function: F) -> F:
    """The options for servers, which commands need not know of: `open_log` finds them."""
    for name, help in reversed(FILES.items()):
        option = f"--{name.replace('_', '-')}"
        variable = f"HEADWATER_{name.upper()}"
        settings: dict[str, Any] = {"metavar": "FILE", "envvar": variable, "help": help, "hidden": True}
        function = click.option(option, expose_value=False, callback=_note, **settings)(function)
    return function


def is_server(data: str) -> bool:
    """Whether it is the address of a server, and not the path of a directory."""
    return data.startswith(("http://", "https://"))


def is_bucket(data: str) -> bool:
    """Whether it is the address of an object store."""
    return data.startswith(("s3://", "objects://"))


def directory_of(data: str) -> Path:
    """The path of a directory, for what needs one; raises Unsupported for an address."""
    if "://" in data:
        raise Unsupported(f"{data!r} is not a directory", hint="give the path of one")
    return Path(data)


def open_log(data: str, **options: Any) -> Log:
    """As `headwater.open`; for a server or a bucket, with what the options and the environment say of it."""
    import headwater

    return headwater.open(data, **options, **credentials(data))


def credentials(data: str) -> dict[str, Any]:
    """What the options and the environment say of who asks, if it is a server; of a bucket, where its leases are."""
    if is_bucket(data):
        return {"coordinator": os.environ.get("HEADWATER_COORDINATOR")}
    return _credentials() if is_server(data) else {}


def tell_workers(data: str) -> None:
    """Have the workers of a job, which are started from here, know who asks: from their environment, as always."""
    for name, value in credentials(data).items():
        if isinstance(value, str):
            os.environ[f"HEADWATER_{name.upper()}"] = value


def complete(data: str, ask: Callable[[Log], list[str]]) -> list[str]:
    """What a log has for a shell to complete; nothing if it cannot be had, or not soon."""
    from headwater import open  # whatever has to be imported is not what a server is waited for

    found: list[str] = []
    server = _credentials() | {"timeout": COMPLETION_S, "retry": 0.0} if is_server(data) else {}

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


def _credentials() -> dict[str, Any]:
    context = click.get_current_context(silent=True)
    files: dict[str, str] = dict(context.meta.get(_META, {})) if context is not None else {}
    named = files.pop("token_file", None)
    user = os.environ.get("HEADWATER_USER")
    found: dict[str, Any] = dict(files)
    if named is not None:
        found["token"] = _token(Path(named))
    elif os.environ.get("HEADWATER_TOKEN"):
        found["token"] = os.environ["HEADWATER_TOKEN"].strip()
    elif user:
        name, colon, password = user.partition(":")
        if not colon:
            raise Invalid("HEADWATER_USER has no password", hint="it is name:password")
        found["user"] = name, password
    return found


def _token(path: Path) -> str:
    lines = path.read_text().splitlines()
    if not lines or not lines[0].strip():
        raise Invalid(f"{path} holds no token", hint="its first line is the token that 'headwater auth add' printed")
    return lines[0].strip()
