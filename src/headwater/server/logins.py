"""Access by a users file: tokens, passwords and certificates.

`Attempts` limits guesses of passwords: failures of each address, and concurrent checks. Its memory is bounded.
`known` uses dictionaries only. `check` reloads a changed file first, so that a new token is valid at once. A revoked
token is valid for at most `users_look_s`: if the file was not checked for that long, `known` defers to `check`.
Safe from any thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import logging
import math
from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any

from headwater.disk.disk import Clock, Disk
from headwater.errors import Denied, HeadwaterError, Unavailable
from headwater.limits import SERVER_DEFAULTS, ServerLimits
from headwater.server.http.message import Client
from headwater.server.rights import User
from headwater.server.users import Password, read

logger = logging.getLogger("headwater.server")


class FileAccess:
    """The users of a file. The constructor raises as `users.read` does; later, an invalid file is only logged."""

    authenticates = True
    challenge = 'Bearer realm="headwater", Basic realm="headwater", charset="UTF-8"'

    def __init__(
        self,
        path: str | Path,
        *,
        limits: ServerLimits = SERVER_DEFAULTS,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._path = Path(path)
        self._limits = limits
        self._disk = disk or Disk()
        self._clock = clock or Clock()
        self._attempts = Attempts(limits, self._clock)
        self._key = self._clock.random_bytes(32)
        self._renewing = Lock()  # protects _seen and _look_at: one thread reads the file
        self._seen = self._disk.inode(self._path)  # before it is read: what changes meanwhile is then seen as new
        self._users = read(self._path, self._disk, limits)
        self._look_at = self._clock.monotonic() + limits.users_look_s

    def known(self, headers: Mapping[str, str], client: Client) -> User | None:
        return self._look_up(headers, client) if self._clock.monotonic() < self._look_at else None

    def check(self, headers: Mapping[str, str], client: Client) -> User:
        self._renew()
        found = self._look_up(headers, client)
        if found is not None:
            return found
        said = headers.get("authorization")
        if said is None and client.certificate is None:
            raise _unauthenticated("credentials required", "send 'Authorization: Bearer TOKEN', or a name and password")
        if said is None:
            raise _unauthenticated(
                f"the certificate's subject {client.certificate!r} belongs to no user",
                f"headwater auth change FILE NAME --subject '{client.certificate}'",
            )
        scheme, _, credentials = said.partition(" ")
        if scheme.lower() == "basic":
            return self._by_password(said, credentials, client)
        if scheme.lower() == "bearer":
            raise _unauthenticated("unknown token", "it was revoked, or belongs to another server")
        raise _unauthenticated(f"unsupported Authorization scheme {scheme[:40]!r}: use Bearer or Basic", "")

    def _look_up(self, headers: Mapping[str, str], client: Client) -> User | None:
        """Return the user, from memory alone; None if it is not known."""
        said = headers.get("authorization")
        users = self._users
        if said is None:
            return users.by_subject.get(client.certificate) if client.certificate is not None else None
        if said[:7].lower() == "bearer ":
            # Looked up by its hash, a token cannot be found letter by letter from the time that it takes.
            return users.by_token.get(hashlib.sha256(said[7:].strip().encode(errors="replace")).digest())
        name, password = _proofs(client).get(self._digest(said), ("", None))
        account = users.accounts.get(name)
        return users.users[name] if account is not None and account.password == password else None

    def _by_password(self, said: str, credentials: str, client: Client) -> User:
        name, typed = _name_and_password(credentials)
        with self._attempts.turn(client.address):
            users = self._users
            account = users.accounts.get(name)
            password = account.password if account is not None else None
            if not (password or users.nobody).is_of(typed):
                self._attempts.failed(client.address)
                raise _unauthenticated("wrong user name or password", "")
        assert password is not None  # nobody's has no hash
        proofs = _proofs(client)
        if len(proofs) >= self._limits.proofs_max:
            proofs.clear()
        proofs[self._digest(said)] = name, password
        return users.users[name]

    def _digest(self, said: str) -> bytes:
        """Return what stands for a password in memory: useless without a key that is new in each process."""
        return hashlib.blake2b(said.encode(errors="replace"), key=self._key, digest_size=32).digest()

    def _renew(self) -> None:
        """Read the file again if it has changed. While it is missing or wrong, the users stay as they are."""
        with self._renewing:
            looked = self._clock.monotonic()
            try:
                seen = self._disk.inode(self._path)
                if seen != self._seen:
                    self._seen = seen
                    self._users = read(self._path, self._disk, self._limits)
            except (HeadwaterError, OSError) as error:
                # A slip of an editor must neither lock everyone out nor let anyone in.
                logger.warning("the users file was not reloaded: %s", error)
            self._look_at = looked + self._limits.users_look_s


def _proofs(client: Client) -> dict[bytes, tuple[str, Password | None]]:
    """Return the passwords that a connection has shown to be right, by the digest of what was sent."""
    found: dict[Any, Any] = client.cache.setdefault("proofs", {})
    return found


def _name_and_password(credentials: str) -> tuple[str, bytes]:
    try:
        name, colon, typed = b64decode(credentials.strip(), validate=True).partition(b":")
        if colon:
            return name.decode(), typed
    except ValueError:
        pass
    raise _unauthenticated("malformed Authorization: Basic header: it takes name:password in base64", "")


def _unauthenticated(message: str, hint: str) -> Denied:
    return Denied(message, hint=hint, code="unauthenticated")


class Attempts:
    """The failures of each address, and turns to check a password."""

    def __init__(self, limits: ServerLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._mutex = Lock()  # protects what follows
        self._free_at: dict[
            str, float
        ] = {}  # when all failures of an address are forgotten; the last to fail at the end
        self._queue = BoundedSemaphore(limits.password_queue_max)
        self._checks = BoundedSemaphore(limits.password_checks_max)

    @contextlib.contextmanager
    def turn(self, address: str) -> Iterator[None]:
        """Wait for a turn to check a password; raises Unavailable if there were too many failures, or too many wait."""
        self._admit(_network(address))
        if not self._queue.acquire(blocking=False):
            raise Unavailable("too many passwords are waiting to be checked", hint="try again soon", code="overloaded")
        try:
            with self._checks:
                yield
        finally:
            self._queue.release()

    def failed(self, address: str) -> None:
        """Count a wrong password."""
        network, now = _network(address), self._clock.monotonic()
        with self._mutex:
            since = max(self._free_at.pop(network, now), now)
            self._free_at[network] = since + self._limits.password_retry_s
            if len(self._free_at) > self._limits.password_addresses_max:
                self._free_at.pop(next(iter(self._free_at)))

    def _admit(self, network: str) -> None:
        allowed = self._limits.password_retry_s * (self._limits.password_failures_max - 1)
        wait_s = self._free_at.get(network, -math.inf) - self._clock.monotonic() - allowed
        if wait_s > 0:
            raise Unavailable(
                f"too many wrong passwords from {network}",
                hint=f"wait {math.ceil(wait_s)} s; tokens are not limited",
                code="too_many_failures",
                retry_s=math.ceil(wait_s),
            )


def _network(address: str) -> str:
    """Return the network whose failures count together: one address, or the 2^64 of IPv6 that one customer has."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found.packed, 64), strict=False))
