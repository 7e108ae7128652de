"""Creation of sessions for training: `SessionManager` restores or initializes the variables, or waits for the chief."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from aioflow.arguments import check_number, check_seconds
from aioflow.concurrency.threads import in_thread
from aioflow.config import RunOptions, SessionConfig
from aioflow.errors import (
    AbortedError,
    ClosedSessionError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    UnavailableError,
)
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import Graph, Tensor
from aioflow.graph.tensor_like import NodeLike
from aioflow.runtime.worker import Worker
from aioflow.session.fetches import Feeds
from aioflow.session.session import Session
from aioflow.train.checkpoint_state import CheckpointState, get_checkpoint_state
from aioflow.train.monitored.patience import delays
from aioflow.train.monitored.scaffold import Scaffold
from aioflow.train.monitored.session_run_hook import called
from aioflow.train.saver import Saver

# ── the session manager ───────────────────────────────────────────────────────────────────────────────────────────────


_LOGGER: Final = logging.getLogger("aioflow.train")


class _Restoring(NamedTuple):
    """The source of restored values, and the time to wait for a checkpoint."""

    saver: Saver | None
    directory: str | Path | None
    path: str | Path | None
    wait: bool
    seconds: float


class SessionManager:
    """A factory of sessions that are ready to train. The caller closes them.

    Args:
        local_init_op: Run in every new session; None for no op.
        ready_op: A vector of strings, empty when every variable has a value; None to skip the check.
        ready_for_local_init_op: The same for the variables that `local_init_op` needs.
        graph: The graph; None for the default graph.
        recovery_wait_secs: Maximum seconds between two polls while another process initializes the variables. The first
            polls come within tenths of a second.
        local_init_run_options, local_init_feed_dict: Options and feeds of the run of `local_init_op`.

    Raises:
        InvalidArgumentError: there is a `ready_for_local_init_op` without a `local_init_op`.
    """

    def __init__(
        self,
        local_init_op: NodeLike | None = None,
        ready_op: Tensor | None = None,
        ready_for_local_init_op: Tensor | None = None,
        graph: Graph | None = None,
        recovery_wait_secs: float = 30,
        local_init_run_options: RunOptions | None = None,
        local_init_feed_dict: Feeds | None = None,
    ) -> None:
        if ready_for_local_init_op is not None and local_init_op is None:
            raise InvalidArgumentError(
                "ready_for_local_init_op needs local_init_op", expected="local_init_op=", actual="none"
            )
        check_number(recovery_wait_secs, "recovery_wait_secs", "a number of seconds", above=0)
        self._graph = default_graph() if graph is None else graph
        self._local_init_op = local_init_op
        self._ready_op = ready_op
        self._ready_for_local_init_op = ready_for_local_init_op
        self._recovery_wait_secs = recovery_wait_secs
        self._local_init_run_options = local_init_run_options
        self._local_init_feed_dict = local_init_feed_dict

    async def prepare_session(
        self,
        master: str | Worker,
        init_op: NodeLike | None = None,
        saver: Saver | None = None,
        checkpoint_dir: str | Path | None = None,
        checkpoint_filename_with_path: str | Path | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: SessionConfig | None = None,
        init_feed_dict: Feeds | None = None,
        init_fn: Callable[[Session], object] | None = None,
    ) -> Session:
        """Return a session whose variables are restored from the latest checkpoint, if any, or else initialized.

        `master` is the target of the session. `saver` restores from the newest checkpoint in `checkpoint_dir`, or from
        the checkpoint `checkpoint_filename_with_path`. With `wait_for_checkpoint`, wait up to `max_wait_secs` for a
        checkpoint in the directory. If nothing was restored, run `init_op` with `init_feed_dict` and call
        `init_fn(session)`.

        Raises:
            FailedPreconditionError: a variable still has no value; the error names it. Or nothing was restored, and
                there is neither `init_op` nor `init_fn` nor `local_init_op`.
            InvalidArgumentError: both a directory and a checkpoint are given, or `max_wait_secs` is NaN.
        """
        check_number(max_wait_secs, "max_wait_secs", "a number of seconds")
        source = _Restoring(saver, checkpoint_dir, checkpoint_filename_with_path, wait_for_checkpoint, max_wait_secs)
        # The caller gets the session only if it is ready; otherwise this block is the last that could close it.
        async with _closed_on_error(self._session(master, config)) as session:
            if not await self._restore(session, source):
                if init_op is None and init_fn is None and self._local_init_op is None:
                    raise FailedPreconditionError(
                        "nothing initializes the model", expected="init_op, init_fn or local_init_op", actual="none"
                    )
                if init_op is not None:
                    await _run(session, init_op, init_feed_dict)
                if init_fn is not None:
                    await called(init_fn, session)
            # `local_init_op` runs only where the variables it needs are ready, so its message comes first.
            missing = await self._initialize_locally(session) or await self._missing(session, self._ready_op)
            if missing is not None:
                raise FailedPreconditionError(
                    f"the model is not ready: {missing}",
                    expected="values for all names in ready_op, from a checkpoint, init_op or init_fn",
                    actual="none",
                )
        return session

    async def recover_session(
        self,
        master: str | Worker,
        saver: Saver | None = None,
        checkpoint_dir: str | Path | None = None,
        checkpoint_filename_with_path: str | Path | None = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: SessionConfig | None = None,
    ) -> tuple[Session, bool]:
        """Return a session, and True if a checkpoint was restored and every variable then has a value.

        Arguments are as in `prepare_session`. `local_init_op` runs in either case.

        Raises:
            InvalidArgumentError: both a directory and a checkpoint are given, or `max_wait_secs` is NaN.
        """
        check_number(max_wait_secs, "max_wait_secs", "a number of seconds")
        source = _Restoring(saver, checkpoint_dir, checkpoint_filename_with_path, wait_for_checkpoint, max_wait_secs)
        async with _closed_on_error(self._session(master, config)) as session:
            restored = await self._restore(session, source)
            missing = await self._initialize_locally(session)
            if restored and missing is None:
                missing = await self._missing(session, self._ready_op)
            if restored and missing is not None:
                _LOGGER.info("the restored checkpoint is incomplete: %s", missing)
        return session, restored and missing is None

    async def wait_for_session(
        self, master: str | Worker, config: SessionConfig | None = None, max_wait_secs: float | None = float("inf")
    ) -> Session:
        """Return a session once another process has initialized its variables.

        Also wait for a server that is not reachable yet. `max_wait_secs` limits the wait; None for no limit.

        Raises:
            DeadlineExceededError: `max_wait_secs` have passed; the error names the missing variables.
        """
        check_seconds(max_wait_secs, "max_wait_secs")
        clock = asyncio.get_running_loop().time
        until = clock() + (float("inf") if max_wait_secs is None else max_wait_secs)
        for delay in delays(self._recovery_wait_secs):
            session = self._session(master, config)
            async with _closed_on_error(session):
                missing = await self._missing_of_others(session)
                if missing is None:
                    return session
            await _close(session)
            if clock() + delay > until:
                break
            _LOGGER.info("waiting for the model to be ready: %s", missing)
            await asyncio.sleep(delay)
        raise DeadlineExceededError(
            "the session was not ready in time",
            expected=f"a ready model within {max_wait_secs} s",
            actual=missing,
        )

    async def _missing_of_others(self, session: Session) -> str | None:
        try:
            return await self._initialize_locally(session) or await self._missing(session, self._ready_op)
        except (UnavailableError, AbortedError) as error:
            # A server that cannot be reached yet counts as not ready.
            return str(error)

    def _session(self, master: str | Worker, config: SessionConfig | None) -> Session:
        return Session(master, graph=self._graph, config=config)

    async def _restore(self, session: Session, source: _Restoring) -> bool:
        """Restore the variables if there is a checkpoint, and return whether there was one."""
        if source.directory:
            # A server of this program opens files for its clients only in folders that were announced.
            session.keep_checkpoints_in(source.directory)
        if source.directory and source.path:
            raise InvalidArgumentError(
                "both a directory and a checkpoint are given",
                expected="checkpoint_dir or checkpoint_filename_with_path",
                actual="both",
            )
        if source.saver is None or not (source.directory or source.path):
            return False
        if source.path:
            await source.saver.restore(session, source.path)
            return True
        state = await self._checkpoint_state(source)
        if state is None:
            return False
        _LOGGER.info("restoring %s", state.model_checkpoint_path)
        await source.saver.restore(session, state.model_checkpoint_path)
        # Without it the checkpoints of the earlier run would never be deleted.
        await in_thread(source.saver.recover_last_checkpoints, state.all_model_checkpoint_paths, effects=False)
        return True

    async def _checkpoint_state(self, source: _Restoring) -> CheckpointState | None:
        clock = asyncio.get_running_loop().time
        until = clock() + source.seconds
        for delay in delays(self._recovery_wait_secs):
            state = await in_thread(get_checkpoint_state, source.directory, effects=False)
            # One look even if the time is over: `max_wait_secs` may be 0.
            if state is not None or not source.wait or clock() >= until:
                return state
            _LOGGER.info("waiting for a checkpoint in %s", source.directory)
            await asyncio.sleep(min(delay, until - clock()))
        return None

    async def _initialize_locally(self, session: Session) -> str | None:
        """Run `local_init_op`, unless variables that it needs have no value; return a message that names them."""
        if self._local_init_op is None:
            return None
        missing = await self._missing(session, self._ready_for_local_init_op)
        if missing is None:
            await _run(session, self._local_init_op, self._local_init_feed_dict, self._local_init_run_options)
        return missing

    async def _missing(self, session: Session, ready_op: Any) -> str | None:
        """Return a message that names the variables without a value, by `ready_op`; None if all have one."""
        if ready_op is None:
            return None
        try:
            names = await session.run(ready_op)
        except ClosedSessionError:
            # It is a FailedPreconditionError, too, but no statement about the variables.
            raise
        except FailedPreconditionError as error:  # `ready_op` reads a variable without a value
            return str(error)
        # As in TensorFlow, an int32 result of `ready_op` also means that nothing is missing.
        if names is None or names.dtype == np.int32 or names.size == 0:
            return None
        texts = [name.decode() if isinstance(name, bytes) else str(name) for name in np.ravel(names)]
        return f"variables not initialized: {', '.join(texts)}"


async def _run(session: Session, node: Any, feeds: Feeds | None, options: RunOptions | None = None) -> None:
    await session.run(node, feeds, options=options)


@asynccontextmanager
async def _closed_on_error(session: Session) -> AsyncIterator[Session]:
    """Close the session if the block raises; otherwise leave it open."""
    try:
        yield session
    except BaseException:
        await _close(session)
        raise


async def _close(session: Session) -> None:
    """Close an abandoned session and log errors, because the original error matters more."""
    try:
        await session.close()
    except OpError as error:
        _LOGGER.info("closing a session failed: %s", error)


# ── the session creators of a monitored session ───────────────────────────────────────────────────────────────────────


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
