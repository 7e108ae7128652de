"""The compiler as a process, in its own session, so that all processes that it starts can be killed with it.

It reads and writes files, because a daemon that it leaves behind could keep a pipe open forever. And it ends with this
process, however that ends: a guard process beside it waits for the end of a pipe that only this process holds open, and
then removes the folder and kills the whole session. No other notification of a parent's end exists on every Unix, or is
available in a program with threads.

A folder that is left nevertheless is removed by a later process that searches for a compiler.
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

from aioflow.concurrency.forking import in_child, not_forked
from aioflow.errors import DeadlineExceededError, FailedPreconditionError
from aioflow.formats.files import file_errors

_GRACE: Final = 0.5  # seconds until a killed process is gone
_SHOWN: Final = 400  # characters of a program's error messages
_PREFIX: Final = "aioflow-cc-"
_STALE: Final = 3600.0  # seconds after which a folder is abandoned; a program has only one minute
_INPUT, _ANSWER, _COMPLAINTS = "input", "answer", "complaints"

# The shell waits for both, so it leaves no orphans behind for the init process (this process, if it is the first one
# of a container).
# Descriptor 3 is the pipe that only this process holds open, `$0` the folder. `read` returns when the pipe ends. Signal
# 9 to process 0 reaches the whole process group, the guard included.
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
    """Make a folder that only this user can access, and remove it after the block."""
    place = _place()
    with file_errors(place), not_forked():
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _place() -> Path:
    """Return the system's folder for temporary files.

    Python determines it once, and creates its source of names once, under a lock. A child forked at that moment would
    find the lock held forever.
    """
    with not_forked():
        return Path(tempfile.gettempdir())


def sweep(now: float) -> None:
    """Remove folders that other processes of this user have left; `now` is a time of `time.time`."""
    with suppress(OSError):
        for entry in os.scandir(_place()):
            with suppress(OSError):
                state = entry.stat(follow_symlinks=False)
                mine = entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False)
                if mine and state.st_uid == os.geteuid() and state.st_mtime < now - _STALE:
                    shutil.rmtree(entry.path, ignore_errors=True)


class _Running:
    """The running process of the compiler, if any; it ends with this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.is_over = False  # this process is ending

    def begin(self, command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
        """Start a program. Raise FailedPreconditionError if that is not possible."""
        with self.lock:
            if self.is_over:
                raise FailedPreconditionError("this process is ending")
            self.process = _begun(command, folder)
            return self.process

    def end(self) -> None:
        """Kill the running program, and refuse to start another one."""
        with self.lock:
            self.is_over = True
            process = self.process
        if process is not None:
            _kill(process)


_running = _Running()


def end() -> None:
    """Kill the running program and start no more, because this process is ending."""
    _running.end()


@in_child
def _forget() -> None:
    global _running
    process, _running = _running.process, _Running()  # the running program is the parent's
    if process is not None:
        _let_go(process)


def answer_of(command: Sequence[str], given: str, folder: Path, seconds: float) -> str:
    """Return the program's output for the input `given`. Its files are in the folder.

    Raises:
        FailedPreconditionError: the program fails, or cannot be run.
        DeadlineExceededError: the program took too long, and was killed.
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
            # A killed process stays a zombie until it is waited for.
            with suppress(subprocess.TimeoutExpired):  # the system may be too busy
                process.wait(_GRACE)
        _let_go(process)
        _running.process = None
    if process.returncode:
        said = f"{process.returncode}: {_text(folder / _COMPLAINTS).strip()[:_SHOWN]}"
        raise FailedPreconditionError(f"{command[0]} fails", expected="exit status 0", actual=said)
    return _text(folder / _ANSWER)


def _begun(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    # Error messages are in English, and the compiler's own temporary files are in the folder that is removed.
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
    """Kill the process and all that it has started."""
    with suppress(OSError):
        # Its id is that of their session, and is not reused before it is waited for.
        os.killpg(process.pid, signal.SIGKILL)


def _let_go(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe whose end tells the guard that this process has ended."""
    if process.stdin is not None:
        process.stdin.close()


def _text(path: Path) -> str:
    with file_errors(path):
        return path.read_text(encoding="utf-8", errors="replace")
