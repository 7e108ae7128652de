"""Ops that every graph uses: constants, placeholders, identities and grouping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeVar, overload

from aioflow.arguments import check_kind
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.arrays import check_depth
from aioflow.graph.composite import CompositeTensor
from aioflow.graph.default_graph import graph_of
from aioflow.graph.dtypes import DTypeLike
from aioflow.graph.gradient_registry import gradient, not_differentiable
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, ShapeLike, dims_of, merge_dims
from aioflow.graph.static_value import StaticValue, known_by, moving
from aioflow.graph.tensor_like import DenseLike, NodeLike, SupportsTensor
from aioflow.graph.traits import Effect, Role, instant, passes_on, source
from aioflow.memory.values import Array
from aioflow.ops.apply import TensorLike, convert_n_to_tensor, convert_to_tensor, make, make_list, make_op
from aioflow.ops.scoping import name_scope

__all__ = [
    "group",
    "identity",
    "identity_n",
    "no_op",
    "placeholder",
    "placeholder_with_default",
    "stop_gradient",
]


_Composite = TypeVar("_Composite", bound=CompositeTensor)


def unchanged(ctx: ShapeContext) -> Dims:
    """Return the shape of the first input (a shape function)."""
    dims: Dims = ctx.tensors[0].dims
    return dims


def _default_shape(ctx: ShapeContext) -> Dims:
    """Return the shape that may be fed; the default value must have it, too."""
    shape: Dims = ctx.attrs["shape"]
    merge_dims(ctx.tensors[0].dims, shape)
    return shape


def cast_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Cast a tensor to the dtype of another one, if it has another dtype."""
    return tensor if tensor.dtype is like.dtype else make("Cast", tensor, DstT=like.dtype)


def origin(handle: Tensor) -> Tensor:
    """Follow a handle back through identities, loops and branches to the tensor that it comes from."""
    # Other nodes may pass on one of several handles, as a Merge does.
    while handle.op.type in ("Enter", "Identity", "StopGradient", "Switch"):
        handle = handle.op.inputs[0]
    return handle


def scalar(ctx: ShapeContext) -> Dims:
    """Return the shape of a scalar (a shape function)."""
    return ()


def _constant(ctx: ShapeContext) -> Dims:
    value, dtype = ctx.attrs["value"], ctx.attrs["dtype"]
    if value.dtype != dtype.np_dtype:
        raise DTypeError("the value does not have the dtype of the node", expected=dtype, actual=value.dtype)
    return tuple(value.shape)


def _const_value(tensor: Tensor) -> Array | None:
    value: Array = tensor.op.attrs["value"]
    return value


define_op(
    "Const",
    "",
    "output: dtype",
    ["value: tensor", "dtype: type"],
    shape=_constant,
    value=StaticValue(fact=_const_value),
    traits=source(role=Role.CONSTANT),
)
define_op(
    "Placeholder",
    "",
    "output: dtype",
    ["dtype: type", "shape: shape = None"],
    shape=lambda ctx: ctx.attrs["shape"],
    traits=instant(effect=Effect.FAILS, must_be_fed=True),
)
define_op(
    "PlaceholderWithDefault",
    "input: dtype",
    "output: dtype",
    ["dtype: type", "shape: shape"],
    shape=_default_shape,
    traits=passes_on(effect=Effect.FAILS),
)
define_op("NoOp", traits=instant())
PASSED_ON: Final = moving(lambda op, inputs: inputs[0])

define_op("Identity", "input: T", "output: T", ["T: type"], shape=unchanged, value=PASSED_ON, traits=passes_on())
define_op(
    "IdentityN",
    "input: list:T",
    "output: list:T",
    ["T: list(type) >= 1"],
    shape=lambda ctx: [t.dims for t in ctx.tensors],
    value=moving(lambda op, inputs: inputs, slice(None)),
    traits=passes_on(),
)
define_op("StopGradient", "input: T", "output: T", ["T: type"], shape=unchanged, value=PASSED_ON, traits=passes_on())
define_op(
    "PreventGradient",
    "input: T",
    "output: T",
    ["T: type", "message: string = ''"],
    shape=unchanged,
    value=known_by(lambda value: value),
    traits=passes_on(),
)

not_differentiable("Const", "Placeholder", "NoOp", "StopGradient")


@gradient("Identity", "PlaceholderWithDefault", takes_slices=True)
def _identity_grad(op: Operation, grad: Tensor) -> Tensor:
    return grad


@gradient("IdentityN", takes_slices=True)
def _identity_n_grad(op: Operation, *grads: Tensor) -> list[Tensor]:
    return list(grads)


@gradient("PreventGradient")
def _prevent_gradient_grad(op: Operation, grad: Tensor) -> Tensor:
    raise InvalidArgumentError(f"cannot compute a gradient through PreventGradient: {op.attrs['message']}").at(
        op.name, op.type, op.source
    )


def placeholder(dtype: DTypeLike, shape: ShapeLike | None = None, name: str | None = None) -> Tensor:
    """Return a tensor whose value every run must feed.

    Args:
        dtype: Element type.
        shape: Static shape, with None for sizes that may vary; None alone leaves the rank open.
        name: Name of the node.
    """
    return make("Placeholder", dtype=dtypes.as_dtype(dtype), shape=dims_of(shape), name=name)


def placeholder_with_default(input: TensorLike, shape: ShapeLike | None, name: str | None = None) -> Tensor:
    """Return a tensor that is `input` unless a run feeds another value.

    Raises:
        InvalidArgumentError: the input does not fit `shape`.
    """
    tensor = convert_to_tensor(input)
    merge_dims(dims_of(shape), tensor.dims)
    return make("PlaceholderWithDefault", tensor, shape=dims_of(shape), name=name)


@overload
def identity(input: DenseLike, name: str | None = None) -> Tensor: ...


@overload
def identity(input: _Composite, name: str | None = None) -> _Composite: ...


def identity(input: Any, name: str | None = None) -> Any:
    """Return the same value in a tensor of its own; each component of a `SparseTensor` or `IndexedSlices` likewise."""
    return _each_component("Identity", input, name)


def identity_n(input: Sequence[TensorLike], name: str | None = None) -> list[Tensor]:
    """Return the same values in tensors of their own, all made by one node."""
    return make_list("IdentityN", convert_n_to_tensor(input), name=name)


@overload
def stop_gradient(input: DenseLike, name: str | None = None) -> Tensor: ...


@overload
def stop_gradient(input: _Composite, name: str | None = None) -> _Composite: ...


def stop_gradient(input: Any, name: str | None = None) -> Any:
    """Return the same value, through which no gradient flows."""
    return _each_component("StopGradient", input, name)


def _each_component(op_type: str, value: Any, name: str | None) -> Any:
    if isinstance(value, CompositeTensor):
        return value.with_components([make(op_type, part, name=name) for part in value.components])
    return make(op_type, convert_to_tensor(value), name=name)


def no_op(name: str | None = None) -> Operation:
    """Return a node that does nothing, to attach control dependencies to."""
    return make_op("NoOp", name=name)


def group(*inputs: NodeLike | Sequence[object] | None, name: str | None = None) -> Operation:
    """Return a node that finishes when all `inputs` (nodes or tensors, nested lists too) have finished.

    The node is on the device that the inputs are on. If the inputs are on several devices, each device has a node that
    waits for the inputs there, so each device sends one message.
    """
    given = [e for e in _flatten(inputs) if e is not None]
    graph = graph_of(given)
    by_device: dict[str, list[Operation]] = {}
    for element in map(graph.as_graph_element, given):
        node = element.op if isinstance(element, Tensor) else element
        by_device.setdefault(node.device, []).append(node)
    with graph.as_default():
        if len(by_device) == 1:
            ((device, nodes),) = by_device.items()
            return _gate(graph, nodes, device, name or "group_deps")
        with name_scope(name, "group_deps") as scope:
            waited: list[Operation] = []
            for device, there in by_device.items():
                waited += there if device == "" or len(there) == 1 else [_gate(graph, there, device, None)]
            return _gate(graph, waited, "", scope)


def _gate(graph: Graph, nodes: Sequence[Operation], device: str, name: str | None) -> Operation:
    """Return a node that finishes when `nodes` have, on `device` or, if that is empty, on the open scopes' device."""
    with graph.control_dependencies(nodes), ExitStack() as stack:
        if device:
            # The open scopes must not move the node from the device of its inputs.
            stack.enter_context(graph.colocate_with(None))
            stack.enter_context(graph.device(None))
            stack.enter_context(graph.device(device))
        return no_op(name=name)


def tuple_(
    tensors: Sequence[Tensor | SupportsTensor | CompositeTensor | None],
    name: str | None = None,
    control_inputs: Sequence[NodeLike] | None = None,
) -> list[Any]:
    """Return the tensors again, each available only when all of them and `control_inputs` are done.

    None stays None.

    Raises:
        InvalidArgumentError: there are no tensors.
    """
    check_kind(tensors, Iterable, "the tensors", "a list of tensors")
    check_kind(control_inputs or [], Iterable, "control_inputs", "a list of nodes or tensors")
    present = [t for t in tensors if t is not None]
    if not present:
        raise InvalidArgumentError("there are no tensors", expected="at least one", actual=tensors)
    graph = graph_of(present)
    with name_scope(name, "tuple", present):
        gate = group(*present, *(control_inputs or []))
        with graph.control_dependencies([gate]):
            return [None if t is None else _gated(graph, t) for t in tensors]


def _gated(graph: Graph, tensor: Any) -> Any:
    if isinstance(tensor, CompositeTensor):
        return tensor.with_components([_gated(graph, part) for part in tensor.components])
    with graph.colocate_with(getattr(tensor, "op", tensor)):
        return identity(tensor, name="control_dependency")


def _flatten(items: object, depth: int = 1) -> list[Any]:
    check_depth(depth)
    if isinstance(items, list | tuple):
        return [leaf for item in items for leaf in _flatten(item, depth + 1)]
    return list(items.components) if isinstance(items, CompositeTensor) else [items]
