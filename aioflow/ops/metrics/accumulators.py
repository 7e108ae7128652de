"""Variables that accumulate over steps, and the alignment of labels, predictions and weights that all metrics share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import GraphKeys, Tensor
from aioflow.graph.shapes import Dims, ShapeLike, format_dims, merge_dims
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.control.assertions import assert_equal, assert_rank_in
from aioflow.ops.scoping import control_dependencies
from aioflow.ops.variables.initializers import Zeros
from aioflow.ops.variables.replicas import VariableAggregation, VariableSynchronization
from aioflow.ops.variables.variable import Variable

Collections: TypeAlias = Iterable[str] | str | None
Metric: TypeAlias = tuple[Tensor, Tensor]


def metric_variable(shape: ShapeLike, dtype: DType, name: str) -> Variable:
    """Return a local variable of zeros, in the collections of local variables and of metric variables."""
    return Variable(
        lambda: Zeros()(shape, dtype),
        collections=[GraphKeys.LOCAL_VARIABLES, GraphKeys.METRIC_VARIABLES],
        synchronization=VariableSynchronization.ON_READ,
        aggregation=VariableAggregation.SUM,
        name=name,
    )


def collected(value: Tensor, update: Tensor, values: Collections, updates: Collections) -> Metric:
    """Add the value and the update of a metric to these collections. Return both."""
    for tensor, names in ((value, values), (update, updates)):
        if names:
            default_graph().add_to_collections(names, tensor)
    return value, update


def cast_to(value: TensorLike, dtype: DType) -> Tensor:
    """Return the value as a dense tensor of the dtype."""
    tensor = convert_to_tensor(value)
    return tensor if tensor.dtype is dtype else make("Cast", tensor, DstT=dtype)


# ── alignment ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def aligned(
    labels: TensorLike, predictions: TensorLike, weights: TensorLike | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return labels and predictions of one shape, and weights of their rank or a scalar.

    Of labels and predictions, a last dimension of size 1 that the other lacks is dropped. Weights lose or gain one.

    Raises:
        InvalidArgumentError: the shapes of labels and predictions differ otherwise.
    """
    first, second = convert_to_tensor(labels), convert_to_tensor(predictions)
    first, second = _without_last(first, second), _without_last(second, first)
    merge_dims(second.dims, first.dims)
    return first, second, None if weights is None else aligned_weights(weights, second)


def aligned_weights(weights: TensorLike, values: Tensor) -> Tensor:
    """Return the weights as a scalar or of the rank of `values`: drop or add a last dimension of size 1."""
    tensor = convert_to_tensor(weights)
    dims, like = tensor.dims, values.dims
    if dims == ():
        return tensor
    if dims is not None and like is not None:
        return make("ExpandDims", tensor, -1) if len(dims) + 1 == len(like) else _without_last(tensor, values)
    rank = make("Rank", tensor)
    missing = make("Equal", make("Rank", values) - rank, 1)
    added = make("LogicalAnd", missing, make("Greater", rank, 0))
    return make("Reshape", tensor, make("ConcatV2", [_shape_without_last(tensor, values), _ones(added)], 0))


def _without_last(tensor: Tensor, like: Tensor) -> Tensor:
    """Drop the last dimension, of size 1, if `tensor` has one dimension more than `like`."""
    dims = tensor.dims
    if dims is not None and (not dims or dims[-1] not in (1, None)):
        return tensor
    if dims is not None and like.dims is not None:
        return make("Squeeze", tensor, squeeze_dims=[-1]) if len(dims) == len(like.dims) + 1 else tensor
    return make("Reshape", tensor, _shape_without_last(tensor, like))


def _shape_without_last(tensor: Tensor, like: Tensor) -> Tensor:
    rank = make("Rank", tensor)
    surplus = make("Equal", rank - make("Rank", like), 1)
    return make("Slice", make("Shape", tensor), [0], make("Reshape", rank - cast_to(surplus, dtypes.int32), [1]))


def _ones(condition: Tensor) -> Tensor:
    """Return the vector [1] if the condition holds, else []."""
    return make("Fill", make("Reshape", cast_to(condition, dtypes.int32), [1]), 1)


def broadcast_weights(weights: TensorLike, values: Tensor) -> Tensor:
    """Return the weights in the shape and dtype of `values`.

    Raises:
        InvalidArgumentError: the weights are neither a scalar nor of the rank of `values` with sizes that are 1 or
            those of `values`. If shapes are unknown, the step fails.
    """
    tensor = cast_to(weights, values.dtype)
    dims, like = tensor.dims, values.dims
    if dims is not None and like is not None:
        _check_broadcast(dims, like)
        known = None not in dims and None not in like
        if known and dims == like:
            return tensor
    else:
        known = False
    checks = []
    if not known and dims != ():
        with control_dependencies([assert_rank_in(tensor, [0, make("Rank", values)])]):
            shape = make("Shape", values)
            joint = make("BroadcastArgs", make("Shape", tensor), shape)
        checks.append(assert_equal(joint, shape, message="weights cannot be broadcast to the values"))
    with control_dependencies(checks):
        return tensor * make("OnesLike", values)


def _check_broadcast(weights: tuple[int | None, ...], values: tuple[int | None, ...]) -> None:
    fits: bool = not weights or len(weights) == len(values)
    pairs: Iterable[tuple[int | None, int | None]] = zip(weights, values, strict=False)
    if not fits or any(w not in (1, None, v) and v is not None for w, v in pairs):
        raise InvalidArgumentError(
            "weights cannot be broadcast to the values",
            expected=f"a scalar, or {format_dims(values)} with sizes that may be 1",
            actual=format_dims(weights),
        )


def flat(tensor: Tensor) -> Tensor:
    """Return a vector of the elements; a vector or scalar as it is."""
    dims: Dims = tensor.dims
    return tensor if dims is not None and len(dims) <= 1 else make("Reshape", tensor, [-1])
