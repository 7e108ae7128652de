"""The compiler as a process, in a session of its own, so that all of what it starts can be ended with it.

It reads and writes files, which a daemon that it leaves behind may hold as long as it likes: of a pipe nobody would see
the end. And it ends with this process, however that ends: beside it there is a guard, who waits for the end of a pipe
that this process alone holds open, and then takes away the folder and all of the session. Nothing else tells of a
parent's end on every Unix, or can be asked for in a program with threads.

A folder that was left even so is taken away by a later process that looks for a compiler.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from aioflow.errors import DeadlineExceededError, FailedPreconditionError
from aioflow.formats.files import file_errors
from aioflow.work.forking import in_child, not_forked

__all__ = ["answer_of", "end", "private_folder", "sweep"]

_GRACE: Final = 0.5  # seconds until one that was ended is gone
_SHOWN: Final = 400  # characters of what it complains about
_PREFIX: Final = "aioflow-cc-"
_STALE: Final = 3600.0  # seconds after which a folder is nobody's: a program is given a minute
_INPUT, _ANSWER, _COMPLAINTS = "input", "answer", "complaints"

# The shell waits for both, so that whoever inherits what has lost its parent (this process, where it is the first of a
# container) inherits nothing.
_GUARDED: Final = f"""
exec 3<&0
"$@" <{_INPUT} 3<&- &
program=$!
{{ read -r _ <&3; rm -rf -- "$0"; kill -9 0; }} &
guard=$!
wait $program
status=$?
exec 2>/dev/null
kill $guard
wait $guard
exit $status
"""


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that nobody else may look into, and that is gone after the block."""
    place = _place()
    with file_errors(place), not_forked():
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _place() -> Path:
    """Return the system's folder for temporary files.

    Python looks for it once, and makes its source of names once, under a lock that a child which is forked in that
    moment would find locked for ever.
    """
    with not_forked():
        return Path(tempfile.gettempdir())


def sweep(now: float) -> None:
    """Take away what others of this user have left; `now` as of `time.time`."""
    with suppress(OSError):
        for entry in os.scandir(_place()):
            with suppress(OSError):
                state = entry.stat(follow_symlinks=False)
                mine = entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False)
                if mine and state.st_uid == os.geteuid() and state.st_mtime < now - _STALE:
                    shutil.rmtree(entry.path, ignore_errors=True)


class _Running:
    """The process of the compiler that runs, if one does: it ends with this one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.is_over = False  # this process is ending

    def begin(self, command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
        """Start a program. Raises FailedPreconditionError where that cannot be."""
        with self.lock:
            if self.is_over:
                raise FailedPreconditionError("this process is ending")
            self.process = _begun(command, folder)
            return self.process

    def end(self) -> None:
        """Nothing of it is left, and none is begun any more."""
        with self.lock:
            self.is_over = True
            process = self.process
        if process is not None:
            _kill(process)


_running = _Running()


def end() -> None:
    """End what runs, and begin nothing any more: this process is ending."""
    _running.end()


@in_child
def _forget() -> None:
    global _running
    process, _running = _running.process, _Running()  # what runs is the parent's
    if process is not None:
        _let_go(process)


def answer_of(command: Sequence[str], given: str, folder: Path, seconds: float) -> str:
    """What the program writes for what it is given. Its files are in the folder.

    Raises:
        FailedPreconditionError: it fails, or cannot be run.
        DeadlineExceededError: it was ended, since it took too long.
        OpError: the system has no room, or no rights, for its files.
    """
    with file_errors(folder):
        (folder / _INPUT).write_text(given, encoding="utf-8")
    process = _running.begin(command, folder)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise DeadlineExceededError(f"{command[0]} was ended", expected=f"an answer in {seconds:g} s") from None
    finally:
        if process.returncode is None:
            _kill(process)
            with suppress(subprocess.TimeoutExpired):  # the system may have no time for it
                process.wait(_GRACE)
        _let_go(process)
        _running.process = None
    if process.returncode:
        said = f"{process.returncode}: {_text(folder / _COMPLAINTS).strip()[:_SHOWN]}"
        raise FailedPreconditionError(f"{command[0]} fails", expected="exit status 0", actual=said)
    return _text(folder / _ANSWER)


def _begun(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "LC_ALL": "C", "TMPDIR": str(folder)}
    try:
        with open(folder / _ANSWER, "wb") as answer, open(folder / _COMPLAINTS, "wb") as complaints:
            return subprocess.Popen(
                ["/bin/sh", "-c", _GUARDED, str(folder), *command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=answer,
                stderr=complaints,
                cwd=folder,
                env=environ,
                start_new_session=True,
            )
    except OSError as error:
        raise FailedPreconditionError(f"{command[0]} cannot be run", actual=str(error)) from error


def _kill(process: subprocess.Popen[bytes]) -> None:
    """It and what it has started: its number is that of their session, and nobody else's before it is waited for."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def _let_go(process: subprocess.Popen[bytes]) -> None:
    """Of the pipe by which the guard knows that this process is there."""
    if process.stdin is not None:
        process.stdin.close()


def _text(path: Path) -> str:
    with file_errors(path):
        return path.read_text(encoding="utf-8", errors="replace")
