"""Ops that save tensors to files and restore them. Users reach them through `train.Saver`."""

from __future__ import annotations

from aioflow.graph.costs import FREE
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import Effect, Memory, files, handle
from aioflow.ops.core import scalar


def _save_shape(ctx: ShapeContext) -> list[Dims]:
    ctx.require_rank("prefix", 0)
    ctx.require_rank("tensor_names", 1)
    ctx.require_rank("shape_and_slices", 1)
    return []


def _restore_shape(ctx: ShapeContext) -> list[Dims]:
    _save_shape(ctx)
    unknown: list[Dims] = [None] * len(ctx.attrs["dtypes"])
    return unknown


define_op(
    "SaveV2",
    "prefix: string, tensor_names: string, shape_and_slices: string, tensors: list:dtypes",
    "",
    ["dtypes: list(type) >= 1"],
    shape=_save_shape,
    traits=files(effect=Effect.CHANGES),
)
# Writes TensorFlow's format.
define_op(
    "_SaveBundle",
    "prefix: string, tensor_names: string, shape_and_slices: string, tensors: list:dtypes",
    "",
    ["dtypes: list(type) >= 1"],
    shape=_save_shape,
    traits=files(effect=Effect.CHANGES),
)
# Writes blocks, without those that are equal in the checkpoint `base`.
define_op(
    "_SaveBlocks",
    "prefix: string, base: string, tensor_names: string, shape_and_slices: string, tensors: list:dtypes",
    "",
    ["dtypes: list(type) >= 1"],
    shape=_save_shape,
    traits=files(effect=Effect.CHANGES),
)
# Holds tensors until a node of a later step consumes them.
define_op(
    "_SnapshotHolder",
    "",
    "handle: resource",
    ["container: string = ''", "shared_name: string = ''"],
    shape=scalar,
    traits=handle(on_host="it holds data to be written to files", is_numeric=False),
)
define_op(
    "_HoldTensors",
    "handle: resource, key: string, tensors: list:dtypes",
    "",
    ["dtypes: list(type) >= 1"],
    traits=files(effect=Effect.CHANGES, cost=FREE),
)
define_op(
    "_HeldTensors",
    "handle: resource, key: string",
    "tensors: list:dtypes",
    ["dtypes: list(type) >= 1"],
    traits=files(effect=Effect.CHANGES, cost=FREE, memory=Memory.RESIDENT),
)
define_op(
    "RestoreV2",
    "prefix: string, tensor_names: string, shape_and_slices: string",
    "tensors: list:dtypes",
    ["dtypes: list(type) >= 1"],
    shape=_restore_shape,
    traits=files(effect=Effect.CHANGES),
)
define_op(
    "ShardedFilename",
    "basename: string, shard: int32, num_shards: int32",
    "filename: string",
    shape=lambda ctx: (),
    traits=files(),
)

define_op(
    "ShardedFilespec", "basename: string, num_shards: int32", "filename: string", shape=lambda ctx: (), traits=files()
)

not_differentiable(
    "SaveV2",
    "_SaveBundle",
    "_SaveBlocks",
    "_HoldTensors",
    "_HeldTensors",
    "RestoreV2",
    "ShardedFilename",
    "ShardedFilespec",
)
