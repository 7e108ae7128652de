"""Session creators of a monitored session: the chief initializes the variables, a worker waits for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from aioflow.arguments import check_seconds
from aioflow.config import SessionConfig
from aioflow.graph.default_graph import default_graph
from aioflow.runtime.worker import Worker
from aioflow.session.session import Session
from aioflow.train.monitored.scaffold import Scaffold
from aioflow.train.monitored.session_manager import SessionManager


class SessionCreator(ABC):
    """A factory of sessions, called whenever a monitored session needs one: at first, and after failures.

    Attributes:
        rolls_back: Whether a new session resets the variables to a checkpoint or to their initial values, so that no
            step of the previous session counts any more.
    """

    rolls_back: bool = True

    @abstractmethod
    def create_session(self) -> Any:
        """Return a session, or a coroutine that returns one. The default graph is that of the monitored session."""


class _ScaffoldedCreator(SessionCreator):
    """A session creator with a scaffold, which is finalized with the first session."""

    def __init__(self, scaffold: Scaffold | None, master: str | Worker, config: SessionConfig | None) -> None:
        self._scaffold = scaffold or Scaffold()
        self._master = master
        self._config = config
        self._made: SessionManager | None = None

    def _manager(self) -> SessionManager:
        scaffold = self._scaffold.finalize()
        if self._made is None:
            self._made = SessionManager(
                local_init_op=scaffold.local_init_op,
                local_init_feed_dict=scaffold.local_init_feed_dict,
                ready_op=scaffold.ready_op,
                ready_for_local_init_op=scaffold.ready_for_local_init_op,
                graph=default_graph(),
            )
        return self._made


class ChiefSessionCreator(_ScaffoldedCreator):
    """A creator of sessions that restore the latest checkpoint, or initialize the variables if there is no checkpoint.

    Args:
        scaffold: The nodes that training needs besides the model; None for a default scaffold.
        master: Target of the sessions.
        config: Settings of the sessions.
        checkpoint_dir: Folder of the checkpoints.
        checkpoint_filename_with_path: One checkpoint, instead of the latest of a directory.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str | Worker = "",
        config: SessionConfig | None = None,
        checkpoint_dir: str | Path | None = None,
        checkpoint_filename_with_path: str | Path | None = None,
    ) -> None:
        super().__init__(scaffold, master, config)
        self._checkpoint_dir = checkpoint_dir
        self._checkpoint_filename_with_path = checkpoint_filename_with_path

    async def create_session(self) -> Session:
        """Return a session whose variables have values. Raises as `SessionManager.prepare_session` does."""
        manager = self._manager()
        return await manager.prepare_session(
            self._master,
            saver=self._scaffold.saver,
            checkpoint_dir=self._checkpoint_dir,
            checkpoint_filename_with_path=self._checkpoint_filename_with_path,
            config=self._config,
            init_op=self._scaffold.init_op,
            init_feed_dict=self._scaffold.init_feed_dict,
            init_fn=self._scaffold.init_fn,
        )


class WorkerSessionCreator(_ScaffoldedCreator):
    """A creator of sessions that wait until the chief has initialized the variables.

    Args:
        scaffold, master, config: As for `ChiefSessionCreator`.
        max_wait_secs: Seconds that a session may take to become ready; None for no limit.
    """

    # The variables keep their values: only the chief resets them.
    rolls_back = False

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str | Worker = "",
        config: SessionConfig | None = None,
        max_wait_secs: float | None = 30 * 60,
    ) -> None:
        super().__init__(scaffold, master, config)
        check_seconds(max_wait_secs, "max_wait_secs")
        self._max_wait_secs = max_wait_secs

    async def create_session(self) -> Session:
        """Return a session whose variables have values. Raises as `SessionManager.wait_for_session` does."""
        return await self._manager().wait_for_session(
            self._master, config=self._config, max_wait_secs=self._max_wait_secs
        )
