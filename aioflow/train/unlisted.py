"""Checkpoints that no state file names: not yet, because they are being written, or no longer, until they are deleted.

No retention ever looks at them. So a file beside the checkpoint marks it for that time. The file is locked for as long
as its process lives (`formats/temporary_files.py`): the next save of the same run removes checkpoints whose marks have
no living process. In a store there are no locks, and nothing is marked.

Everything here blocks.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from aioflow.errors import OpError
from aioflow.formats.checkpoint import checkpoint_exists, remove_checkpoint, remove_unfinished
from aioflow.formats.manifests import family_of
from aioflow.formats.stores import is_url, local_path
from aioflow.formats.temporary_files import has_writer, temporary_file
from aioflow.formats.temporary_folders import locked_folder
from aioflow.train.checkpoint_state import folder_of, get_checkpoint_state

__all__ = ["UnlistedCheckpoint"]

_MARK: Final = ".unlisted"


class UnlistedCheckpoint:
    """A checkpoint between the beginning of its save and the state file that names it.

    Args:
        prefix: Its prefix.
        latest_filename: The state file that is to name it.
        graph_suffix: Suffix of the file of the graph beside it.
        is_listed: Whether a state file is to name it.
    """

    def __init__(self, prefix: str, latest_filename: str | None, graph_suffix: str, is_listed: bool) -> None:
        self._prefix = prefix
        self._latest_filename = latest_filename
        self._graph_suffix = graph_suffix
        self._is_listed = is_listed
        self._is_new = False  # one that is replaced was there before, and may be in use
        self._marks = ExitStack()

    def begin(self, kept: Collection[str]) -> None:
        """Remove what killed processes have left of this run, and mark the checkpoint, which is about to be written.

        Args:
            kept: Prefixes that stay in any case, beside those that the state file names.
        """
        with suppress(OSError, ValueError, OpError):  # what is wrong with the place is reported by the writer
            if is_url(self._prefix):
                self._is_new = not checkpoint_exists(self._prefix)
                return
            path = local_path(self._prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked_folder(path.parent):  # so that whoever removes checkpoints sees the mark, or has ended before
                with suppress(OSError, OpError):  # it is only for tidiness
                    self._remove_left(path, kept)
                self._is_new = not checkpoint_exists(self._prefix)
                self._mark(self._prefix, can_be_removed=self._is_new and self._is_listed)

    def mark(self, doomed: Iterable[str]) -> None:
        """Mark checkpoints that the state file is about to name no longer, until they have been deleted."""
        with suppress(OSError, ValueError, OpError):  # the disk may be full, and they are about to go
            for prefix in doomed:
                if not is_url(prefix):
                    self._mark(prefix, can_be_removed=True)

    def abandon(self) -> None:
        """Remove the checkpoint, whose save has failed or was cancelled, unless it was there before."""
        with suppress(OSError, ValueError, OpError), self._marks, ExitStack() as stack:  # the cause is on its way
            if not self._is_new:
                return
            if not is_url(self._prefix):
                path = local_path(self._prefix)
                stack.enter_context(locked_folder(path.parent))
                self.close()  # the others that are found are of other saves
                if any(prefix == path.name for _, prefix in _marks(path)):
                    return
            if not _listed(self._prefix, [self._latest_filename], []):
                remove_checkpoint(self._prefix, meta_graph_suffix=self._graph_suffix)

    def close(self) -> None:
        """Remove the marks: the state file names the checkpoint now, and what was doomed is gone."""
        self._marks.close()

    def _mark(self, prefix: str, can_be_removed: bool) -> None:
        path = local_path(prefix)
        mark = self._marks.enter_context(temporary_file(path.with_name(path.name + _MARK)))
        if can_be_removed:  # a mark without contents only tells others that the checkpoint is being written
            content = json.dumps([self._latest_filename, self._graph_suffix])
            os.write(mark.file.fileno(), content.encode())

    def _remove_left(self, path: Path, kept: Collection[str]) -> None:
        remove_unfinished(str(path), self._graph_suffix)
        marks = [(mark, prefix, has_writer(mark)) for mark, prefix in _marks(path)]
        living = {prefix for _, prefix, has_one in marks if has_one is not False}
        for mark, prefix, _ in marks:
            if prefix in living:
                continue
            unlisted = str(path.with_name(prefix))
            with suppress(ValueError):  # it is empty, or the disk was full
                state, graph_suffix = json.loads(mark.read_bytes())
                if not _listed(unlisted, [state, self._latest_filename], kept):
                    remove_checkpoint(unlisted, meta_graph_suffix=graph_suffix)
            mark.unlink(missing_ok=True)


def _marks(path: Path) -> list[tuple[Path, str]]:
    """The marks of a run, each with the name of its checkpoint."""
    mark = re.compile(rf"\.({family_of(path.name)}){re.escape(_MARK)}\.[0-9a-f]{{12}}\.tmp")
    return [(path.with_name(name), match[1]) for name in os.listdir(path.parent) if (match := mark.fullmatch(name))]


def _listed(prefix: str, states: Iterable[str | None], kept: Collection[str]) -> bool:
    """Whether a checkpoint is among those that are kept, or a state file of its folder names it."""
    names = set(kept)
    for latest_filename in dict.fromkeys(states):
        state = get_checkpoint_state(folder_of(prefix), latest_filename)
        names.update(state.all_model_checkpoint_paths if state else ())
    return _identity(prefix) in {_identity(name) for name in names}


def _identity(prefix: str) -> str | Path:
    return prefix if is_url(prefix) else local_path(prefix).absolute()
