"""The start of a program, as `tf.app` has it: the public namespace `aioflow.app`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

from aioflow.concurrency.loops import run_on_new_loop
from aioflow.loading.later import load_later as _load_later

if TYPE_CHECKING:
    from aioflow import flags as flags

__all__ = ["run"]


def run(main: Callable[[list[str]], Awaitable[Any] | Any] | None = None, argv: Sequence[str] | None = None) -> NoReturn:
    """Parse the flags of `aioflow.flags`, run `main(argv)` with the other arguments, and exit with its result.

    If `main` is a coroutine function, it runs in a new event loop.

    Args:
        main: The function; by default `main` of the program.
        argv: The command line; by default `sys.argv`. Unknown flags stay in it.

    Raises:
        SystemExit: always, with the result of `main`: None or 0 for success.
    """
    chosen = main if main is not None else sys.modules["__main__"].main

    def started(rest: list[str]) -> Any:
        result = chosen(rest)
        return run_on_new_loop(result) if inspect.iscoroutine(result) else result

    # Without absl the program has no flags.
    if find_spec("absl") is None:
        sys.exit(started(list(sys.argv if argv is None else argv)))
    import_module("absl.app").run(started, argv=argv, flags_parser=_known_flags)
    sys.exit()  # absl's function has raised it


def _known_flags(argv: Sequence[str]) -> Any:
    return import_module("absl.flags").FLAGS(argv, known_only=True)


_load_later(__name__, {"flags": "aioflow:flags"})
