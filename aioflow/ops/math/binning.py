"""Binning ops: the bin of each value, and the number of values in each bin."""

from __future__ import annotations

from aioflow.errors import InvalidArgumentError
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims
from aioflow.graph.traits import reading, reduction
from aioflow.ops import rows
from aioflow.ops.core import unchanged


def _dense_shape(ctx: ShapeContext) -> Dims:
    size = ctx.scalar("size")
    if size is not None and size < 0:
        raise InvalidArgumentError("the number of bins is negative", expected=">= 0", actual=size)
    values = ctx.dims("input")
    if values is None:
        return None
    if len(values) > 2:
        raise InvalidArgumentError("values of too high a rank", expected="at most 2", actual=len(values))
    return (values[0], size) if len(values) == 2 else (size,)


define_op(
    "DenseBincount",
    "input: Tidx, size: Tidx, weights: T",
    "output: T",
    ["Tidx: {index}", "T: {int32, int64, float32, float64}", "binary_output: bool = False"],
    shape=_dense_shape,
    rows=rows.counted,
    traits=reduction(cost=reading(4)),
)
define_op(
    "Bucketize",
    "input: T",
    "output: int32",
    ["T: {int32, int64, float32, float64}", "boundaries: list(float)"],
    shape=unchanged,
    rows=rows.each_element,
    traits=reduction(cost=reading(10)),
)

not_differentiable("DenseBincount", "Bucketize")
