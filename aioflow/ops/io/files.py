"""Ops on whole files: read one, write one, list those whose names match a pattern."""

from __future__ import annotations

from aioflow.graph.costs import LIGHT
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import Effect, files
from aioflow.ops.apply import TensorLike, make, make_op

__all__ = ["matching_files", "read_file", "write_file"]


def _one_file(ctx: ShapeContext) -> Dims:
    ctx.require_rank("filename", 0)
    return ()


def _written(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("filename", 0)
    ctx.require_rank("contents", 0)
    return []


def _listed(ctx: ShapeContext) -> Dims:
    ctx.require_rank("pattern", 0, 1)
    return (None,)


# Files change, so these are not strictly pure; TensorFlow does not call ReadFile and MatchingFiles stateful either.
define_op("ReadFile", "filename: string", "contents: string", shape=_one_file, traits=files())
define_op("WriteFile", "filename: string, contents: string", "", shape=_written, traits=files(effect=Effect.CHANGES))
define_op("MatchingFiles", "pattern: string", "filenames: string", shape=_listed, traits=files(cost=LIGHT))

not_differentiable("ReadFile", "WriteFile", "MatchingFiles")


def read_file(filename: TensorLike, name: str | None = None) -> Tensor:
    """Return the contents of a file, a scalar string. The file is read in a thread.

    Raises:
        NotFoundError: the file does not exist.
        PermissionDeniedError: the file is not readable.
        FailedPreconditionError: the path is a folder.
    """
    return make("ReadFile", filename, name=name)


def write_file(filename: TensorLike, contents: TensorLike, name: str | None = None) -> Operation:
    """Return a node that writes `contents` to a file, replacing it; missing folders are created.

    Raises:
        PermissionDeniedError, FailedPreconditionError, …: the file cannot be written.
    """
    return make_op("WriteFile", filename, contents, name=name)


def matching_files(pattern: TensorLike, name: str | None = None) -> Tensor:
    """Return the sorted names of the files that match a pattern (`*`, `?`, `[…]`), or one of several: a string vector.

    `*` does not match a `/`. Without a match the vector is empty.
    """
    return make("MatchingFiles", pattern, name=name)
