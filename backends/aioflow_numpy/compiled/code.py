"""C programs as functions of this process: already loaded, found on disk, or compiled, which takes long."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_ssize_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from aioflow.errors import FailedPreconditionError, OpError, ResourceExhaustedError
from aioflow.formats.files import file_errors
from aioflow_numpy.compiled.compiler import Compiler, find
from aioflow_numpy.compiled.process import private_folder
from aioflow_numpy.compiled.store import ProgramStore

MachineFunction: TypeAlias = Callable[..., None]  # (two numbers, such as rows and elements of a row, address, …)

_FORM: Final = "1"  # the version of the calling convention of stored programs; change it when that changes
_TRIALS: Final = 3  # failures in a row, after which the compiler is not used any more
_MOST: Final = 1024  # libraries of one process; they are never unloaded


class Programs:
    """The programs of this process. Not thread-safe.

    Args:
        store: The programs on disk.
        find: Finds the compiler; called once.
    """

    def __init__(self, store: ProgramStore | None = None, find: Callable[[], Compiler] = find) -> None:
        self._store = ProgramStore() if store is None else store
        self._find = find
        self._compiler: Compiler | OpError | None = None
        self._loaded: dict[str, ctypes.CDLL] = {}
        self._failures = 0

    def has(self, text: str) -> bool:
        """Return whether a program is loaded, or kept on disk, so that it need not be compiled."""
        try:
            if not self._loaded and not self._store.folder.is_dir():
                # Nothing is kept, so do not run the compiler for its version, which the key contains.
                return False
            key = self._key(text)
        except (OpError, OSError):  # such as a folder without read permission
            return False
        return key in self._loaded or self._store.find(key) is not None

    def functions(self, text: str, counts: Sequence[int]) -> list[MachineFunction]:
        """Return the functions piece0, piece1, … of a program; `counts` are the numbers of their address parameters.

        Raises:
            NotFoundError: there is no compiler.
            FailedPreconditionError, DeadlineExceededError: the compiler is disabled, or fails.
            ResourceExhaustedError: too many compiled programs are loaded.
            OpError: the system has no room, or no rights, for its files.
        """
        compiler, key = self._found(), self._key(text)
        library = self._loaded.get(key)
        if library is None:
            if len(self._loaded) >= _MOST:
                raise ResourceExhaustedError("too many compiled programs are loaded", expected=f"at most {_MOST}")
            library = self._loaded[key] = self._load(compiler, key, text)
        made: list[MachineFunction] = []
        for i, count in enumerate(counts):
            function = getattr(library, f"piece{i}")
            function.argtypes, function.restype = (c_ssize_t, c_ssize_t, *(c_void_p,) * count), None
            made.append(function)
        return made

    def _key(self, text: str) -> str:
        return hashlib.sha256("\0".join((_FORM, self._found().identity, text)).encode()).hexdigest()

    def _found(self) -> Compiler:
        """Return the compiler. If the first search fails, every later call raises the same error."""
        if self._compiler is None:
            try:
                self._compiler = self._find()
            except OpError as error:
                self._compiler = error
        if isinstance(self._compiler, OpError):
            # Otherwise the traceback would grow with every raise, and keep the frames of all callers alive.
            raise self._compiler.with_traceback(None)
        if self._failures >= _TRIALS:
            raise FailedPreconditionError(f"{self._compiler.path} has failed too often")
        return self._compiler

    def _load(self, compiler: Compiler, key: str, text: str) -> ctypes.CDLL:
        kept = self._store.find(key)
        if kept is not None:
            # If it was made for another loader, compile it anew.
            with suppress(FailedPreconditionError):
                return _opened(kept)
        try:
            library = compiler.compile(text)
            # The loader needs a file in any case; the one that is kept serves if there is one.
            kept = self._store.keep(key, library)
            opened = _opened(kept) if kept is not None else _opened_once(library)
        except OpError:
            self._failures += 1
            raise
        self._failures = 0
        return opened


@cache
def programs() -> Programs:
    """Return the programs of this process, for the thread that compiles (`background`)."""
    return Programs()


def _opened(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(os.fspath(path))
    except OSError as error:
        raise FailedPreconditionError("cannot load the compiled library", actual=str(error)) from error


def _opened_once(library: bytes) -> ctypes.CDLL:
    """Load a library that is not kept on disk; its file is deleted once it is mapped."""
    with private_folder() as folder:
        path = folder / "made.so"
        with file_errors(path):
            path.write_bytes(library)
        return _opened(path)


def describe() -> dict[str, str]:
    """Return the compiler's line of `python -m aioflow doctor`."""
    try:
        compiler = find()
    except OpError as error:
        actual = f" ({error.actual})" if error.actual else ""
        return {"C compiler": f"not used: {error.message}{actual}"}
    store = ProgramStore()
    problem = store.problem()
    kept = f"in {store.folder}" if problem is None else f"for this process only ({problem})"
    return {"C compiler": f"{compiler}; compiled code is kept {kept}"}
