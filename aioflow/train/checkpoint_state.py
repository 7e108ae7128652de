"""The checkpoints of a directory: their list in the small file `checkpoint`, and those that no such file names.

The file is TensorFlow's: a CheckpointState in text format. The JSON of early releases is read too. Paths inside the
directory are stored relative to it, so that a directory can be moved. A directory is a local folder or an `fsspec` URL.
The functions here block on small files; `Saver` calls them from a thread.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aioflow.errors import DataLossError, NotFoundError, OpError
from aioflow.formats.checkpoint import (
    CheckpointReader,
    checkpoint_exists,
    committing_file,
    remove_checkpoint,
    remove_unfinished,
)
from aioflow.formats.manifests import family_of
from aioflow.formats.stores import is_url, joined, local_path, store_at, store_of
from aioflow.formats.temporary_files import has_writer, temporary_file
from aioflow.formats.temporary_folders import locked_folder
from aioflow.memory.values import Array
from aioflow.protos import message, parse_text, to_text

__all__ = [
    "CheckpointReader",
    "CheckpointState",
    "checkpoint_exists",
    "folder_of",
    "get_checkpoint_mtimes",
    "get_checkpoint_state",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
    "remove_checkpoint",
    "update_checkpoint_state",
]


_FILE: Final = "checkpoint"
_JSON: Final = (b"{", b"[")  # first bytes of the JSON files that early releases wrote


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The checkpoints of a directory.

    Attributes:
        model_checkpoint_path: Prefix of the newest checkpoint.
        all_model_checkpoint_paths: Prefixes of all checkpoints that are kept, oldest first.
        all_model_checkpoint_timestamps: Time at which each was written, in seconds since 1970; may be empty.
    """

    model_checkpoint_path: str
    all_model_checkpoint_paths: Sequence[str] = field(default_factory=tuple)
    all_model_checkpoint_timestamps: Sequence[float] = field(default_factory=tuple)


def folder_of(prefix: str) -> str:
    """Return the folder that contains a checkpoint."""
    return prefix.rpartition("/")[0] if is_url(prefix) else store_of(prefix)[0].path("")


def _inside(directory: str, path: str) -> str:
    """Return `path` in its stored form: relative to the directory if it lies inside."""
    if is_url(directory) or is_url(path):
        return path.removeprefix(directory.rstrip("/") + "/")
    full = local_path(path).absolute()
    root = local_path(directory).absolute()
    return str(full.relative_to(root)) if full.is_relative_to(root) else str(full)


def update_checkpoint_state(
    save_dir: str | Path,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Iterable[str] | None = None,
    latest_filename: str | None = None,
    all_model_checkpoint_timestamps: Iterable[float] | None = None,
) -> None:
    """Record which checkpoints a directory holds.

    `all_model_checkpoint_paths` is ordered oldest first; `model_checkpoint_path`, the newest, is appended if missing.
    """
    directory = os.fspath(save_dir)
    paths = [str(p) for p in all_model_checkpoint_paths or ()]
    if str(model_checkpoint_path) not in paths:
        paths.append(str(model_checkpoint_path))
    content = message("CheckpointState")(
        model_checkpoint_path=_inside(directory, str(model_checkpoint_path)),
        all_model_checkpoint_paths=[_inside(directory, p) for p in paths],
        all_model_checkpoint_timestamps=list(all_model_checkpoint_timestamps or ()),
    )
    store_at(directory).put(latest_filename or _FILE, to_text(content).encode())


def get_checkpoint_state(checkpoint_dir: str | Path, latest_filename: str | None = None) -> CheckpointState | None:
    """Return the contents of a directory's `checkpoint` file, or None if there is no such file.

    Raises:
        DataLossError: the file is damaged.
        PermissionDeniedError, FailedPreconditionError, …: the file cannot be read.
    """
    store, name = store_at(checkpoint_dir), latest_filename or _FILE
    path = store.path(name)
    if store.size(name) is None:
        return None
    raw = store.read(name)
    try:
        content: dict[str, Any] = json.loads(raw) if raw.lstrip()[:1] in _JSON else _from_text(raw)
        newest = joined(checkpoint_dir, content["model_checkpoint_path"])
        every = tuple(joined(checkpoint_dir, p) for p in content["all_model_checkpoint_paths"])
        times = tuple(float(t) for t in content.get("all_model_checkpoint_timestamps", ()))
    except (
        DataLossError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise DataLossError(f"file {path} is damaged", expected="a checkpoint state", actual=str(error)) from error
    return CheckpointState(newest, every, times)


def _from_text(raw: bytes) -> dict[str, Any]:
    state = parse_text("CheckpointState", raw)
    if not state.model_checkpoint_path:
        raise ValueError("it names no checkpoint")
    return {
        "model_checkpoint_path": state.model_checkpoint_path,
        "all_model_checkpoint_paths": list(state.all_model_checkpoint_paths) or [state.model_checkpoint_path],
        "all_model_checkpoint_timestamps": list(state.all_model_checkpoint_timestamps),
    }


def latest_checkpoint(checkpoint_dir: str | Path, latest_filename: str | None = None) -> str | None:
    """Return the prefix of the newest checkpoint of a directory, or None if there is no checkpoint."""
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    if state is None or not checkpoint_exists(state.model_checkpoint_path):
        return None
    return state.model_checkpoint_path


def get_checkpoint_mtimes(checkpoint_prefixes: Iterable[str]) -> list[float]:
    """Return the time each checkpoint was written, in seconds since 1970; missing checkpoints are left out."""
    found = []
    for prefix in checkpoint_prefixes:
        file = committing_file(prefix)
        if file is not None:
            store, name = store_of(file)
            written = store.modified(name)
            found += [] if written is None else [written]
    return found


def load_checkpoint(ckpt_dir_or_file: str | Path) -> CheckpointReader:
    """Return a reader of a checkpoint, given by its prefix or by its directory (the newest one in it).

    Raises:
        NotFoundError: there is no checkpoint.
        DataLossError: the checkpoint is truncated or altered.
    """
    text = os.fspath(ckpt_dir_or_file)
    # A URL counts as a directory unless a checkpoint with that prefix exists.
    if not checkpoint_exists(text) if is_url(text) else local_path(text).is_dir():
        newest = latest_checkpoint(ckpt_dir_or_file)
        if newest is None:
            raise NotFoundError(
                f"there is no checkpoint in {ckpt_dir_or_file}", expected="a `checkpoint` file", actual="none"
            )
        return CheckpointReader(newest)
    return CheckpointReader(text)


def NewCheckpointReader(filepattern: str | Path) -> CheckpointReader:
    """Return a reader of the checkpoint with this prefix. Errors are those of `load_checkpoint`."""
    return CheckpointReader(os.fspath(filepattern))


def list_variables(ckpt_dir_or_file: str | Path) -> list[tuple[str, list[int]]]:
    """Return the name and shape of each tensor of a checkpoint, sorted by name."""
    reader = load_checkpoint(ckpt_dir_or_file)
    return [(name, list(reader.shape(name))) for name in reader.names()]


def load_variable(ckpt_dir_or_file: str | Path, name: str) -> Array:
    """Return one value of a checkpoint; a suffix ":0" of the name is ignored.

    Raises:
        NotFoundError: there is no checkpoint, or it has no tensor of that name.
    """
    return load_checkpoint(ckpt_dir_or_file).read(name.removesuffix(":0"))


# ── checkpoints that no state file names: those being written, and those after a failure ──────────────────────────────
#
# Retention never sees them, so a file beside the checkpoint marks it in the meantime. The file is locked while its
# process lives (`formats/temporary_files.py`). The next save of the same run removes checkpoints whose marks have no
# living process. Stores have no locks, so nothing is marked there.
#
# Everything here blocks.


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
