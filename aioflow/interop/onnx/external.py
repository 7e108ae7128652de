"""Weights in files beside the model, mapped into memory and never read as a whole.

In Hugging Face's cache a model is a link, `snapshots/REVISION/model.onnx`, into `blobs/`, and so are its weights. As in
onnxruntime, a file may therefore also be in the folder of the file that the path links to.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
from onnx import TensorProto

from aioflow.errors import DataLossError, InvalidArgumentError, NotFoundError
from aioflow.memory.values import Array


class ExternalFiles:
    """Files that the tensors of a model refer to.

    Args:
        model: The model's path. None for a model without a path, whose tensors must not refer to files.
    """

    def __init__(self, model: Path | None) -> None:
        self._model = model
        self._maps: dict[Path, mmap.mmap] = {}

    def bytes_of(self, proto: TensorProto, count: int) -> Array:
        """Return the bytes of a tensor, read-only.

        Args:
            proto: The tensor.
            count: Required number of bytes.

        Raises:
            InvalidArgumentError: the file would be outside the folders of the model's path and of the file that it
                links to, or the tensor's offset or length is malformed.
            NotFoundError: the file does not exist or cannot be read.
            DataLossError: the file is too short, or the length is not `count`.
        """
        entries = {each.key: each.value for each in proto.external_data}
        mapped = self._mapped(proto, entries.get("location", ""))
        offset = _number(proto, entries, "offset", 0)
        length = _number(proto, entries, "length", count)
        # The length of the file's entry must not exceed the shape: kernels read as many bytes as the shape says.
        if length != count:
            raise DataLossError(
                f"the values of tensor {proto.name!r} do not fill its shape", expected=count, actual=length
            )
        if offset + length > len(mapped):
            raise DataLossError(
                f"the file of tensor {proto.name!r} is too short", expected=offset + length, actual=len(mapped)
            )
        # The array keeps the mapping alive.
        return np.frombuffer(mapped, np.uint8, count, offset)

    def _mapped(self, proto: TensorProto, location: str) -> mmap.mmap | bytes:
        path = self._inside(proto, location)
        # One mapping per file, since all tensors of a large model usually share one.
        found = self._maps.get(path)
        if found is not None:
            return found
        try:
            if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
                raise OSError("it is no file")
            with path.open("rb") as file:
                # An empty file cannot be mapped.
                if not path.stat().st_size:
                    return b""
                self._maps[path] = found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise NotFoundError(
                f"the file of tensor {proto.name!r} cannot be read", expected=location, actual=str(error)
            ) from error
        return found

    def _inside(self, proto: TensorProto, location: str) -> Path:
        if self._model is None:
            raise InvalidArgumentError(
                f"the values of tensor {proto.name!r} are in a file, and the model has no folder",
                expected="a model that is loaded by its path",
                actual=repr(location),
            )
        # All paths are resolved before they are compared, so that neither `..` nor a link leads outside.
        folder = self._model.parent.resolve()
        linked = self._model.resolve().parent
        try:
            path = Path() if "\0" in location else (folder / location).resolve()
        except (OSError, RuntimeError):  # a cycle of links
            path = Path()
        if folder not in path.parents and linked not in path.parents:
            raise InvalidArgumentError(
                f"the values of tensor {proto.name!r} are outside the model's folder",
                expected="a file in the folder of the model, or of the file that its path links to",
                actual=repr(location),
            )
        return path


def _number(proto: TensorProto, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    # `isdigit` alone accepts other digits, and a long text would be slow to convert.
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidArgumentError(
            f"the {key} of tensor {proto.name!r} in its file cannot be right", expected="a number", actual=repr(text)
        )
    return int(text)
