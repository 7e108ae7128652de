"""`BackgroundSaver`: owns the task that writes a checkpoint while the training goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType

import aioflow
from aioflow.errors import FailedPreconditionError
from aioflow.graph.argument_kinds import check_kind
from aioflow.sync.background import Background
from aioflow.train.saver import PendingCheckpoint, Saver, StepNumber

__all__ = ["BackgroundSaver"]


class BackgroundSaver:
    """Writes checkpoints beside the training: `async with BackgroundSaver(saver) as beside:`.

    `save` returns when the snapshot is taken; the writing goes on in a task that belongs to this object. There is one
    at a time. What a write fails with is raised by the next `save`, by `finish`, or at the end of the block, once.

    The block waits for the write under way, also when it is left by an error, which gets a note if the write fails as
    well. Where it is cancelled, so is the write: the checkpoint does not come into being then.
    """

    def __init__(self, saver: Saver) -> None:
        check_kind(saver, Saver, "saver", "a Saver")
        self._saver = saver
        self._tasks = Background()
        self._turn = asyncio.Lock()  # of the saves, from the end of one write to the beginning of the next
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._closed = False

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._task is not None and not self._task.done()

    async def save(
        self,
        sess: aioflow.Session,
        save_path: str | Path,
        global_step: StepNumber = None,
        latest_filename: str | None = None,
        write_state: bool = True,
        *,
        write_meta_graph: bool = True,
        skip: bool = False,
        after: Callable[[str], Awaitable[None]] | None = None,
    ) -> str | None:
        """Take a snapshot, and have it written. See `Saver.snapshot` for what is in it.

        Args:
            write_meta_graph: As of `Saver.save`.
            skip: Take none if an earlier one is still being written. Otherwise this waits until it has been.
            after: Called with the prefix and awaited, in the task, when the checkpoint is complete.

        Returns:
            The prefix that the checkpoint will have; None where none was taken.

        Raises:
            FailedPreconditionError: a variable has no value; the block has been left.
            Exception: what the write before this one failed with. No snapshot is taken then.
        """
        self._check_open()
        if skip and (self.is_writing or self._turn.locked()):
            return None
        async with self._turn:
            await self.finish()
            self._check_open()  # it may have been closed while an earlier checkpoint was written
            taken = await self._saver.snapshot(
                sess, save_path, global_step, latest_filename, write_state, write_meta_graph=write_meta_graph
            )
            if taken is None:
                return None
            self._task = await self._tasks.start(self._write(taken, after))
            return taken.prefix

    def _check_open(self) -> None:
        if self._closed:
            raise FailedPreconditionError(
                "the background saver has been closed", expected="a save inside its block", actual="one after it"
            )

    async def _write(self, taken: PendingCheckpoint, after: Callable[[str], Awaitable[None]] | None) -> None:
        try:
            prefix = await taken.write()
            if after is not None:
                await after(prefix)
        except Exception as error:
            self._error = error

    async def finish(self) -> None:
        """Wait until nothing is being written. Raises what the write failed with, unless that has been raised."""
        if self._task is not None:
            await asyncio.wait([self._task])
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def close(self) -> None:
        """`finish`, and take no more snapshots. Where the caller is cancelled meanwhile, so is the write."""
        self._closed = True
        try:
            async with self._turn:  # the write of a save whose snapshot is being taken is waited for as well
                await self.finish()
        finally:
            await self._tasks.close()

    async def __aenter__(self) -> BackgroundSaver:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        elif isinstance(error, Exception):
            try:
                await self.close()
            except Exception as failure:
                error.add_note(f"the checkpoint that was being written failed as well: {failure}")
        else:
            self._closed = True
            await self._tasks.close()
