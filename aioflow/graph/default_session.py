"""The session of `Tensor.eval` and `Operation.run`: the innermost open session block in this task or thread."""

from __future__ import annotations

from typing import Any, Final

import aioflow
from aioflow.concurrency.context_stack import ContextStack
from aioflow.errors import DTypeError, NoSessionError

SESSIONS: Final[ContextStack[aioflow.Session]] = ContextStack("aioflow_sessions", weak=True)


def current_session(graph: aioflow.Graph | None = None) -> aioflow.Session | None:
    """Return the innermost open session, of `graph` if given, or None. Closed sessions are skipped."""
    for session in SESSIONS:
        if not session.closed and (graph is None or session.graph is graph):
            return session
    return None


def check_session(session: Any) -> None:
    """Raise DTypeError unless the object has a method `run`, as sessions have."""
    if not callable(getattr(session, "run", None)):
        raise DTypeError("not a session", expected="an aioflow.Session", actual=repr(session))


def session_for(session: aioflow.Session | None, graph: aioflow.Graph) -> aioflow.Session:
    """Return `session`, or else the default session of `graph`. Raises NoSessionError without a default session."""
    if session is not None:
        return session
    found = current_session(graph)
    if found is None:
        raise NoSessionError(
            "there is no default session",
            expected="`async with Session()` around the call, or session=",
            actual="none open",
        )
    return found
