"""The session of `Tensor.eval` and `Operation.run`: the innermost open session block in this task or thread."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from itertools import chain
from typing import Any, Final, Protocol

from aioflow.concurrency.context_stack import ContextStack
from aioflow.errors import DTypeError, NoSessionError


class StepRunner(Protocol):
    """The part of `Session` by which tensors and operations run themselves."""

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Awaitable[Any]:
        """Run the nodes that `fetches` need and return their values in the same structure."""


# Sessions, which have a `graph` and a flag `closed`, too.
SESSIONS: Final[ContextStack[Any]] = ContextStack("aioflow_sessions", weak=True)


# Open interactive sessions, the latest last. In notebooks and in `python -m asyncio` each input may run in its own
# context, so a session that an input makes the default must be found without context variables.
INTERACTIVE: Final[list[Any]] = []


def current_session(graph: object = None) -> Any:
    """Return the innermost open `Session`, of `graph` if given, or None. Closed sessions are skipped.

    Outside of all blocks it is the latest interactive session.
    """
    for session in chain(SESSIONS, reversed(INTERACTIVE)):
        if not session.closed and (graph is None or session.graph is graph):
            return session
    return None


def check_session(session: Any) -> None:
    """Raise DTypeError unless the object has a method `run`, as sessions have."""
    if not callable(getattr(session, "run", None)):
        raise DTypeError("not a session", expected="an aioflow.Session", actual=repr(session))


def session_for(session: StepRunner | None, graph: object) -> StepRunner:
    """Return `session`, or else the default session of `graph`. Raises NoSessionError without a default session."""
    if session is not None:
        return session
    found: StepRunner | None = current_session(graph)
    if found is None:
        raise NoSessionError(
            "there is no default session",
            expected="`async with Session()` around the call, or session=",
            actual="none open",
        )
    return found
