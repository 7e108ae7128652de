"""Metrics of the k best classes: precision, recall and average precision at k."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import format_dims
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.array.selection import where_v2
from aioflow.ops.math.division import div_no_nan
from aioflow.ops.math.reduction import cumsum, reduce_sum
from aioflow.ops.math.sorting import top_k
from aioflow.ops.metrics.accumulators import (
    Collections,
    Metric,
    broadcast_weights,
    cast_to,
    collected,
    metric_variable,
)
from aioflow.ops.scoping import name_scope
from aioflow.ops.sparse.dense import sparse_tensor_to_dense
from aioflow.ops.sparse.tensor import SparseTensor, SparseTensorValue
from aioflow.ops.variables.variable import Variable

_NO_LABEL: Final = np.iinfo(np.int64).min  # fills rows of sparse labels, and equals no prediction


def precision_at_top_k(
    labels: Any,
    predictions_idx: TensorLike,
    k: int | None = None,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the fraction of the predicted classes that are among the labels, over all steps.

    Args:
        labels: [..., num_labels] int64 classes of each row, dense or as a SparseTensor; or [...], with one class each.
        predictions_idx: [..., k] integers: the predicted classes of each row.
        k: Used in the names of nodes only.
        class_id: A class to which labels and predictions are restricted; by default, all classes count.
        weights: A scalar, or a tensor of the rank of the rows in which each size is 1 or that of the rows.
        metrics_collections: Names of collections to which the value is added.
        updates_collections: Names of collections to which the update is added.
        name: Name scope of the nodes.

    Returns:
        The value, a float64 scalar that is NaN before the first update, and the update.

    Raises:
        InvalidArgumentError: the labels have neither the rank of the predictions nor one less, or the weights do not
            fit.
    """
    with name_scope(name, _name("precision", k, class_id), [predictions_idx, weights]) as scope:
        found, right = cast_to(predictions_idx, dtypes.int64), _dense(labels, predictions_idx)
        hits = _present(found, right)
        wanted = _counted(found, class_id)
        true = _sum(_name("true_positive", k, class_id), make("LogicalAnd", wanted, hits), weights)
        false = _sum(_name("false_positive", k, class_id), make("LogicalAnd", wanted, _not(hits)), weights)
        return _share(true, false, metrics_collections, updates_collections, scope)


def recall_at_top_k(
    labels: Any,
    predictions_idx: TensorLike,
    k: int | None = None,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the fraction of the labels that are among the predicted classes. See `precision_at_top_k`.

    Labels that are no class, such as -1, count as missed.
    """
    with name_scope(name, _name("recall", k, class_id), [predictions_idx, weights]) as scope:
        found, right = cast_to(predictions_idx, dtypes.int64), _dense(labels, predictions_idx)
        hits = _present(right, found)
        wanted = _counted(right, class_id)
        true = _sum(_name("true_positive", k, class_id), make("LogicalAnd", wanted, hits), weights)
        missed = _sum(_name("false_negative", k, class_id), make("LogicalAnd", wanted, _not(hits)), weights)
        return _share(true, missed, metrics_collections, updates_collections, scope)


def precision_at_k(
    labels: Any,
    predictions: TensorLike,
    k: int,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the precision of the `k` classes with the highest scores. See `precision_at_top_k`.

    `predictions` is [..., num_classes]: the scores of all classes.
    """
    with name_scope(name, _name("precision", k, class_id), [predictions, weights]) as scope:
        best = top_k(predictions, k).indices
        return precision_at_top_k(
            labels, best, k, class_id, weights, metrics_collections, updates_collections, name=scope
        )


def recall_at_k(
    labels: Any,
    predictions: TensorLike,
    k: int,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the recall of the `k` classes with the highest scores. See `precision_at_k` and `recall_at_top_k`."""
    with name_scope(name, _name("recall", k, class_id), [predictions, weights]) as scope:
        best = top_k(predictions, k).indices
        return recall_at_top_k(labels, best, k, class_id, weights, metrics_collections, updates_collections, name=scope)


def sparse_precision_at_k(
    labels: Any,
    predictions: TensorLike,
    k: int,
    class_id: int | None = None,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute `precision_at_k`, under its old name."""
    return precision_at_k(labels, predictions, k, class_id, weights, metrics_collections, updates_collections, name)


def average_precision_at_k(
    labels: Any,
    predictions: TensorLike,
    k: int,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the mean, over the rows of all steps, of the average precision of the `k` classes with the best scores.

    The average precision of a row is the mean of the precisions at those ranks up to k at which a label stands, divided
    by the number of labels, or k if there are more.

    Args:
        labels: See `precision_at_top_k`. Labels that are no class are ignored.
        predictions: [..., num_classes] scores.
        k: Number of classes.
        weights: A scalar, or a tensor of the rank of the rows.
        metrics_collections: Names of collections to which the value is added.
        updates_collections: Names of collections to which the update is added.
        name: Name scope of the nodes.

    Raises:
        InvalidArgumentError: `k` is less than 1, or shapes do not fit.
    """
    if k < 1:
        raise InvalidArgumentError("k is too small", expected="at least 1", actual=k)
    with name_scope(name, _name("average_precision", k), [predictions, weights]) as scope:
        scores = convert_to_tensor(predictions)
        right = _dense(labels, scores)
        classes = cast_to(make("GatherV2", make("Shape", scores), make("Rank", scores) - 1, 0), dtypes.int64)
        right = where_v2(right >= classes, constant(-1, dtypes.int64), right)
        each = _average_precision(cast_to(top_k(scores, k).indices, dtypes.int64), right, k)
        factors = make("OnesLike", each) if weights is None else broadcast_weights(weights, each)
        with name_scope(None, "average_precision_at_top_k"):
            most, total = (metric_variable([], dtypes.float64, part) for part in ("max", "total"))
            value = div_no_nan(total, most, name="mean")
            update = div_no_nan(
                total.assign_add(reduce_sum(each * factors)), most.assign_add(reduce_sum(factors)), name=scope
            )
        return collected(value, update, metrics_collections, updates_collections)


def sparse_average_precision_at_k(
    labels: Any,
    predictions: TensorLike,
    k: int,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute `average_precision_at_k`, under its old name."""
    return average_precision_at_k(labels, predictions, k, weights, metrics_collections, updates_collections, name)


def _average_precision(found: Tensor, labels: Tensor, k: int) -> Tensor:
    hits = cast_to(_present(found, labels), dtypes.float64)
    ranks = constant(np.arange(1, k + 1, dtype=np.float64))
    precisions = cumsum(hits, -1) / ranks
    relevant = reduce_sum(cast_to(labels >= constant(0, dtypes.int64), dtypes.int32), -1)
    return reduce_sum(precisions * hits, -1) / cast_to(make("Minimum", relevant, k), dtypes.float64)


# ── sets of classes ───────────────────────────────────────────────────────────────────────────────────────────────────


def _name(metric: str, k: int | None, class_id: int | None = None) -> str:
    return f"{metric}_at_{'k' if k is None else k}{'' if class_id is None else f'_class{class_id}'}"


def _dense(labels: Any, predictions: TensorLike) -> Tensor:
    """Return the labels as a tensor of the rank of the predictions."""
    if isinstance(labels, SparseTensorValue):
        labels = SparseTensor(*labels)
    if isinstance(labels, SparseTensor):
        labels = sparse_tensor_to_dense(labels, _NO_LABEL, validate_indices=False)
    right, like = cast_to(labels, dtypes.int64), convert_to_tensor(predictions)
    if right.dims is not None and like.dims is not None:
        missing = len(like.dims) - len(right.dims)
        if missing not in (0, 1):
            raise InvalidArgumentError(
                "labels do not fit the predictions",
                expected="the rank of the predictions, or one less",
                actual=f"{format_dims(right.dims)} for predictions {format_dims(like.dims)}",
            )
        return make("ExpandDims", right, -1) if missing else right
    absent = make("Maximum", make("Rank", like) - make("Rank", right), 0)
    shape = make("ConcatV2", [make("Shape", right), make("Fill", make("Reshape", absent, [1]), 1)], 0)
    return make("Reshape", right, shape)


def _not(condition: Tensor) -> Tensor:
    return make("LogicalNot", condition)


def _present(members: Tensor, others: Tensor) -> Tensor:
    """Return which of the members, along the last dimension, are in the row of `others`."""
    equal = make("Equal", make("ExpandDims", members, -1), make("ExpandDims", others, -2))
    return make("Any", equal, -1, keep_dims=False)


def _counted(members: Tensor, class_id: int | None) -> Tensor:
    """Return which members are counted: the first of equal ones, and with `class_id` only this class."""
    if class_id is not None:
        wanted = make("Equal", members, constant(class_id, dtypes.int64))
    else:
        wanted = make("NotEqual", members, constant(_NO_LABEL, dtypes.int64))
    equal = make("Equal", make("ExpandDims", members, -1), make("ExpandDims", members, -2))
    earlier = make("MatrixBandPart", cast_to(equal, dtypes.int32), -1, 0)
    first = make("Equal", reduce_sum(earlier, -1), 1)
    return make("LogicalAnd", wanted, first)


def _sum(name: str, members: Tensor, weights: TensorLike | None) -> tuple[Variable, Tensor]:
    """Return a variable, and the tensor that adds the number of members in each row, times its weight, to it."""
    each = reduce_sum(cast_to(members, dtypes.float64), -1)
    if weights is not None:
        each *= broadcast_weights(weights, each)
    total = metric_variable([], dtypes.float64, name)
    return total, convert_to_tensor(total.assign_add(reduce_sum(each)))


def _share(
    part: tuple[Variable, Tensor],
    rest: tuple[Variable, Tensor],
    metrics: Collections,
    updates: Collections,
    scope: str,
) -> Metric:
    value, update = (
        make("RealDiv", first, first + second, name=name)
        for first, second, name in (
            (convert_to_tensor(part[0]), convert_to_tensor(rest[0]), scope),
            (part[1], rest[1], "update"),
        )
    )
    return collected(value, update, metrics, updates)
