"""The ops that every graph is made of: constants, placeholders, identities and grouping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.argument_kinds import check_kind
from aioflow.graph.arrays import check_depth
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DTypeLike
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.opdef import ShapeContext, define_op, gradient, not_differentiable
from aioflow.graph.shapes import Dims, ShapeLike, dims_of, merge_dims
from aioflow.graph.tensor_like import NodeLike, SupportsTensor
from aioflow.ops.apply import TensorLike, apply_op, convert_n_to_tensor, convert_to_tensor

__all__ = [
    "group",
    "identity",
    "identity_n",
    "no_op",
    "placeholder",
    "placeholder_with_default",
    "stop_gradient",
]


def unchanged(ctx: ShapeContext) -> Dims:
    """Shape function of ops whose output has the shape of their first input."""
    dims: Dims = ctx.tensors[0].dims
    return dims


def scalar(ctx: ShapeContext) -> Dims:
    """Shape function of ops whose output is a scalar."""
    return ()


def _constant(ctx: ShapeContext) -> Dims:
    value, dtype = ctx.attrs["value"], ctx.attrs["dtype"]
    if value.dtype != dtype.np_dtype:
        raise DTypeError("the value does not have the dtype of the node", expected=dtype, actual=value.dtype)
    return tuple(value.shape)


define_op("Const", "", "output: dtype", ["value: tensor", "dtype: type"], shape=_constant)
define_op(
    "Placeholder", "", "output: dtype", ["dtype: type", "shape: shape = None"], shape=lambda ctx: ctx.attrs["shape"]
)
define_op(
    "PlaceholderWithDefault",
    "input: dtype",
    "output: dtype",
    ["dtype: type", "shape: shape"],
    shape=lambda ctx: ctx.attrs["shape"],
)
define_op("NoOp")
define_op("Identity", "input: T", "output: T", ["T: type"], shape=unchanged)
define_op(
    "IdentityN",
    "input: list:T",
    "output: list:T",
    ["T: list(type) >= 1"],
    shape=lambda ctx: [t.dims for t in ctx.tensors],
)
define_op("StopGradient", "input: T", "output: T", ["T: type"], shape=unchanged)
define_op("PreventGradient", "input: T", "output: T", ["T: type", "message: string = ''"], shape=unchanged)

not_differentiable("Const", "Placeholder", "NoOp", "StopGradient")


@gradient("Identity", "PlaceholderWithDefault", takes_slices=True)
def _identity_grad(op: Operation, grad: Tensor) -> Tensor:
    return grad


@gradient("IdentityN", takes_slices=True)
def _identity_n_grad(op: Operation, *grads: Tensor) -> list[Tensor]:
    return list(grads)


@gradient("PreventGradient")
def _prevent_gradient_grad(op: Operation, grad: Tensor) -> Tensor:
    raise InvalidArgumentError(f"a gradient was asked for through a barrier: {op.attrs['message']}").at(
        op.name, op.type, op.source
    )


def placeholder(dtype: DTypeLike, shape: ShapeLike | None = None, name: str | None = None) -> Tensor:
    """A tensor whose value every run must feed.

    Args:
        dtype: Element type.
        shape: Static shape, with None for the sizes that may vary; None alone leaves the rank open.
    """
    result: Tensor = apply_op("Placeholder", dtype=dtypes.as_dtype(dtype), shape=dims_of(shape), name=name)
    return result


def placeholder_with_default(input: TensorLike, shape: ShapeLike | None, name: str | None = None) -> Tensor:
    """A tensor that is `input` unless a run feeds another value.

    Raises:
        InvalidArgumentError: the input does not fit `shape`.
    """
    tensor = convert_to_tensor(input)
    merge_dims(dims_of(shape), tensor.dims)
    result: Tensor = apply_op("PlaceholderWithDefault", tensor, shape=dims_of(shape), name=name)
    return result


def identity(input: TensorLike, name: str | None = None) -> Tensor:
    """The same value in a tensor of its own."""
    result: Tensor = apply_op("Identity", convert_to_tensor(input), name=name)
    return result


def identity_n(input: Sequence[TensorLike], name: str | None = None) -> list[Tensor]:
    """The same values in tensors of their own, all made at once."""
    result: list[Tensor] = apply_op("IdentityN", convert_n_to_tensor(input), name=name)
    return result


def stop_gradient(input: TensorLike, name: str | None = None) -> Tensor:
    """The same value, through which no gradient flows."""
    result: Tensor = apply_op("StopGradient", convert_to_tensor(input), name=name)
    return result


def no_op(name: str | None = None) -> Operation:
    """A node that does nothing: something to hang control dependencies on."""
    result: Operation = apply_op("NoOp", name=name)
    return result


def group(*inputs: NodeLike | Sequence[Any] | None, name: str | None = None) -> Operation:
    """A node that finishes when all `inputs` (nodes or tensors, nested lists too) have."""
    elements = [e for e in _flatten(inputs) if e is not None]
    graph = _graph_of(elements)
    with graph.as_default(), graph.control_dependencies(elements):
        return no_op(name=name or "group_deps")


def tuple_(
    tensors: Sequence[Tensor | SupportsTensor | IndexedSlices | None],
    name: str | None = None,
    control_inputs: Sequence[NodeLike] | None = None,
) -> list[Any]:
    """The tensors again, each available only when all of them (and `control_inputs`) are done. None passes through."""
    check_kind(tensors, Iterable, "the tensors", "a list of tensors")
    check_kind(control_inputs or [], Iterable, "what the tensors wait for", "a list of nodes or tensors")
    present = [t for t in tensors if t is not None]
    if not present:
        raise InvalidArgumentError("there are no tensors", expected="at least one", actual=tensors)
    graph = _graph_of(present)
    with graph.as_default(), graph.name_scope(name or "tuple"):
        gate = group(*present, *(control_inputs or []))
        with graph.control_dependencies([gate]):
            return [None if t is None else _gated(graph, t) for t in tensors]


def _gated(graph: Graph, tensor: Any) -> Tensor:
    with graph.colocate_with(getattr(tensor, "op", tensor)):
        return identity(tensor, name="control_dependency")


def _flatten(items: Any, depth: int = 1) -> list[Any]:
    check_depth(depth)
    if isinstance(items, list | tuple):
        return [leaf for item in items for leaf in _flatten(item, depth + 1)]
    return [items]


def _graph_of(elements: list[Any]) -> Graph:
    for element in elements:
        graph = getattr(element, "graph", None)
        if isinstance(graph, Graph):
            return graph
    return default_graph()
