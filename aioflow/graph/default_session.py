"""Which session `Tensor.eval` and `Operation.run` use: the innermost one opened around them, in this task or thread."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from aioflow.graph.graph import Graph

__all__ = ["current_session", "pop_session", "push_session"]

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
