"""A process that makes hostile calls.

It reads lines of the form "op index" and answers each with "begun" and then the outcome as JSON. To run one call by
hand, with its traceback: `python -m tests.sweep.hostile.child SEED OP INDEX`.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import json
import logging
import os
import re
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random
from typing import IO, Any, Final

import aioflow as af
from aioflow.errors import DeadlineExceededError, InternalError, OpError, UnknownError
from tests.sweep.hostile.calls import perform

# NumPy's messages for sizes and axes that aioflow has not checked.
_UNCHECKED: Final = r"negative dimensions|too big|Maximum allowed|size 1 to a Python|values to unpack|ambiguous"
_ROOM: Final = 1 << 30  # bytes that calls may allocate beyond the memory of the started process
_SOURCE: Final = str(Path(af.__file__).parents[1]) + os.sep
_KERNELS: Final = tuple(os.path.join(_SOURCE, folder) for folder in ("aioflow/kernels", "backends"))


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + _ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def _place(error: BaseException) -> str:
    """Return the line of the library that raised the root cause, and the cause itself."""
    *_, cause = _chain(error)
    lines = [f for f in traceback.extract_tb(cause.__traceback__) if "tests" not in f.filename]
    own = [f for f in lines if f.filename.startswith((_SOURCE, "<aioflow"))]
    place = f"{own[-1].filename.removeprefix(_SOURCE)}:{own[-1].lineno} " if own else ""
    return f"{place}{type(cause).__name__}: {cause}"[:300].replace("\n", " ")


def _is_unexplained(error: OpError) -> bool:
    """Return whether the message only repeats a slip in Python code, or NumPy's complaint of an unchecked size or axis.

    Any exception of a gradient function of the library counts as a slip, unless it is an `OpError`.
    """
    cause = error.__cause__
    if cause is None or isinstance(cause, OpError) or f"{type(cause).__name__}: {cause}" not in error.message:
        return False
    slip = isinstance(cause, LookupError | AttributeError | TypeError | AssertionError | ArithmeticError)
    slip = slip or error.message.startswith("the gradient function of op")
    return slip or re.search(_UNCHECKED, str(cause)) is not None


def _has_reached(error: OpError, op: str) -> bool:
    """Return whether the call reached a kernel of the op: the kernel raised, or the call timed out."""
    if isinstance(error, DeadlineExceededError):
        return True
    trace = [frame.filename for each in _chain(error) for frame in traceback.extract_tb(each.__traceback__)]
    return error.op_type == op and any(name.startswith((*_KERNELS, "<aioflow")) for name in trace)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    seen: list[BaseException] = []
    while error is not None:
        if error in seen:
            raise AssertionError(f"the cause of {error!r} is itself")
        seen.append(error)
        yield error
        error = error.__cause__


async def _outcome(seed: str, op: str, index: str) -> dict[str, Any]:
    try:
        await perform(op, Random(f"{seed}/{op}/{index}"))
    except OpError as error:
        kind = type(error).__name__
        if not isinstance(error, UnknownError | InternalError) and _is_unexplained(error):
            kind = f"unexplained {kind}"
        return {"kind": kind, "place": _place(error), "reached": _has_reached(error, op)}
    except Exception as error:
        return {"kind": f"bare {type(error).__name__}", "place": _place(error), "reached": False}
    return {"kind": "ok", "place": "", "reached": True}


class _Abandoned(logging.Handler):
    """Log handler that notices kernels still running in their threads after their calls have ended.

    Such kernels should end soon, too. One that runs for as long as a call may take (`runner.Patience`) counts as
    hanging,
    although no call waits for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._any = False

    def emit(self, record: logging.LogRecord) -> None:
        """Note whether the library logs an abandoned kernel."""
        self._any = self._any or "left behind" in record.getMessage()

    def wait(self) -> None:
        """Wait until no thread of aioflow runs a kernel."""
        while self._any:
            self._any = any(map(_is_at_work, threading.enumerate()))
            time.sleep(0.02)


def _is_at_work(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return thread.name.startswith("aioflow") and frame is not None and frame.f_code.co_name != "_serve"


async def _serve(seed: str, answers: IO[str]) -> None:
    noticed: list[str] = []
    sys.unraisablehook = lambda found: noticed.append(f"{found.err_msg or 'ignored'}: {found.exc_value!r}")
    asyncio.get_running_loop().set_exception_handler(lambda _, context: noticed.append(str(context)[:300]))
    left = _Abandoned()
    logging.getLogger("aioflow").addHandler(left)
    for line in sys.stdin:
        op, index = line.split()
        print("begun", file=answers, flush=True)
        found = await _outcome(seed, op, index)
        left.wait()
        if noticed:
            found |= {"kind": "bare ignored exception", "place": " ".join(noticed)}
            noticed.clear()
        print(json.dumps(found), file=answers, flush=True)


def main(arguments: list[str]) -> None:
    """Parse the command line, then make one call or serve calls."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seed")
    parser.add_argument("call", nargs="*", help="op and index")
    parser.add_argument("--ops", help="a module that defines more ops")
    given: Any = parser.parse_args(arguments)
    if given.ops:
        import_module(given.ops)
    warnings.simplefilter("error")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    with os.fdopen(os.dup(1), "w") as answers, tempfile.TemporaryDirectory() as folder:
        os.dup2(2, 1)  # output that calls print must not mix with the answers
        os.chdir(folder)
        _limit_memory()
        if given.call:
            op, index = given.call
            asyncio.run(perform(op, Random(f"{given.seed}/{op}/{index}")))
        else:
            asyncio.run(_serve(given.seed, answers))


if __name__ == "__main__":
    main(sys.argv[1:])
