"""Where the versions of a model are: numbered folders in one, as TensorFlow Serving has them, or a single model."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aioflow.errors import InvalidArgumentError, NotFoundError
from aioflow.formats.files import file_errors
from aioflow.formats.stores import is_url, local_path
from aioflow.graph.shapes import Dims
from aioflow.saved.opening import checkpoint_prefix

__all__ = ["NAME", "ModelSource", "parse_source"]

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_ALL: Final = "all"
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_ONLY: Final = 1  # the version of a model without versions


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model is, and which versions of it are served.

    Attributes:
        path: A model, or a folder whose numbered entries are versions of one.
        versions: Which; () for the newest, None for all that there are.
        shapes: Shapes of inputs by name, for an ONNX model whose file does not say them.
    """

    path: str
    versions: tuple[int, ...] | None = ()
    shapes: Mapping[str, Dims] = field(default_factory=dict)

    def find(self) -> Mapping[int, str]:
        """The path of each version that is to be served. Blocks on the disk.

        Raises:
            NotFoundError: there is nothing there, or not such a version.
        """
        present = _versions(self.path)
        if self.versions is None:
            return {version: _inner(path) for version, path in present.items()}
        wanted = self.versions or (max(present),)
        missing = [version for version in wanted if version not in present]
        if missing:
            raise NotFoundError(
                f"{self.path} has no version {missing[0]}", expected=f"one of {sorted(present)}", actual=missing[0]
            )
        return {version: _inner(present[version]) for version in wanted}  # the others may be anything


def _versions(path: str) -> Mapping[int, str | Path]:
    """What there is; entries of the folder are paths, and have not been looked at."""
    if is_url(path):
        return {_ONLY: path}
    place = Path(local_path(path))
    with file_errors(place):
        if not place.is_dir():
            _check_there(place)
            return {_ONLY: path}
        numbered = [entry for entry in place.iterdir() if _NUMBER.fullmatch(entry.name)]
    return {int(entry.name): entry for entry in numbered} or {_ONLY: path}


def _check_there(place: Path) -> None:
    """Raise NotFoundError where nothing is. A checkpoint's prefix is no file: who opens it says more."""
    try:
        place.stat()
    except FileNotFoundError as error:
        if checkpoint_prefix(place) is None:
            raise NotFoundError(
                f"there is no model {place}", expected="a model, or a folder with numbered ones in it", actual="nothing"
            ) from error


def _inner(entry: str | Path) -> str:
    """An entry with one model file and nothing else that is a model stands for that file, as in Triton's layout."""
    if isinstance(entry, str):
        return entry
    onnx = entry / "model.onnx"
    with file_errors(entry):
        return str(onnx if entry.is_dir() and onnx.is_file() else entry)


def parse_source(text: str) -> tuple[str, ModelSource]:
    """The name and the source of "NAME=FOLDER", "NAME=FOLDER:2", "NAME=FOLDER:1,2" or "NAME=FOLDER:all".

    Raises:
        InvalidArgumentError: it is none of these.
    """
    name, equals, rest = text.partition("=")
    if not equals or not rest or "\0" in rest or not NAME.fullmatch(name):
        raise InvalidArgumentError(
            "this does not say which model", expected="NAME=FOLDER[:VERSION]; letters, digits, _ . -", actual=text
        )
    path, colon, last = rest.rpartition(":")
    if not colon or not path or os.path.exists(rest):
        return name, ModelSource(rest)
    if last == _ALL:
        return name, ModelSource(path, None)
    numbers = last.split(",")
    if all(map(_NUMBER.fullmatch, numbers)):
        return name, ModelSource(path, tuple(map(int, numbers)))
    return name, ModelSource(rest)
