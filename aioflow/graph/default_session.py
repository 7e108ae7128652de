"""Which session `Tensor.eval` and `Operation.run` use: the innermost one opened around them, in this task or thread."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final

from aioflow.errors import FailedPreconditionError

if TYPE_CHECKING:
    from aioflow.graph.graph import Graph

__all__ = ["current_session", "pop_session", "push_session", "session_for"]

_SESSIONS: Final[ContextVar[tuple[Any, ...]]] = ContextVar("aioflow_sessions", default=())


def current_session(graph: Graph | None = None) -> Any:
    """The innermost open session (for `graph`, when one is given), or None."""
    for session in reversed(_SESSIONS.get()):
        if graph is None or session.graph is graph:
            return session
    return None


def push_session(session: Any) -> Token[tuple[Any, ...]]:
    """Make `session` the default; give the token to `pop_session`."""
    return _SESSIONS.set((*_SESSIONS.get(), session))


def pop_session(token: Token[tuple[Any, ...]]) -> None:
    """Undo `push_session`."""
    _SESSIONS.reset(token)


def session_for(session: Any, graph: Graph) -> Any:
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
