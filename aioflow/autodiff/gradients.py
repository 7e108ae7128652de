"""`gradients`: walk back from ys to xs and apply the gradient function of each node; `hessians`.

The method of TensorFlow (white paper, section 4.1), implemented in `reverse`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Literal, overload

from aioflow.autodiff.paths import Level
from aioflow.autodiff.reverse import GradientOptions, ReverseWalk
from aioflow.errors import DTypeError, InvalidArgumentError, UnimplementedError
from aioflow.graph import scopes
from aioflow.graph.default_graph import graph_of
from aioflow.graph.graph import Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.shapes import format_dims, is_compatible, num_elements
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.control.contexts import current_context
from aioflow.ops.scoping import name_scope
from aioflow.ops.sparse.indexed_slices import Gradient, convert_to_tensor_or_indexed_slices


class AggregationMethod:
    """Methods of summing the gradients of one tensor. Accepted, but aioflow always sums them all at once."""

    ADD_N = 0
    DEFAULT = ADD_N
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


class UnconnectedGradients(Enum):
    """The result of `gradients` for an x that ys do not depend on."""

    NONE = "none"
    ZERO = "zero"


@overload
def gradients(
    ys: TensorLike,
    xs: TensorLike,
    grad_ys: TensorLike | Sequence[TensorLike | None] | None = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: int | None = None,
    stop_gradients: TensorLike | None = None,
    unconnected_gradients: Literal[UnconnectedGradients.NONE, "none"] = UnconnectedGradients.NONE,
) -> list[Tensor | IndexedSlices | None]: ...


@overload
def gradients(
    ys: TensorLike,
    xs: TensorLike,
    grad_ys: TensorLike | Sequence[TensorLike | None] | None = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: int | None = None,
    stop_gradients: TensorLike | None = None,
    *,
    unconnected_gradients: Literal[UnconnectedGradients.ZERO, "zero"],
) -> list[Tensor | IndexedSlices]: ...


def gradients(
    ys: TensorLike,
    xs: TensorLike,
    grad_ys: TensorLike | Sequence[TensorLike | None] | None = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: int | None = None,
    stop_gradients: TensorLike | None = None,
    unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
) -> list[Any]:
    """Return the derivatives of the sum of `ys` with respect to each of `xs`.

    Args:
        ys: A tensor or variable, or a list of them.
        xs: A tensor or variable, or a list of them.
        grad_ys: Incoming gradients of `ys`; None, or a None in the list, stands for ones.
        name: Name scope of the gradients.
        colocate_gradients_with_ops: Put each gradient on the device of its node.
        gate_gradients: Release the gradients of a node only when all of them are computed.
        aggregation_method: Accepted for compatibility: see `AggregationMethod`.
        stop_gradients: Tensors to treat as constants.
        unconnected_gradients: None or zeros for the xs that no y depends on.

    Returns:
        For each x a tensor of its shape, an `IndexedSlices` if x was only gathered from, or None.

    Raises:
        UnimplementedError: a node on a path has no gradient.
        DTypeError: a y is not numeric, or is complex and has no entry in `grad_ys`.
        InvalidArgumentError: `grad_ys` does not fit `ys`, or the result of a gradient function does not fit its node.
        OpError: a gradient function failed. The error names the node; the original exception is its `__cause__`.
    """
    unconnected = _unconnected(unconnected_gradients)
    _check_aggregation(aggregation_method)
    y_list, x_list = _listed(ys), _listed(xs)
    seeds = [None] * len(y_list) if grad_ys is None else _listed(grad_ys)
    if len(seeds) != len(y_list):
        raise InvalidArgumentError("grad_ys does not fit ys", expected=f"{len(y_list)} items", actual=len(seeds))
    graph = graph_of(y_list + x_list)
    with name_scope(name, "gradients", y_list + x_list):
        outputs = [convert_to_tensor(y, name=f"y_{i}") for i, y in enumerate(y_list)]
        wanted = [_source(x) for x in x_list]
        stop = [_source(t).op for t in ([] if stop_gradients is None else _listed(stop_gradients))]
        starting = [_seed(y, seed, i) for i, (y, seed) in enumerate(zip(outputs, seeds, strict=True))]
        options = GradientOptions(frozenset(stop), colocate_gradients_with_ops, gate_gradients)
        walk = ReverseWalk(graph, outputs, wanted, Level(None, current_context(graph)), options)
        # Names this call in the scope: each call needs gradient arrays of its own for the TensorArrays on its paths.
        with scopes.enter_scope(graph, lambda outer: outer._replace(differentiation=outer.name)):
            walk.run(starting)
            found = [walk.gradient_of(x) for x in wanted]
        if unconnected is UnconnectedGradients.ZERO:
            return [_zeros(x) if g is None else g for x, g in zip(x_list, found, strict=True)]
        return found


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _source(x: TensorLike) -> Tensor:
    """Return the tensor that gradients with respect to `x` flow to.

    For a variable that is its handle, since every read of the variable has the handle as an input.
    """
    handle = getattr(x, "handle", None)
    return handle if isinstance(handle, Tensor) else convert_to_tensor(x)


def _seed(y: Tensor, given: TensorLike | None, position: int) -> Gradient:
    """Return the incoming gradient of `y`."""
    if not y.dtype.is_numeric and not (given is None and y.dtype.is_bool):
        raise _wrong_seed("a y is not numeric", y, "a floating, integer or complex y", y.dtype.name)
    if given is None:
        if y.dtype.is_complex:
            raise _wrong_seed("the gradient of a complex tensor needs grad_ys", y, "an entry in grad_ys", "None")
        return make("OnesLike", y, name=f"grad_ys_{position}")
    # A Python value takes the dtype of y; a tensor keeps its own.
    hint = None if isinstance(given, Tensor | IndexedSlices) else y.dtype
    seed = convert_to_tensor_or_indexed_slices(given, hint, name=f"grad_ys_{position}")
    if seed.dtype.is_complex != y.dtype.is_complex or not seed.dtype.is_numeric:
        kind = "complex" if y.dtype.is_complex else "floating or integer"
        raise _wrong_seed("grad_ys has the wrong dtype", y, f"a {kind} gradient", seed.dtype.name)
    if isinstance(seed, Tensor) and not is_compatible(seed.dims, y.dims):
        raise InvalidArgumentError(
            "grad_ys has the wrong shape", expected=format_dims(y.dims), actual=format_dims(seed.dims)
        ).at(y.op.name, y.op.type, y.op.source)
    return seed


def _wrong_seed(message: str, y: Tensor, expected: str, actual: str) -> DTypeError:
    error = DTypeError(message, expected=expected, actual=actual)
    error.at(y.op.name, y.op.type, y.op.source)
    return error


def _zeros(x: TensorLike) -> Tensor:
    return make("ZerosLike", convert_to_tensor(x))


def _unconnected(value: UnconnectedGradients | str) -> UnconnectedGradients:
    try:
        return UnconnectedGradients(value)
    except ValueError:
        raise InvalidArgumentError(
            "unknown value for unconnected_gradients", expected="'none' or 'zero'", actual=repr(value)
        ) from None


def _check_aggregation(method: int | None) -> None:
    if method not in (None, 0, 1, 2):
        raise InvalidArgumentError(
            "unknown aggregation_method", expected="a constant of AggregationMethod", actual=repr(method)
        )


# ── second derivatives, by differentiating each element of the gradient ───────────────────────────────────────────────


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
