"""Errors of a local log: from what the system says to what the caller can do about it."""

from __future__ import annotations

import errno

from headwater.directory.log_directory import LogDirectory
from headwater.errors import Conflict, Unavailable

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a write says when there is no space for it: on the disk, for this user, or for this process."""


def unavailable(place: LogDirectory, what: str, error: OSError) -> Unavailable:
    """Return the error for an operation that the disk refused."""
    if error.errno in FULL:
        hint, code = "the disk is full: free some space and try again", "disk_full"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint, code = "reading works; to append, make it writable for this user", "read_only"
    else:
        hint, code = "check the disk, then reopen the log", "disk_failed"
    path = error.filename or place.path
    message = f"{place}: {what}: {error.strerror or error}: {path}"
    return Unavailable(message, hint=hint, code=code, errno=error.errno, path=str(path))


def unjournaled(error: OSError) -> Unavailable:
    """Return the error for a transaction whose entry could not be written: nothing of it is done."""
    full = error.errno in FULL
    return Unavailable(
        f"the transaction cannot be written: {error.strerror or error}",
        hint="free some space on the disk" if full else "check the disk and its permissions",
        code="disk_full" if full else "disk_failed",
        errno=error.errno,
    )


def frozen(place: LogDirectory) -> Unavailable:
    """Return the error for a log in which a sync failed, and that no process has opened since."""
    return Unavailable(
        f"{place} is frozen because a sync failed; nothing acknowledged is lost",
        hint="fix the disk, then reopen the log",
        code="frozen",
    )


def locked(place: LogDirectory) -> Unavailable:
    """Return the error for a lock that another process does not release."""
    return Unavailable(
        f"{place} has been locked by another process for more than {place.limits.lock_wait_s:g} s",
        hint=f"is a process stopped or stuck? 'fuser {place.lock}' shows it",
        code="locked",
    )


def being_sealed(place: LogDirectory, base: int) -> Unavailable:
    """Return the error for a segment that another process does not release."""
    return Unavailable(
        f"{place}: another process has been sealing segment {base} for more than {place.limits.lock_wait_s:g} s",
        hint=f"is a process stopped or stuck? 'fuser {place.segment(base)}' shows it",
        code="locked",
    )


def repeated(place: LogDirectory) -> Conflict:
    """Return the error for a transaction that was committed before; the retry gets the first answer instead of it."""
    return Conflict(f"{place}: the transaction was already committed", code="transaction_repeated")
