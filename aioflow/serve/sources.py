"""The source of a model: a folder with numbered versions, as in TensorFlow Serving, or a single model."""

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

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_ALL: Final = "all"
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_ONLY: Final = 1  # the version of a model without versions


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The path of a model, and the versions of it to serve.

    Attributes:
        path: A model, or a folder whose numbered entries are versions of one model.
        versions: Versions to serve; () for the newest, None for all.
        shapes: Input shapes by name, for an ONNX model whose file does not declare them.
    """

    path: str
    versions: tuple[int, ...] | None = ()
    shapes: Mapping[str, Dims] = field(default_factory=dict)

    def find(self) -> Mapping[int, str]:
        """Return the path of each version to serve. Reads the disk, so it blocks.

        Raises:
            NotFoundError: there is no model at the path, or a requested version is missing.
        """
        present = _versions(self.path)
        if self.versions is None:
            return {version: _inner(path) for version, path in present.items()}
        # `versions` is () here: the newest.
        wanted = self.versions or (max(present),)
        missing = [version for version in wanted if version not in present]
        if missing:
            raise NotFoundError(
                f"{self.path} has no version {missing[0]}", expected=f"one of {sorted(present)}", actual=missing[0]
            )
        # Resolve only the requested versions: the other entries need not be models.
        return {version: _inner(present[version]) for version in wanted}


def _versions(path: str) -> Mapping[int, str | Path]:
    """Return the available versions. Numbered entries are returned as `Path` and have not been opened."""
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
    """Raise NotFoundError if the path does not exist.

    A checkpoint prefix passes, although it names no file: opening the checkpoint reports errors in more detail.
    """
    try:
        place.stat()
    except FileNotFoundError as error:
        if checkpoint_prefix(place) is None:
            raise NotFoundError(
                f"there is no model {place}", expected="a model, or a folder of numbered versions", actual="nothing"
            ) from error


def _inner(entry: str | Path) -> str:
    """Return the path of the model in `entry`: its `model.onnx`, as in Triton's layout, or the entry itself."""
    if isinstance(entry, str):
        return entry
    onnx = entry / "model.onnx"
    with file_errors(entry):
        return str(onnx if entry.is_dir() and onnx.is_file() else entry)


def parse_source(text: str) -> tuple[str, ModelSource]:
    """Parse "NAME=MODEL", "NAME=MODEL:2", "NAME=MODEL:1,2" or "NAME=MODEL:all" into a name and a source.

    Raises:
        InvalidArgumentError: `text` has none of these forms.
    """
    name, equals, rest = text.partition("=")
    if not equals and text and "\0" not in text:
        raise InvalidArgumentError(
            f"a model needs a name: write NAME={text}", expected="NAME=MODEL[:VERSION]", actual=text
        )
    if not rest or "\0" in rest or not NAME.fullmatch(name):
        raise InvalidArgumentError(
            "malformed model argument",
            expected="NAME=MODEL[:VERSION], NAME of letters, digits and _ . -",
            actual=text,
        )
    path, colon, last = rest.rpartition(":")
    # An existing path may contain a colon, so a path that exists is never split.
    if not colon or not path or os.path.exists(rest):
        return name, ModelSource(rest)
    try:
        return name, ModelSource(path, parse_versions(last))
    except InvalidArgumentError:
        return name, ModelSource(rest)


def parse_versions(text: str) -> tuple[int, ...] | None:
    """Parse "2", "1,2" or "all"; None stands for all versions. Raises InvalidArgumentError."""
    if text == _ALL:
        return None
    numbers = text.split(",")
    if not all(map(_NUMBER.fullmatch, numbers)):
        raise InvalidArgumentError("malformed versions", expected="a number, several, or all", actual=repr(text[:40]))
    return tuple(map(int, numbers))
