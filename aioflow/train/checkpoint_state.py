"""Which checkpoints a directory holds: a small JSON file, `checkpoint`, replaced atomically; and readers.

Paths inside the directory are stored relative to it, so that a directory can be moved. The functions here block on
small files; `Saver` calls them from a thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aioflow.errors import DataLossError, NotFoundError
from aioflow.formats.checkpoint import (
    CheckpointReader,
    checkpoint_exists,
    remove_checkpoint,
    write_atomically,
)
from aioflow.formats.files import file_errors
from aioflow.graph.arrays import Array

__all__ = [
    "CheckpointReader",
    "CheckpointState",
    "checkpoint_exists",
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


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The checkpoints of a directory.

    Attributes:
        model_checkpoint_path: The newest.
        all_model_checkpoint_paths: All that are kept, oldest first.
        all_model_checkpoint_timestamps: When each was written, in seconds since 1970; may be empty.
    """

    model_checkpoint_path: str
    all_model_checkpoint_paths: Sequence[str] = field(default_factory=tuple)
    all_model_checkpoint_timestamps: Sequence[float] = field(default_factory=tuple)


def _state_file(directory: str | Path, latest_filename: str | None) -> Path:
    return Path(directory) / (latest_filename or _FILE)


def _inside(directory: Path, path: str) -> str:
    """`path` as it is stored: relative to the directory where it is inside."""
    full = Path(path).absolute()
    root = directory.absolute()
    return str(full.relative_to(root)) if full.is_relative_to(root) else str(full)


def update_checkpoint_state(
    save_dir: str | Path,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Iterable[str] | None = None,
    latest_filename: str | None = None,
    all_model_checkpoint_timestamps: Iterable[float] | None = None,
) -> None:
    """Record which checkpoints a directory holds.

    Args:
        all_model_checkpoint_paths: Oldest first; the newest is added where it is missing.
    """
    directory = Path(save_dir)
    paths = [str(p) for p in all_model_checkpoint_paths or ()]
    if str(model_checkpoint_path) not in paths:
        paths.append(str(model_checkpoint_path))
    content = {
        "model_checkpoint_path": _inside(directory, str(model_checkpoint_path)),
        "all_model_checkpoint_paths": [_inside(directory, p) for p in paths],
        "all_model_checkpoint_timestamps": list(all_model_checkpoint_timestamps or ()),
    }
    write_atomically(_state_file(directory, latest_filename), (json.dumps(content, indent=1) + "\n").encode())


def get_checkpoint_state(checkpoint_dir: str | Path, latest_filename: str | None = None) -> CheckpointState | None:
    """What a directory's `checkpoint` file says, or None where there is none.

    Raises:
        DataLossError: the file is damaged.
        PermissionDeniedError, FailedPreconditionError, …: it cannot be read.
    """
    directory = Path(checkpoint_dir)
    path = _state_file(directory, latest_filename)
    with file_errors(path):
        try:
            raw = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
    try:
        content: dict[str, Any] = json.loads(raw)
        newest = str(directory / content["model_checkpoint_path"])
        every = tuple(str(directory / p) for p in content["all_model_checkpoint_paths"])
        times = tuple(float(t) for t in content.get("all_model_checkpoint_timestamps", ()))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise DataLossError(f"file {path} is damaged", expected="a checkpoint state", actual=str(error)) from error
    return CheckpointState(newest, every, times)


def latest_checkpoint(checkpoint_dir: str | Path, latest_filename: str | None = None) -> str | None:
    """Prefix of the newest checkpoint of a directory, or None where there is none."""
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    if state is None or not checkpoint_exists(state.model_checkpoint_path):
        return None
    return state.model_checkpoint_path


def get_checkpoint_mtimes(checkpoint_prefixes: Iterable[str]) -> list[float]:
    """When each checkpoint was written, in seconds since 1970; those that do not exist are left out."""
    found = []
    for prefix in checkpoint_prefixes:
        path = Path(prefix + ".manifest.json")
        if path.exists():
            found.append(path.stat().st_mtime)
    return found


def load_checkpoint(ckpt_dir_or_file: str | Path) -> CheckpointReader:
    """A reader of a checkpoint, given by its prefix or by its directory (the newest one there).

    Raises:
        NotFoundError: there is none.
        DataLossError: it is truncated or altered.
    """
    if Path(ckpt_dir_or_file).is_dir():
        newest = latest_checkpoint(ckpt_dir_or_file)
        if newest is None:
            raise NotFoundError(
                f"there is no checkpoint in {ckpt_dir_or_file}", expected="a `checkpoint` file", actual="none"
            )
        return CheckpointReader(newest)
    return CheckpointReader(str(ckpt_dir_or_file))


def list_variables(ckpt_dir_or_file: str | Path) -> list[tuple[str, list[int]]]:
    """Name and shape of each tensor of a checkpoint, by name."""
    reader = load_checkpoint(ckpt_dir_or_file)
    return [(name, list(reader.shape(name))) for name in reader.names()]


def load_variable(ckpt_dir_or_file: str | Path, name: str) -> Array:
    """One value of a checkpoint. Raises NotFoundError."""
    return load_checkpoint(ckpt_dir_or_file).read(name.removesuffix(":0"))
