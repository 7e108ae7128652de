"""`InteractiveSession`: the default session of a notebook or a Python prompt."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from aioflow.config import SessionConfig
from aioflow.graph.default_graph import install_graph, uninstall_graph
from aioflow.graph.default_session import INTERACTIVE, SESSIONS
from aioflow.graph.graph import GRAPHS, Graph
from aioflow.runtime.worker import Worker
from aioflow.session.session import Session

if TYPE_CHECKING:
    from aioflow.net.credentials import Credentials
else:
    Credentials = Any  # as in session.py

_LOGGER: Final = logging.getLogger("aioflow.session")
_LOCK: Final = threading.Lock()


class InteractiveSession(Session):
    """A session that is the default from its construction until it is closed, for notebooks and `python -m asyncio`.

        session = aioflow.InteractiveSession()
        await c.eval()
        await session.close()

    It is the default in all tasks and threads, outside of the blocks of other sessions; the latest one counts. If
    `graph` is given, that is also the default graph. The arguments are those of `Session`.
    """

    def __init__(
        self,
        target: str | Worker = "",
        graph: Graph | None = None,
        config: SessionConfig | None = None,
        *,
        credentials: Credentials | None = None,
        connect_timeout: float = 2.0,
    ) -> None:
        super().__init__(target, graph, config, credentials=credentials, connect_timeout=connect_timeout)
        self._session_block = SESSIONS.enter(self)
        self._graph_block = None if graph is None else GRAPHS.enter(graph)
        with _LOCK:
            if any(not session.closed for session in INTERACTIVE):
                _LOGGER.warning(
                    "an interactive session is already active; it keeps its variables until `await session.close()`"
                )
            INTERACTIVE.append(self)
            if graph is not None:
                install_graph(graph)

    async def close(self) -> None:
        """Close the session, as `Session.close`; the default is then what it was before. Idempotent."""
        try:
            await super().close()
        finally:
            self._uninstall()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            if self.closed:
                self._uninstall()

    def _uninstall(self) -> None:
        with _LOCK:
            if self not in INTERACTIVE:
                return
            INTERACTIVE.remove(self)
            if self._graph_block is not None:
                uninstall_graph(self.graph)
        SESSIONS.leave(self._session_block)
        if self._graph_block is not None:
            GRAPHS.leave(self._graph_block)
