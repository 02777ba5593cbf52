"""Every error that Headwater raises, in one tree by what the caller should do about it.

Each has a `code`, a stable string that is the same in every client and protocol, facts as attributes, and
a `hint` where a person can act. `str(error)` is one line: the message, and the hint after a dash.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from inspect import CO_GENERATOR
from types import FunctionType
from typing import Any, TypeVar

T = TypeVar("T")


class HeadwaterError(Exception):
    """The root. Catch it to catch everything that Headwater raises on purpose."""

    code = "error"

    def __init__(self, message: str, *, hint: str = "", code: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = facts
        if code:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} — {self.hint}" if self.hint else self.message

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.message, self.hint, self.code, self.facts)


class Invalid(HeadwaterError):
    """The request can never succeed as it is: change it."""

    code = "invalid"


class TooLarge(Invalid):
    """Something is above a limit of `limits.py`; the facts name the limit."""

    code = "too_large"


class NotFound(HeadwaterError):
    """A topic, partition, offset or directory is not there."""

    code = "not_found"


class Denied(HeadwaterError):
    """Say who you are (`unauthenticated`), or ask for the right to do it (`forbidden`)."""

    code = "forbidden"


class Conflict(HeadwaterError):
    """Somebody else was first: look again, then decide."""

    code = "conflict"


class Unavailable(HeadwaterError):
    """It cannot be done now, and nothing was done: a frozen log, a full disk, a lock that stays held."""

    code = "unavailable"


class Fenced(HeadwaterError):
    """A newer owner has taken over: stop."""

    code = "fenced"


class Corrupt(HeadwaterError):
    """Stored bytes are not what was written. `path`, `position`, `size`: the exact range of damaged bytes."""

    code = "corrupt"


class Closed(HeadwaterError):
    """The object was closed."""

    code = "closed"


class Unsupported(HeadwaterError):
    """This place, version or installation cannot do it."""

    code = "unsupported"


def out_of_memory(what: str) -> Unavailable:
    """Return the error for memory that the system did not give."""
    hint = "give the process more memory (ulimit -v, the limit of its container), or read less at once"
    return Unavailable(f"{what}: not enough memory", hint=hint, code="out_of_memory")


@contextlib.contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Turn a MemoryError of the block, or of the function that this decorates, into Unavailable."""
    try:
        yield
    except MemoryError as error:
        raise out_of_memory(what) from error


def within_memory(*but: str) -> Callable[[type[T]], type[T]]:
    """Decorate a class so that none of its verbs raises MemoryError: public methods, generators, `next` and `with`.

    `but` are those that see to it themselves, as they are called for each event.
    """

    def decorate(kind: type[T]) -> type[T]:
        for name, verb in list(vars(kind).items()):
            if isinstance(verb, FunctionType) and name not in but:
                if verb.__code__.co_flags & CO_GENERATOR:
                    setattr(kind, name, _generating(verb))
                elif not name.startswith("_") or name in ("__next__", "__enter__", "__exit__"):
                    setattr(kind, name, _calling(verb))
        return kind

    return decorate


def _calling(verb: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(verb)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return verb(*args, **options)
        except MemoryError as error:
            raise out_of_memory(f"{verb.__name__} failed") from error

    return call


def _generating(verb: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(verb)
    def generate(*args: Any, **options: Any) -> Iterator[Any]:
        try:
            yield from verb(*args, **options)
        except MemoryError as error:
            raise out_of_memory(f"{verb.__name__} failed") from error

    return generate


def _revive(kind: type[HeadwaterError], message: str, hint: str, code: str, facts: dict[str, Any]) -> HeadwaterError:
    return kind(message, hint=hint, code=code, **facts)
