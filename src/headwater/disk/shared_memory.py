"""Memory that processes share: maps of files without a descriptor, and threads that sleep on words of it.

Every open log maps its tail, and a process has far fewer descriptors than it may have logs; Python's own `mmap` keeps a
copy of the file's descriptor until it is closed. Threads sleep on Linux futexes, and poll where there are none. A
waiter gives the value that it saw; if the word has changed since, it does not sleep, so no wake-up is lost. Safe from
any thread.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

POLL_S = 0.05  # how often to look where the kernel cannot wake us: 20 looks a second

_FUTEX_NUMBER = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "armv7l": 240}.get(platform.machine())
_FUTEX_WAITV_NUMBER = 449  # the same on every architecture; Linux 5.16 or newer
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_FUTEX2_SIZE_U32 = 2
_CLOCK_MONOTONIC = 1
_WAITV_MAX = 128
_WORD = struct.Struct("<I")
_ALL = 2**31 - 1

_syscall = ctypes.CDLL(None, use_errno=True).syscall if sys.platform == "linux" and _FUTEX_NUMBER else None


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


class _FutexWaiter(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


def wake(mapped: Any, position: int) -> None:
    """Wake all threads that wait on the word."""
    if _syscall is not None:
        word = ctypes.c_uint32.from_buffer(mapped, position)
        _syscall(_FUTEX_NUMBER, ctypes.byref(word), _FUTEX_WAKE, _ALL, None, None, 0)


def wait(words: Sequence[tuple[Any, int, int]], timeout_s: float) -> None:
    """Sleep until a word (map, position, expected value) is woken or has changed, or the time is over.

    May return early without a reason, so callers look again. A signal ends it, so that Ctrl-C works.
    """
    if any(_WORD.unpack_from(mapped, position)[0] != value for mapped, position, value in words):
        return
    if _syscall is None or len(words) > _WAITV_MAX or any(mapped_read_only(mapped) for mapped, _, _ in words):
        time.sleep(min(timeout_s, POLL_S))
    elif len(words) == 1:
        _wait_one(*words[0], timeout_s)
    else:
        _wait_any(words, timeout_s)


def mapped_read_only(mapped: Any) -> bool:
    """A futex needs the address of the word, which ctypes gives only for writable memory."""
    return memoryview(mapped).readonly


def _wait_one(mapped: Any, position: int, value: int, timeout_s: float) -> None:
    assert _syscall is not None
    word = ctypes.c_uint32.from_buffer(mapped, position)
    limit = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
    _syscall(_FUTEX_NUMBER, ctypes.byref(word), _FUTEX_WAIT, value, ctypes.byref(limit), None, 0)


def _wait_any(words: Sequence[tuple[Any, int, int]], timeout_s: float) -> None:
    assert _syscall is not None
    held = [ctypes.c_uint32.from_buffer(mapped, position) for mapped, position, _ in words]
    waiters = (_FutexWaiter * len(words))(
        *(
            _FutexWaiter(value, ctypes.addressof(word), _FUTEX2_SIZE_U32, 0)
            for word, (_, _, value) in zip(held, words, strict=True)
        )
    )
    until = time.monotonic() + timeout_s
    limit = _Timespec(int(until), int(until % 1 * 1e9))
    result = _syscall(_FUTEX_WAITV_NUMBER, ctypes.byref(waiters), len(words), 0, ctypes.byref(limit), _CLOCK_MONOTONIC)
    if result == -1 and ctypes.get_errno() == errno.ENOSYS:
        time.sleep(min(timeout_s, POLL_S))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64 if ctypes.sizeof(ctypes.c_long) == 8 else ctypes.c_long,  # off_t, as `mmap` has it there
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


class _MappedPages:
    """Mapped memory that numpy can look at; unmapped with the last view of it."""

    def __init__(self, fd: int, size: int, *, write: bool) -> None:
        self._unmap = _libc.munmap
        self._address = 0
        self._size = size
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
        address = _libc.mmap(None, size, protection, mmap.MAP_SHARED, fd, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._address = address
        self.__array_interface__ = {"data": (address, not write), "shape": (size,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        if self._address:
            self._unmap(self._address, self._size)


def map_file(fd: int, size: int, *, write: bool) -> memoryview:
    """Map the first `size` bytes of an open file, which may be closed then; raises OSError. Shared by all processes."""
    return np.asarray(_MappedPages(fd, size, write=write)).data
