"""Definitions of the stack ops, for `aioflow.raw_ops` and imported graphs. A stack lives as long as its step."""

from __future__ import annotations

from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import Effect, bookkeeping, handle
from aioflow.ops.core import scalar


def _pushed(ctx: ShapeContext) -> Dims:
    return ctx.dims("elem")


define_op(
    "StackV2",
    "max_size: int32",
    "handle: resource",
    ["elem_type: type", "stack_name: string = ''"],
    shape=scalar,
    traits=handle(),
)
define_op(
    "StackPushV2",
    "handle: resource, elem: T",
    "output: T",
    ["T: type", "swap_memory: bool = False"],
    shape=_pushed,
    traits=bookkeeping(effect=Effect.CHANGES),
)
define_op(
    "StackPopV2", "handle: resource", "elem: elem_type", ["elem_type: type"], traits=bookkeeping(effect=Effect.CHANGES)
)
define_op("StackCloseV2", "handle: resource", "", traits=bookkeeping(effect=Effect.CHANGES))
not_differentiable("StackV2", "StackPushV2", "StackPopV2", "StackCloseV2")
