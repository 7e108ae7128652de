"""Checkpoints that are whole, and that no state file names: a program was killed between the one and the other.

No retention would ever look at them. While a saver is between the two, a file beside the checkpoint says so, which is
locked for as long as its program lives (`formats/temporary_files.py`): the next save of the same run takes away what is
marked by one who is no more. In a store there are no locks, and nothing is marked.

Everything here blocks but for `until_listed`.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Collection
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Final

from aioflow.errors import OpError
from aioflow.formats.checkpoint import checkpoint_exists, remove_checkpoint
from aioflow.formats.manifests import family_of
from aioflow.formats.stores import is_url, local_path
from aioflow.formats.temporary_files import has_writer, temporary_file
from aioflow.train.checkpoint_state import get_checkpoint_state
from aioflow.work.threads import in_thread

__all__ = ["remove_unlisted", "until_listed"]

_MARK: Final = ".unlisted"


@asynccontextmanager
async def until_listed(prefix: str) -> AsyncIterator[None]:
    """A block in which a checkpoint is written, and then the state file that names it."""
    with ExitStack() as stack:
        await in_thread(lambda: _mark(prefix, stack))
        try:
            yield
        finally:
            await in_thread(stack.close)


def _mark(prefix: str, stack: ExitStack) -> None:
    if is_url(prefix):
        return
    path = local_path(prefix)
    with suppress(OSError, ValueError):  # what is wrong with the place is said by who writes the checkpoint
        if not checkpoint_exists(prefix):  # one that is replaced was there before, and somebody may want it
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(temporary_file(path.with_name(path.name + _MARK)))


def remove_unlisted(prefix: str, listed: Collection[str], latest_filename: str | None) -> None:
    """Take away the checkpoints of the run of a prefix that killed programs have written and not listed.

    Args:
        listed: Prefixes that the state file is about to name.
        latest_filename: The state file; those that it names now stay as well.
    """
    if is_url(prefix):
        return
    path = local_path(prefix)
    mark = re.compile(rf"\.({family_of(path.name)}){re.escape(_MARK)}\.[0-9a-f]{{12}}\.tmp")
    with suppress(OSError, OpError):  # it is only for tidiness
        found = {name: match[1] for name in os.listdir(path.parent) if (match := mark.fullmatch(name))}
        left = [name for name in found if has_writer(path.parent / name) is False]
        if not left:
            return
        state = get_checkpoint_state(path.parent, latest_filename)
        kept = {*listed, *(state.all_model_checkpoint_paths if state else ())}
        names = {local_path(other).absolute() for other in kept}
        for name in left:
            unlisted = path.with_name(found[name])
            if unlisted.absolute() not in names:
                remove_checkpoint(str(unlisted))
            (path.parent / name).unlink(missing_ok=True)
