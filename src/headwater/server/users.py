"""The users file: names, credentials and scopes (docs/SECURITY.md).

JSON that holds no secret as it was typed: passwords as scrypt with a salt each, tokens as SHA-256. `read` and `decode`
return immutable `Users`, which are safe from any thread; `changing` replaces the file atomically, one process after
the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from headwater.disk.disk import Clock, Disk, wait_for_lock
from headwater.errors import Invalid, NotFound, Unavailable
from headwater.event import time_of
from headwater.limits import DEFAULTS, MIB, SERVER_DEFAULTS, ServerLimits
from headwater.server.rights import Scope, User

logger = logging.getLogger("headwater.server")


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cost of one scrypt: 128·n·r bytes of memory, and time in proportion to n·r·p."""

    n: int = 1 << 14
    r: int = 8
    p: int = 5

    def __post_init__(self) -> None:
        # A file that is wrong must not stop the server for minutes.
        if (
            self.n < 2
            or self.n & (self.n - 1)
            or not 1 <= self.p <= 64
            or not 1024 <= 128 * self.n * self.r <= 256 * MIB
        ):
            raise ValueError("the cost of a password is out of bounds")


COST = Cost()  # of the settings that OWASP names as equal, the one that takes little memory


class Password(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stored password."""

    cost: Cost
    salt: bytes
    hash: bytes

    @classmethod
    def of(cls, text: str, clock: Clock, cost: Cost = COST) -> Password:
        """Keep this password; takes a fifth of a second. Raises Invalid for one that is too short or too long."""
        limits = SERVER_DEFAULTS
        typed = text.encode()
        if not limits.password_bytes_min <= len(typed) <= limits.password_bytes_max:
            raise Invalid(
                f"a password must have {limits.password_bytes_min} to {limits.password_bytes_max} bytes",
                hint="for programs, use a token: 'headwater auth token'",
                code="bad_password",
            )
        salt = clock.random_bytes(16)
        return cls(cost, salt, _scrypt(typed, salt, cost))

    def is_of(self, typed: bytes) -> bool:
        """Return whether this is the password, in a time that does not tell how much of it is right."""
        return hmac.compare_digest(_scrypt(typed, self.salt, self.cost), self.hash)


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stored token. It is random, so one quick hash is enough: it cannot be found by brute force."""

    sha256: bytes
    made: datetime

    @classmethod
    def new(cls, clock: Clock) -> tuple[str, str, Token]:
        """Return a new one: its id, the token itself, which is shown once, and what is kept."""
        id = clock.random_bytes(4).hex()
        secret = urlsafe_b64encode(clock.random_bytes(32)).decode().rstrip("=")
        text = f"hw_{id}_{secret}"
        return id, text, cls(hashlib.sha256(text.encode()).digest(), time_of(clock.ticks()))


class Account(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One user in the file."""

    scopes: tuple[str, ...]
    password: Password | None = None
    tokens: dict[str, Token] = {}
    subjects: tuple[str, ...] = ()  # of certificates


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: Literal[1]
    users: dict[str, Account]


_decoder = msgspec.json.Decoder(_File)
_encoder = msgspec.json.Encoder()


class Users:
    """The users of a file, and the ways to find one. Raises Invalid with the code `bad_users` for what cannot be."""

    def __init__(self, accounts: dict[str, Account]) -> None:
        self.accounts = accounts
        self.users: dict[str, User] = {}
        self.by_token: dict[bytes, User] = {}
        self.by_subject: dict[str, User] = {}
        for name, account in accounts.items():
            check_name(name)
            user = self.users[name] = User(name, map(Scope.parse, account.scopes))
            for token in account.tokens.values():
                self.by_token[token.sha256] = user
            for subject in account.subjects:
                other = self.by_subject.setdefault(subject, user)
                if other is not user:
                    message = f"the subject {subject!r} belongs to both {other.name!r} and {name!r}"
                    raise Invalid(message, code="bad_users", subject=subject)
        # A password of no user, so that a login with an unknown name takes as long as any other.
        costs = [account.password.cost for account in accounts.values() if account.password is not None]
        self.nobody = Password(max(costs, key=lambda cost: cost.n * cost.r * cost.p, default=COST), b"", b"")


def read(path: Path, disk: Disk, limits: ServerLimits = SERVER_DEFAULTS) -> Users:
    """Return the users of a file. Raises NotFound, or Invalid if it is not a users file or is writable by others.

    Warns if others may read it: they could try passwords on their own machine.
    """
    try:
        mode, size = disk.mode(path), disk.file_size(path)
        data = disk.read_file(path) if size <= limits.users_file_bytes_max else None
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(
            f"the users file {path} does not exist",
            hint=f"create it: headwater auth add {path} NAME --token --scope 'read,append,admin:*'",
            code="users_not_found",
        ) from error
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}", code="users_unreadable") from error
    if data is None:
        message = f"{path} has {size} bytes; the limit is {limits.users_file_bytes_max}"
        raise Invalid(message, hint="check that it is a users file", code="bad_users_file")
    if mode & 0o022:
        hint = f"chmod 600 {path}"
        raise Invalid(f"the users file {path} is writable by others", hint=hint, code="users_file_exposed")
    if mode & 0o004:
        logger.warning("the users file %s is readable by everyone on this machine — chmod 600 %s", path, path)
    return decode(data, str(path))


def decode(data: bytes, path: str) -> Users:
    """Return the users of a file's bytes; raises Invalid with the code `bad_users_file`."""
    try:
        return Users(_decoder.decode(data).users)
    except (msgspec.DecodeError, Invalid) as error:
        hint = "'headwater auth' writes this file; docs/SECURITY.md describes it"
        raise Invalid(f"{path} is not a users file: {error}", hint=hint, code="bad_users_file") from error


@contextlib.contextmanager
def changing(path: Path, disk: Disk, clock: Clock) -> Iterator[dict[str, Account]]:
    """Return the accounts of a file, empty if it is not there; what they are at the end is written, durably.

    Nothing is written after an error. One process at a time: the lock is on the directory, as the file is replaced.
    """
    path = path.resolve()  # a link stays a link
    directory = disk.open_directory(path.parent)
    unlock = disk.unlocking(directory)  # which is C: a signal handler may keep `release` from beginning
    try:
        if not wait_for_lock(disk.hold, directory, clock, DEFAULTS.lock_wait_s):
            hint = f"find it with 'fuser {path.parent}'"
            raise Unavailable(f"another process holds the lock of {path.parent}", hint=hint, code="locked")
        accounts = dict(read(path, disk).accounts) if disk.inode(path) is not None else {}
        yield accounts
        Users(accounts)  # refuses what could not be read again
        data = msgspec.json.format(_encoder.encode(_File(1, accounts))) + b"\n"
        disk.replace(path, data, private=True)
    finally:
        unlock()
        disk.release(directory)


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a user: raises Invalid with the code `bad_user_name`."""
    most = SERVER_DEFAULTS.user_name_bytes_max
    if not 0 < len(name.encode(errors="replace")) <= most or ":" in name or not name.isprintable():
        message = f"invalid user name {name!r}"
        raise Invalid(message, hint=f"use 1 to {most} printable bytes without a colon", code="bad_user_name")


def _scrypt(typed: bytes, salt: bytes, cost: Cost) -> bytes:
    memory = 128 * cost.r * (cost.n + cost.p + 2)
    return hashlib.scrypt(typed, salt=salt, n=cost.n, r=cost.r, p=cost.p, maxmem=2 * memory, dklen=32)
