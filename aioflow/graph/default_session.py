"""Which session `Tensor.eval` and `Operation.run` use: the innermost one opened around them, in this task or thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aioflow.context_stack import ContextStack
from aioflow.errors import FailedPreconditionError

if TYPE_CHECKING:
    from aioflow.graph.graph import Graph
    from aioflow.session import Session

__all__ = ["SESSIONS", "current_session", "session_for"]

SESSIONS: Final[ContextStack[Session]] = ContextStack("aioflow_sessions", weak=True)


def current_session(graph: Graph | None = None) -> Session | None:
    """The innermost open session (for `graph`, when one is given), or None. It has not been closed."""
    for session in SESSIONS:
        if not session.closed and (graph is None or session.graph is graph):
            return session
    return None


def session_for(session: Session | None, graph: Graph) -> Session:
    """`session`, or the default session of `graph`. Raises FailedPreconditionError where there is none."""
    if session is not None:
        return session
    found = current_session(graph)
    if found is None:
        raise FailedPreconditionError(
            "there is no default session",
            expected="`async with Session()` around the call, or session=",
            actual="none open",
        )
    return found
