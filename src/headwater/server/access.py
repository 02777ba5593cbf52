"""Authentication and authorization: the interface between the server and its user directory.

`OpenAccess` allows everyone everything, for loopback. `FileAccess` (logins.py) reads a users file. Others come by
entry points of the group `headwater.access`. The server does, for each request:

    user = access.known(headers, client) or await store.blocking(access.check, headers, client)
    require(user, "append", topic)
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from headwater.errors import Denied, Invalid
from headwater.server.http.message import Client
from headwater.server.logins import FileAccess
from headwater.server.rights import EVERYONE, Action, Scope, User

__all__ = ["Access", "Action", "OpenAccess", "Scope", "User", "check_exposure", "chosen", "loopback", "require"]

logger = logging.getLogger("headwater.server")


@runtime_checkable
class Access(Protocol):
    """Authenticates clients.

    It is given headers with names in lower case, and a client whose address is without a port and whose certificate,
    if there is one, was verified.
    """

    authenticates: bool
    """Return whether it authenticates at all. If not, it is for loopback, or for `--insecure`."""

    challenge: str
    """The value of `WWW-Authenticate` in answers that say 401; empty for none."""

    def known(self, headers: Mapping[str, str], client: Client) -> User | None:
        """Return the user if it is known without waiting: on the loop's thread, in microseconds, without I/O.

        None when only `check` can tell. It raises nothing.
        """
        ...

    def check(self, headers: Mapping[str, str], client: Client) -> User:
        """Return the user, even if that takes long: called in a worker thread, several at once.

        Raises Denied with the code `unauthenticated`, or Unavailable where one is to wait before trying again. It may
        leave what it learned in `client.cache`, for `known`.
        """
        ...


class OpenAccess:
    """Everyone may do everything."""

    authenticates = False
    challenge = ""

    def known(self, headers: Mapping[str, str], client: Client) -> User | None:  # noqa: ARG002 - nobody is asked
        return EVERYONE

    def check(self, headers: Mapping[str, str], client: Client) -> User:  # noqa: ARG002 - as above
        return EVERYONE


BUILT_IN: dict[str, Callable[[str], Access]] = {"open": lambda _: OpenAccess(), "users": FileAccess}
GROUP = "headwater.access"
VERBS: dict[Action, str] = {"read": "read", "append": "append to", "admin": "administer"}


def chosen(spec: str) -> Access:
    """Return what `--access NAME[:ARGUMENT]` names: `open`, `users:FILE`, or an entry point, called with the argument.

    Raises Invalid with the code `bad_access` if there is no such thing; what an entry point raises passes through.
    """
    name, _, argument = spec.partition(":")
    factory = BUILT_IN.get(name) or _installed(name)
    access: object = factory(argument)
    if not isinstance(access, Access):
        missing = [part for part in ("authenticates", "challenge", "known", "check") if not hasattr(access, part)]
        message = f"the entry point {name!r} does not return an Access: it lacks {', '.join(missing)}"
        raise Invalid(message, code="bad_access", name=name)
    return access


def _installed(name: str) -> Callable[[str], Access]:
    found = entry_points(group=GROUP)
    named = {each.value: each for each in found if each.name == name}
    if len(named) != 1:
        there = ", ".join(sorted({*BUILT_IN, *(each.name for each in found)}))
        problem = "unknown access" if not named else f"{len(named)} installed packages provide an access"
        hint = f"available: {there}; add others as entry points of the group {GROUP!r}"
        raise Invalid(f"{problem} {name!r}", hint=hint, code="bad_access", name=name)
    try:
        factory: Callable[[str], Access] = named.popitem()[1].load()
    except (ImportError, AttributeError) as error:
        raise Invalid(f"the access {name!r} cannot be loaded: {error}", code="bad_access", name=name) from error
    return factory


def require(user: User, action: Action, topic: str | None) -> None:
    """Raise Denied with the code `forbidden` unless the user may do it. No topic stands for all of them."""
    if not user.may(action, topic):
        what = "all topics" if topic is None else f"topic {topic!r}"
        raise Denied(
            f"user {user.name!r} may not {VERBS[action]} {what}",
            hint=f"this needs a scope such as '{action}:{'*' if topic is None else topic}'",
            user=user.name,
            action=action,
            topic=topic,
        )


def check_exposure(host: str, access: Access, *, insecure: bool = False, tls: bool = False) -> None:
    """Refuse to serve the network without authentication, unless `--insecure` is given.

    Raises Invalid with the code `exposed`. Warns where everyone may do everything, and of secrets sent in the clear.
    """
    if loopback(host):
        return
    if not access.authenticates and not insecure:
        raise Invalid(
            f"{host or 'every address'} would listen on the network without authentication",
            hint="give --auth FILE (see 'headwater auth add'), or --insecure to allow everyone everything",
            code="exposed",
            host=host,
        )
    if not access.authenticates:
        logger.warning(
            "authentication is off: everyone who can reach %s may read, append and delete everything",
            host or "this machine",
        )
    elif not tls:
        logger.warning(
            "passwords and tokens are sent to %s unencrypted — give --tls-cert and --tls-key, or use a TLS proxy",
            host or "this machine",
        )


def loopback(host: str) -> bool:
    """Return whether only this machine can reach the address. A name other than `localhost` may lead anywhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
