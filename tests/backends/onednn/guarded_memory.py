"""NumPy array memory that ends at an inaccessible page, and becomes inaccessible when released.

An access beyond an array, or through the address of a released one, crashes the process. New memory is filled with NaN,
so that unwritten elements show in a result.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections import deque
from ctypes import CFUNCTYPE, c_char, c_size_t, c_uint8, c_void_p, py_object
from typing import Any, Final

import numpy as np

__all__ = ["guard"]

_PAGE: Final = mmap.PAGESIZE
_SET_HANDLER: Final = 304  # PyDataMem_SetHandler in the table of NumPy's C API
_NOTHING, _PRIVATE, _FIXED, _ANONYMOUS, _UNRESERVED = 0, 2, 16, 32, 0x4000  # PROT_NONE, MAP_…, as on Linux and x86-64
_READ_AND_WRITE: Final = mmap.PROT_READ | mmap.PROT_WRITE
# Released arrays whose addresses are not reused, out of the 65,530 regions that a process may have.
_REMEMBERED: Final = 8192

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (c_void_p, c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.mmap.restype = c_void_p
_libc.munmap.argtypes = (c_void_p, c_size_t)
_libc.mprotect.argtypes = (c_void_p, c_size_t, ctypes.c_int)

_MALLOC: Final = CFUNCTYPE(c_void_p, c_void_p, c_size_t)
_CALLOC: Final = CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t)
_REALLOC: Final = CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)
_FREE: Final = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)


class _Handler(ctypes.Structure):
    """The struct `PyDataMem_Handler` of NumPy's C API."""

    _fields_ = (
        ("name", c_char * 127),
        ("version", c_uint8),
        ("context", c_void_p),
        ("malloc", _MALLOC),
        ("calloc", _CALLOC),
        ("realloc", _REALLOC),
        ("free", _FREE),
    )


# By address: the start of its pages, their length in bytes, and the size of the array in bytes.
_living: dict[int, tuple[int, int, int]] = {}
_released: deque[tuple[int, int]] = deque()
# Reentrant, since the garbage collector may release arrays while the lock is held.
_lock: Final = threading.RLock()


def _malloc(context: int | None, size: int, fill: int = 0xFF) -> int:
    room = -(-max(size, 1) // 16) * 16
    pages = -(-room // _PAGE) * _PAGE
    begin = _libc.mmap(None, pages + _PAGE, _READ_AND_WRITE, _PRIVATE | _ANONYMOUS, -1, 0)
    if begin == c_void_p(-1).value:
        return 0
    _libc.mprotect(begin + pages, _PAGE, _NOTHING)
    address: int = begin + pages - room
    if fill:
        ctypes.memset(address, fill, room)
    with _lock:
        _living[address] = begin, pages + _PAGE, size
    return address


def _free(context: int | None, address: int | None, size: int = 0) -> None:
    if not address:
        return
    with _lock:
        begin, length, _ = _living.pop(address)
        _released.append((begin, length))
        oldest = _released.popleft() if len(_released) > _REMEMBERED else None
    _libc.mmap(begin, length, _NOTHING, _PRIVATE | _FIXED | _ANONYMOUS | _UNRESERVED, -1, 0)
    if oldest:
        _libc.munmap(*oldest)


def _realloc(context: int | None, address: int | None, size: int) -> int:
    made = _malloc(context, size)
    if address:
        ctypes.memmove(made, address, min(size, _living[address][2]))
        _free(context, address)
    return made


_handler: Final = _Handler(
    b"guarded",
    1,
    None,
    _MALLOC(_malloc),
    _CALLOC(lambda context, count, each: _malloc(context, count * each, 0)),
    _REALLOC(_realloc),
    _FREE(_free),
)


def guard() -> None:
    """Use guarded memory for arrays of this thread, and of threads started from now on."""
    _use()
    run = threading.Thread.run

    def guarded(thread: threading.Thread) -> None:
        _use()
        run(thread)

    threading.Thread.run = guarded  # type: ignore[method-assign, assignment]


def _use() -> None:
    api = ctypes.pythonapi
    api.PyCapsule_New.restype, api.PyCapsule_New.argtypes = py_object, (c_void_p, ctypes.c_char_p, c_void_p)
    api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = c_void_p, (py_object, ctypes.c_char_p)
    core: Any = np._core  # type: ignore[attr-defined]
    table = ctypes.cast(api.PyCapsule_GetPointer(core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(c_void_p))
    use = ctypes.PYFUNCTYPE(py_object, py_object)(table[_SET_HANDLER] or 0)
    use(api.PyCapsule_New(ctypes.addressof(_handler), b"mem_handler", None))
