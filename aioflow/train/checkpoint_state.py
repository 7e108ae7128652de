"""The list of a directory's checkpoints, kept in a small file `checkpoint` that is replaced atomically; and readers.

The file is TensorFlow's: a CheckpointState in text format. The JSON of early releases is read too. Paths inside the
directory are stored relative to it, so that a directory can be moved. A directory is a local folder or an `fsspec`
URL. The functions here block on small files; `Saver` calls them from a thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aioflow.errors import DataLossError, NotFoundError
from aioflow.formats.checkpoint import (
    CheckpointReader,
    checkpoint_exists,
    committing_file,
    remove_checkpoint,
)
from aioflow.formats.stores import is_url, joined, local_path, store_at, store_of
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
