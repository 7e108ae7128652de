"""Second derivatives, by differentiating each element of the gradient."""

from __future__ import annotations

from typing import Any

from aioflow.autodiff.gradients import gradients
from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import format_dims, num_elements
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.sparse.indexed_slices import Gradient


def hessians(
    ys: TensorLike,
    xs: TensorLike,
    name: str = "hessians",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: int | None = None,
) -> list[Tensor]:
    """Return for each x the matrix of second derivatives of the sum of `ys`, of shape `x.shape + x.shape`.

    Raises:
        InvalidArgumentError: `ys` do not depend on an x.
        UnimplementedError: the shape of an x is not fully known.
        OpError: as for `gradients`.
    """
    options = (colocate_gradients_with_ops, gate_gradients, aggregation_method)
    x_list = list(xs) if isinstance(xs, list | tuple) else [xs]
    tensors = [convert_to_tensor(x) for x in x_list]
    if not tensors:
        return []
    graph = tensors[0].graph
    with graph.as_default(), graph.name_scope(name):
        first = gradients(ys, x_list, None, "gradients", *options)
        return [_hessian(g, x, t, options) for g, x, t in zip(first, x_list, tensors, strict=True)]


def _hessian(first: Gradient | None, x: TensorLike, tensor: Tensor, options: tuple[Any, ...]) -> Tensor:
    if first is None:
        raise InvalidArgumentError("ys do not depend on an x", expected="a connected x", actual=repr(x))
    dims, count = tensor.dims, num_elements(tensor.dims)
    if dims is None or count is None:
        raise UnimplementedError("hessians need a known shape", expected="known sizes", actual=format_dims(dims))
    # The gradient of a whole tensor is that of its sum, so each row of the matrix needs a walk of its own.
    flat = make("Reshape", convert_to_tensor(first), [-1])
    rows = []
    for i in range(count):
        (row,) = gradients(flat[i], x, None, f"row_{i}", *options)
        # An element of the gradient that does not depend on x has zeros as second derivatives.
        rows.append(make("ZerosLike", tensor) if row is None else convert_to_tensor(row))
    shape = [d for d in dims if d is not None]
    return make("Reshape", make("Pack", rows) if rows else [], shape + shape)
