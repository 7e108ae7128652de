"""`CheckpointSaverHook`: checkpoints every given number of steps or seconds, with listeners around each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from aioflow.arguments import check_text
from aioflow.concurrency.threads import in_thread
from aioflow.errors import FailedPreconditionError, InvalidArgumentError
from aioflow.formats.stores import joined
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import GraphKeys
from aioflow.session.session import Session
from aioflow.train.coordinator import Coordinator
from aioflow.train.graph_io import write_graph
from aioflow.train.monitored.checkpointed_input import CheckpointedInput
from aioflow.train.monitored.scaffold import Scaffold
from aioflow.train.monitored.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    called,
)
from aioflow.train.monitored.timers import SecondOrStepTimer, required_global_step
from aioflow.train.saver import PendingCheckpoint, Saver

_LOGGER: Final = logging.getLogger("aioflow.train")
_MANY: Final = 1_000_000  # upper bound of the steps that one run makes


class CheckpointSaverListener:
    """Callbacks around checkpoints. Override those needed; each may be a coroutine function."""

    def begin(self) -> object:
        """Prepare the graph. Called once before a session exists: the last chance to add nodes to the default graph."""

    def before_save(self, session: Session, global_step_value: int) -> object:
        """Act before each checkpoint."""

    def after_save(self, session: Session, global_step_value: int) -> object:
        """Act after each checkpoint. Return True to end the training, except after a session's first and last one."""

    def end(self, session: Session, global_step_value: int) -> object:
        """Act at the end of the training, after the last checkpoint."""


class CheckpointSaverHook(SessionRunHook):
    """A hook that writes a checkpoint with each new session, every given number of steps or seconds, and at the end.

    Args:
        checkpoint_dir: Folder of the checkpoints, or the URL of a folder in a store.
        save_secs, save_steps: Interval in seconds or in steps; exactly one must be given.
        saver: Saver to use; by default that of `scaffold`, or else the one in the collection of savers.
        checkpoint_basename: Files are named "BASENAME-STEP".
        scaffold: Scaffold whose saver is used; at most one of `saver` and `scaffold` may be given.
        listeners: Listeners called around each checkpoint.
        save_graph_def: Write the graph to "graph.pbtxt" with each new session, for `train.read_graph`, and beside each
            checkpoint, for `train.import_meta_graph`.
        input: The input whose position becomes part of each checkpoint.

    Raises:
        InvalidArgumentError: both or neither of two exclusive arguments are given.
    """

    def __init__(
        self,
        checkpoint_dir: str | Path,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Saver | None = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Scaffold | None = None,
        listeners: Iterable[CheckpointSaverListener] | None = None,
        save_graph_def: bool = True,
        *,
        input: CheckpointedInput | None = None,
    ) -> None:
        if saver is not None and scaffold is not None:
            raise InvalidArgumentError("two savers are given", expected="saver or scaffold", actual="both")
        check_text(checkpoint_basename, "checkpoint_basename")
        self._saver = saver
        self._scaffold = scaffold
        self._folder = checkpoint_dir
        self._path = joined(checkpoint_dir, checkpoint_basename)
        self._timer = SecondOrStepTimer(every_secs=save_secs, every_steps=save_steps)
        self._listeners = list(listeners or ())
        self._save_graph_def = save_graph_def
        self._input = input
        self._saving = asyncio.Lock()  # serializes saves, so that the last to start is the latest checkpoint
        self._coord: Coordinator | None = None
        self._last = -1  # the step of the last checkpoint

    async def begin(self) -> None:
        """Find the global step and call the listeners. Raise FailedPreconditionError without a global step."""
        self._graph = default_graph()
        self._step = required_global_step(self)
        for listener in self._listeners:
            await called(listener.begin)

    async def after_create_session(self, session: Any, coord: Coordinator) -> None:
        """Write the graph and a checkpoint."""
        # The variables may have been rolled back, so the last step saved says nothing about this session.
        self._coord, self._last = coord, -1
        step = int(await session.run(self._step))
        if self._save_graph_def:
            # In a thread, because encoding a graph and writing it block.
            await in_thread(write_graph, self._graph, self._folder, "graph.pbtxt")
        await self._save(session, step)
        self._timer.update_last_triggered_step(step)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step."""
        return SessionRunArgs(self._step)

    async def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Take a snapshot when it is due.

        A task of the coordinator writes the snapshot while the next steps run, after the write before it. If writing
        fails, training fails. With listeners, the next step waits for the write, because the listeners do.
        """
        # The fetched step may be older than the update, and other clients may have advanced it. Only if the interval
        # could be over is the step read again.
        if not self._timer.should_trigger_for_step(int(run_values.results) + _MANY):
            return
        step = int(await run_context.session.run(self._step))
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            if await self._save(run_context.session, step, beside=None if self._listeners else self._coord):
                run_context.request_stop()

    async def end(self, session: Any) -> None:
        """Write the last checkpoint, unless the current step has one, and call the listeners."""
        # The last step of the training may have been made by another client since the last fetch.
        step = int(await session.run(self._step))
        await self._save(session, step)
        for listener in self._listeners:
            await called(listener.end, session, step)

    async def _save(self, session: Session, step: int, beside: Coordinator | None = None) -> bool:
        """Write a checkpoint, or have `beside` write its snapshot. Return whether a listener ends the training."""
        # Read before the lock is taken: while this call waits, other runs go on.
        late = self._saving.locked()
        await self._saving.acquire()
        # False while this call owns the lock, True once the writing task does.
        begun = False
        try:
            if late:  # another run was saving while steps went on
                step = int(await session.run(self._step))
            # The save that this call waited for has covered the step.
            if step == self._last:
                return False
            for listener in self._listeners:
                await called(listener.before_save, session, step)
            # The position is written inside, so that it belongs to the same snapshot as the variables.
            async with nullcontext() if self._input is None else self._input.saving(session):
                if self._input is not None:
                    # Steps have ended while `saving` waited for them.
                    step = int(await session.run(self._step))
                taken = await self._chosen().snapshot(session, self._path, step, write_meta_graph=self._save_graph_def)
            if beside is not None:
                # The write keeps the lock, so that the next save starts only after it.
                # A done callback runs also if the task is cancelled before its first step, so the lock is always
                # released.
                beside.start(self._write(taken, step)).add_done_callback(lambda _: self._saving.release())
                begun = True
                return False
            await self._write(taken, step)
            # A list, not a generator: every listener is called even if the first one ends the training.
            return any([await called(listener.after_save, session, step) for listener in self._listeners])
        finally:
            if not begun:
                self._saving.release()

    async def _write(self, taken: PendingCheckpoint | None, step: int) -> None:
        if taken is not None:
            await taken.write()
        # Set after the write: if it fails or is cancelled, the next save writes the step again.
        self._last = step
        _LOGGER.info("saved step %d as %s-%d", step, self._path, step)

    def _chosen(self) -> Saver:
        if self._saver is None and self._scaffold is not None:
            return self._scaffold.saver  # type: ignore[no-any-return]  # finalized by now
        if self._saver is None:
            found = self._graph.get_collection(GraphKeys.SAVERS)
            if len(found) != 1:
                raise FailedPreconditionError(
                    "it is not clear which saver to use",
                    expected="saver=, scaffold=, or one in the collection of savers",
                    actual=f"{len(found)} in the collection",
                )
            self._saver = found[0]
        return self._saver
