"""Checkpoints that no state file names: those being written, and those about to be deleted.

Retention never sees them, so a file beside the checkpoint marks it in the meantime. The file is locked while its
process lives (`formats/temporary_files.py`). The next save of the same run removes checkpoints whose marks have no
living process. Stores have no locks, so nothing is marked there.

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

_MARK: Final = ".unlisted"


class UnlistedCheckpoint:
    """A checkpoint between the start of its save and the state file that names it.

    Args:
        prefix: Prefix of the checkpoint.
        latest_filename: Name of the state file.
        graph_suffix: Suffix of the graph's file.
        is_listed: Whether the state file will name the checkpoint.
    """

    def __init__(self, prefix: str, latest_filename: str | None, graph_suffix: str, is_listed: bool) -> None:
        self._prefix = prefix
        self._latest_filename = latest_filename
        self._graph_suffix = graph_suffix
        self._is_listed = is_listed
        self._is_new = False  # a checkpoint that is replaced existed before and may be in use
        self._marks = ExitStack()

    def begin(self, kept: Collection[str]) -> None:
        """Remove files left by killed processes of this run, and mark the checkpoint that is about to be written.

        `kept` are prefixes that are never removed, in addition to those that the state file names.
        """
        with suppress(OSError, ValueError, OpError):  # the writer reports problems with the folder
            if is_url(self._prefix):
                self._is_new = not checkpoint_exists(self._prefix)
                return
            path = local_path(self._prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            # Under the lock: a concurrent removal has either finished or will see the mark.
            with locked_folder(path.parent):
                with suppress(OSError, OpError):  # cleaning up is optional
                    self._remove_left(path, kept)
                self._is_new = not checkpoint_exists(self._prefix)
                self._mark(self._prefix, can_be_removed=self._is_new and self._is_listed)

    def mark(self, doomed: Iterable[str]) -> None:
        """Mark checkpoints that the state file is about to drop, until they have been deleted."""
        with suppress(OSError, ValueError, OpError):  # the disk may be full, and these are about to be deleted
            for prefix in doomed:
                if not is_url(prefix):
                    self._mark(prefix, can_be_removed=True)

    def abandon(self) -> None:
        """Remove the checkpoint, whose save has failed or was cancelled, unless it existed before."""
        # The caller is about to raise the cause: an error of the removal must not hide it.
        with suppress(OSError, ValueError, OpError), self._marks, ExitStack() as stack:
            if not self._is_new:
                return
            if not is_url(self._prefix):
                path = local_path(self._prefix)
                stack.enter_context(locked_folder(path.parent))
                self.close()  # marks found from here on belong to other saves
                if any(prefix == path.name for _, prefix in _marks(path)):
                    return
            # The state file may name it already if the failure came later.
            if not _listed(self._prefix, [self._latest_filename], []):
                remove_checkpoint(self._prefix, meta_graph_suffix=self._graph_suffix)

    def close(self) -> None:
        """Remove the marks: the state file names the checkpoint, and doomed checkpoints have been deleted."""
        self._marks.close()

    def _mark(self, prefix: str, can_be_removed: bool) -> None:
        path = local_path(prefix)
        mark = self._marks.enter_context(temporary_file(path.with_name(path.name + _MARK)))
        if can_be_removed:  # an empty mark only tells others that the checkpoint is being written
            content = json.dumps([self._latest_filename, self._graph_suffix])
            os.write(mark.file.fileno(), content.encode())

    def _remove_left(self, path: Path, kept: Collection[str]) -> None:
        # None means that it cannot be known whether the writer lives.
        remove_unfinished(str(path), self._graph_suffix)
        marks = [(mark, prefix, has_writer(mark)) for mark, prefix in _marks(path)]
        living = {prefix for _, prefix, has_one in marks if has_one is not False}
        for mark, prefix, _ in marks:
            if prefix in living:
                continue
            unlisted = str(path.with_name(prefix))
            with suppress(ValueError):  # the mark is empty, also if the disk was full
                state, graph_suffix = json.loads(mark.read_bytes())
                if not _listed(unlisted, [state, self._latest_filename], kept):
                    remove_checkpoint(unlisted, meta_graph_suffix=graph_suffix)
            mark.unlink(missing_ok=True)


def _marks(path: Path) -> list[tuple[Path, str]]:
    """Return the marks of a run, each with the name of its checkpoint."""
    mark = re.compile(rf"\.({family_of(path.name)}){re.escape(_MARK)}\.[0-9a-f]{{12}}\.tmp")
    return [(path.with_name(name), match[1]) for name in os.listdir(path.parent) if (match := mark.fullmatch(name))]


def _listed(prefix: str, states: Iterable[str | None], kept: Collection[str]) -> bool:
    """Return whether a checkpoint is in `kept`, or a state file of its folder names it."""
    names = set(kept)
    for latest_filename in dict.fromkeys(states):
        state = get_checkpoint_state(folder_of(prefix), latest_filename)
        names.update(state.all_model_checkpoint_paths if state else ())
    return _identity(prefix) in {_identity(name) for name in names}


def _identity(prefix: str) -> str | Path:
    return prefix if is_url(prefix) else local_path(prefix).absolute()
