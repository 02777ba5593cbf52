"""Maps of files that hold no descriptor: Python's own `mmap` keeps a copy of the file's until it is closed.

Every open log maps its tail, and a process has far fewer descriptors than it may have logs. Safe from any thread.
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

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
