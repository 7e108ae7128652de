"""C programs as functions of this process: already loaded, found on disk, or compiled, which takes long."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_ssize_t, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from aioflow.errors import FailedPreconditionError, NotFoundError, OpError, ResourceExhaustedError
from aioflow.formats.files import file_errors
from aioflow.formats.temporary_files import write_atomically
from aioflow.formats.user_cache import cache_folder
from aioflow_numpy.compiled.process import answer_of, private_folder, sweep

# ── the compiler ──────────────────────────────────────────────────────────────────────────────────────────────────────
#
# The C compiler of this machine is `AIOFLOW_CC` (a path, a name, or `off`), otherwise `cc`, `gcc` or `clang`.
#
# It runs as a separate process (`process.py`), with a deadline, in a temporary folder. The user is responsible for a
# program of that name. A name found only through a relative entry of `PATH` is not used, because that depends on the
# working directory.
#
# The effect of code depends on the compiler and on the processor. The compiler reports both in its predefined macros,
# which contain its version and the instructions of the processor that it uses.


SETTING: Final = "AIOFLOW_CC"
_NAMES: Final = ("cc", "gcc", "clang")
# Results must be bit-identical to NumPy's, so no fused multiply-add, and integers wrap. errno and floating-point flags
# are not used.
_FLAGS: Final = (
    *("-std=gnu11", "-O3", "-fPIC", "-fwrapv", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-w"),
)
_OF_THIS_PROCESSOR: Final = (("-march=native",), ("-mcpu=native",), ())  # the first set that the compiler accepts
_ANSWER: Final = 20.0  # seconds to report its version
_COMPILE: Final = 60.0  # seconds for a program
_VERSION: Final = re.compile(r'^#define __VERSION__ "(.*)"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A working compiler.

    Attributes:
        path: The path of the program.
        flags: The flags of its calls.
        version: The version that it reports.
        identity: Differs for each compiler, set of flags and kind of processor.
    """

    path: str
    flags: tuple[str, ...]
    version: str
    identity: str

    def __str__(self) -> str:
        processor = next((flag for flag in self.flags if "native" in flag), "for any processor of this architecture")
        return f"{self.path} {self.version} ({processor})"

    def compile(self, text: str) -> bytes:
        """Compile a program to a shared library. Blocks until the compiler is done.

        Raises:
            FailedPreconditionError: the compiler fails; the error has its message.
            DeadlineExceededError: the compiler took too long, and was killed.
            OpError: the system has no room, or no rights, for its files, or the compiler wrote no file.
        """
        with private_folder() as folder:
            made = folder / "made.so"
            command = [self.path, *self.flags, "-shared", "-x", "c", "-", "-o", str(made), "-lm"]
            answer_of(command, text, folder, _COMPILE)
            with file_errors(made):
                return made.read_bytes()


def find() -> Compiler:
    """Find the compiler and query its version. Blocks.

    Raises:
        NotFoundError: there is no compiler.
        FailedPreconditionError: it is disabled, or does not answer as a C compiler does.
        DeadlineExceededError: it does not answer at all.
        OpError: the system has no room, or no rights, for its files.
    """
    path = _path()
    sweep(time.time())
    with private_folder() as folder:
        for processor in _OF_THIS_PROCESSOR:
            flags = (*_FLAGS, *processor)
            try:
                macros = answer_of([path, *flags, "-dM", "-E", "-x", "c", "-"], "", folder, _ANSWER)
            except FailedPreconditionError:
                # Without a flag for the processor, the compiler itself must be at fault.
                if not processor:
                    raise
                continue
            version = _VERSION.search(macros)
            if version is not None:
                # The macros contain the version and the instructions of the processor.
                told = "\0".join((path, *flags, macros))
                return Compiler(path, flags, version[1], hashlib.sha256(told.encode()).hexdigest())
    raise FailedPreconditionError(f"{path} does not report a compiler version")


def _path() -> str:
    setting = os.environ.get(SETTING, "")
    if setting == "off":
        raise FailedPreconditionError(
            "compilation is switched off", expected=f"{SETTING} unset, or a compiler", actual=setting
        )
    if os.name != "posix":
        raise NotFoundError("compilation is supported only on POSIX systems", actual=os.name)
    names = (setting,) if setting else _NAMES
    for name in names:
        found = shutil.which(name)
        if found is not None and os.path.isabs(found):
            return found
    raise NotFoundError("no C compiler was found", expected=f"{' or '.join(names)} in an absolute folder in PATH")


# ── programs on disk, in the user's cache folder ──────────────────────────────────────────────────────────────────────
#
# Libraries loaded from here run in this process. So the folder must be the user's own: no other user may write into it,
# or replace it through a parent folder. An unsuitable folder is neither read nor written. A file is written under
# another name and then renamed, so that two processes that compile the same program do not interfere. It ends with a
# digest of the bytes before it, because the loader maps the file, and a truncated one would crash the process.


_DIGEST: Final = hashlib.sha256().digest_size
_MOST_FILES: Final = 512  # programs, of some 16 KB each
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class ProgramStore:
    """Programs by their keys.

    Args:
        folder: The folder; made when the first program is kept.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = cache_folder() / "compiled" if folder is None else folder

    def problem(self) -> str | None:
        """Return the reason why the folder is not used; None if it is, or would be once it exists."""
        if not self.folder.is_absolute():
            return "the user has no home folder"
        folder = Path(os.path.realpath(self.folder))
        try:
            return _problem(folder, folder) or next(
                filter(None, (_problem(each, folder) for each in folder.parents)), None
            )
        except OSError as error:
            return f"{folder}: {error.strerror}"

    def find(self, key: str) -> Path | None:
        """Return the library that was kept under a key, or None. Blocks on the disk."""
        path = self._path(key)
        if self.problem() is not None:
            return None
        try:
            with open(path, "rb", opener=_as_itself) as file:
                # The state of the open file: that of the path could change between the check and the read.
                state = os.fstat(file.fileno())
                if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & _OTHERS:
                    return None
                contents = file.read()
        except OSError:
            return None
        if hashlib.sha256(contents[:-_DIGEST]).digest() != contents[-_DIGEST:]:
            return None
        with suppress(OSError):
            os.utime(path)  # the one unused for longest is removed first
        return path

    def keep(self, key: str, library: bytes) -> Path | None:
        """Keep a library. Return its path, or None if the folder does not accept it. Blocks on the disk."""
        if self.problem() is not None:
            return None
        try:
            self._make()
            write_atomically(self._path(key), library + hashlib.sha256(library).digest())
            self._prune()
        except (OSError, OpError):
            return None
        # Read again, so that a file that was not written as a whole is not loaded.
        return self.find(key)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.so"

    def _make(self) -> None:
        # Not `makedirs`, which would use the mode for the last folder only.
        for folder in (*reversed(self.folder.parents), self.folder):
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)

    def _prune(self) -> None:
        known = [(path.stat().st_mtime, path) for path in self.folder.glob("*.so")]
        for _, path in sorted(known)[:-_MOST_FILES]:
            path.unlink(missing_ok=True)


def _as_itself(path: str, flags: int) -> int:
    # A link could lead out of the checked folder, and the open of a named pipe would block.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _problem(path: Path, folder: Path) -> str | None:
    """Return the problem with the folder, or with one above it; otherwise None."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(state.st_mode):
        return f"{path} is no folder"
    # Folders above it may belong to root.
    if state.st_uid != os.geteuid() and (path == folder or state.st_uid != 0):
        return f"{path} is another user's"
    # In a sticky folder such as /tmp, other users cannot replace the entry.
    kept_apart = path != folder and state.st_mode & stat.S_ISVTX
    if state.st_mode & _OTHERS and not kept_apart:
        return f"others may write to {path}"
    return None


# ── programs as functions of this process ─────────────────────────────────────────────────────────────────────────────


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
