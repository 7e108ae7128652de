"""Memory-mapped files without an open descriptor; Python's `mmap` keeps one for each, and descriptors are limited."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from functools import lru_cache
from typing import Any


def mapped(fd: int, size: int, *, writable: bool = False, private: bool = False) -> memoryview:
    """Map the first `size` bytes of a file. They stay mapped as long as the view, or any object over it, exists.

    Args:
        fd: Descriptor of the file, which may be closed afterwards.
        size: Number of bytes.
        writable: Whether the memory can be written to.
        private: Whether writes stay in this mapping instead of reaching the file.

    Raises:
        OSError: the file cannot be mapped.
    """
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address = _system().mmap(None, size, protection, mmap.MAP_PRIVATE if private else mmap.MAP_SHARED, fd, 0)
    # MAP_FAILED is (void *) -1. ctypes returns None for address 0.
    if address in (None, ctypes.c_void_p(-1).value):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    # Every view and array over the memory refers to this object, which is therefore collected after the last of them.
    memory = (ctypes.c_char * size).from_address(address)
    # Not at exit: other objects may still use the memory then, and the system unmaps it anyway.
    weakref.finalize(memory, _system().munmap, address, size).atexit = False
    view = memoryview(memory).cast("B")
    return view if writable else view.toreadonly()


def mapped_file(fd: int, size: int) -> memoryview:
    """Map the first `size` bytes of a file for reading, on any system. They stay mapped as by `mapped`.

    Raises:
        OSError: the file cannot be mapped.
    """
    if os.name == "posix":
        return mapped(fd, size)
    return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))


@lru_cache(maxsize=1)
def _system() -> Any:
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    system.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t)
    system.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return system
