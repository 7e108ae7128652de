"""`BackgroundSaver`, which writes checkpoints in a task while training continues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType

from aioflow.arguments import check_kind
from aioflow.errors import FailedPreconditionError
from aioflow.session.session import Session
from aioflow.sync.background import Background
from aioflow.train.saver import PendingCheckpoint, Saver, StepNumber


class BackgroundSaver:
    """A saver that writes checkpoints while training continues: `async with BackgroundSaver(saver) as beside:`.

    `save` returns once the snapshot is taken. A task that this object owns then writes it. At most one write runs at a
    time. An error of a write is raised once: by the next `save`, by `finish`, or at the end of the block.

    The end of the block waits for the write in progress, also if the body raised. If that write fails too, the body's
    error gets a note. If the body was cancelled, the write is cancelled as well and the checkpoint is not created.
    """

    def __init__(self, saver: Saver) -> None:
        check_kind(saver, Saver, "saver", "a Saver")
        self._saver = saver
        self._tasks = Background()
        self._turn = asyncio.Lock()  # serializes saves, from waiting for the last write to starting the next
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._closed = False

    @property
    def is_writing(self) -> bool:
        """True if a checkpoint is being written."""
        return self._task is not None and not self._task.done()

    async def save(
        self,
        sess: Session,
        save_path: str | Path,
        global_step: StepNumber = None,
        latest_filename: str | None = None,
        write_state: bool = True,
        *,
        write_meta_graph: bool = True,
        skip: bool = False,
        after: Callable[[str], Awaitable[None]] | None = None,
    ) -> str | None:
        """Take a snapshot and start writing it. See `Saver.snapshot` for its contents and the other parameters.

        With `skip`, take no snapshot while an earlier one is being written; otherwise wait for that write. `after` is
        called with the prefix once the checkpoint is complete, and awaited in the writing task.

        Returns:
            The prefix of the future checkpoint, or None if no snapshot was taken.

        Raises:
            FailedPreconditionError: a variable has no value, or the block has been left.
            Exception: the error of the previous write; no snapshot is taken then.
        """
        self._check_open()
        # A save that waits for its turn counts as one being written, too.
        if skip and (self.is_writing or self._turn.locked()):
            return None
        async with self._turn:
            # An error of the write before is raised here, before another snapshot is taken.
            await self.finish()
            self._check_open()  # it may have been closed while an earlier checkpoint was written
            taken = await self._saver.snapshot(
                sess, save_path, global_step, latest_filename, write_state, write_meta_graph=write_meta_graph
            )
            if taken is None:
                return None
            # Still in the turn: the next save must find this task.
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
            # Kept for the next call: an error of this task itself would reach no caller.
            self._error = error

    async def finish(self) -> None:
        """Wait for the write in progress. Raise its error, unless the error has been raised before."""
        # Taken out before it is raised, so that it is raised once.
        if self._task is not None:
            await asyncio.wait([self._task])
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def close(self) -> None:
        """Refuse further snapshots, then wait for the write as `finish` does.

        If the caller is cancelled meanwhile, cancel the write.
        """
        self._closed = True
        try:
            # The lock is held while a snapshot is taken, so the write that follows it is awaited too.
            async with self._turn:
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
