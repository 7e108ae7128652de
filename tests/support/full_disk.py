"""A disk, or a store, with room for a given number of bytes."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["Room", "room_for"]


class Room:
    """Room for `left` more bytes in files; `used` counts the bytes written."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.used = 0

    def take(self, wanted: int) -> int:
        """Reserve up to `wanted` bytes, and return how many fit.

        Raises:
            OSError: ENOSPC: nothing fits.
        """
        taken = min(wanted, self.left)
        if wanted and not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= taken
        self.used += taken
        return taken


@contextmanager
def room_for(count: int) -> Iterator[Room]:
    """Limit new files (`open(…, "xb")`) and objects in fsspec's memory to `count` bytes during the block."""
    room = Room(count)

    class File(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(memoryview(data).cast("B")[: room.take(memoryview(data).nbytes)])

    opened: Any = open

    def open_path(path: Any, mode: str = "r", *args: Any, opener: Any = None, **options: Any) -> Any:
        if mode == "xb":
            return io.BufferedWriter(File(path, "x", opener=opener))
        return opened(path, mode, *args, opener=opener, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", open_path)
        _limit_memory(patch, room)
        yield room


def _limit_memory(patch: pytest.MonkeyPatch, room: Room) -> None:
    try:
        from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
    except ImportError:
        return
    write, pipe = MemoryFile.write, MemoryFileSystem.pipe_file

    def write_all(file: Any, data: Any) -> Any:
        whole = memoryview(data).cast("B")
        written = write(file, whole[: room.take(whole.nbytes)])
        return written if written == whole.nbytes else written + write_all(file, whole[written:])

    def pipe_all(system: Any, path: str, value: bytes, **options: Any) -> None:
        if room.left < len(value):
            room.left = 0
        room.take(len(value))
        pipe(system, path, value, **options)

    patch.setattr(MemoryFile, "write", write_all)
    patch.setattr(MemoryFileSystem, "pipe_file", pipe_all)
