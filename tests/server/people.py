"""Users for tests: a file of them, passwords that are quick to check, a clock moved by hand, and what clients send."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import msgspec

from headwater.disk.disk import Clock, Disk
from headwater.server.users import Account, Cost, Password, Token, changing

QUICK = Cost(n=16, r=8, p=1)
SECRET = "correct horse"


class HandClock(Clock):
    """Time goes on only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def add(path: Path, name: str, *scopes: str, password: str = "", token: bool = False, subjects: str = "") -> str:
    """Add a user to the file, or replace it; the token, if one was to be made."""
    text, tokens = "", {}
    if token:
        id, text, kept = Token.new(Clock())
        tokens = {id: kept}
    with changing(path, Disk(), Clock()) as accounts:
        accounts[name] = Account(
            scopes=scopes or ("read,append,admin:*",),
            password=Password.of(password, Clock(), QUICK) if password else None,
            tokens=tokens,
            subjects=tuple(subjects.split("|")) if subjects else (),
        )
    return text


def revoke(path: Path, name: str) -> None:
    """Take all tokens of a user away."""
    with changing(path, Disk(), Clock()) as accounts:
        accounts[name] = msgspec.structs.replace(accounts[name], tokens={})


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def basic(name: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + b64encode(f"{name}:{password}".encode()).decode()}
