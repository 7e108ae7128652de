"""Metrics that are means of values over steps, and the accuracies and overlaps of classes."""

from __future__ import annotations

from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import merge_dims
from aioflow.ops.apply import TensorLike, convert_to_tensor, make
from aioflow.ops.array.making import ones_like
from aioflow.ops.array.selection import where_v2
from aioflow.ops.math.arithmetic import squared_difference
from aioflow.ops.math.division import div_no_nan
from aioflow.ops.math.reduction import reduce_mean, reduce_sum
from aioflow.ops.math.sorting import confusion_matrix
from aioflow.ops.metrics.accumulators import (
    Collections,
    Metric,
    aligned,
    aligned_weights,
    broadcast_weights,
    cast_to,
    collected,
    flat,
    metric_variable,
)
from aioflow.ops.variables.scope import variable_scope
from aioflow.ops.variables.update_functions import scatter_add
from aioflow.ops.variables.variable import Variable


def mean(
    values: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the weighted mean of `values` over all steps that run the update.

        value, update = af.metrics.mean(losses)
        await session.run(af.local_variables_initializer())
        async for batch in batches:
            await session.run(update, {x: batch})
        print(await session.run(value))

    The sums are kept in the local variables "total" and "count": `local_variables_initializer` sets them to zero.

    Args:
        values: Numbers, of any shape; computed as float32.
        weights: A scalar, or a tensor of the rank of `values` in which each size is 1 or that of `values`. A last
            dimension of size 1 may be missing or too many. None weights all values by 1.
        metrics_collections: Names of collections to which the value is added.
        updates_collections: Names of collections to which the update is added.
        name: Name of the variable scope; the name of the function by default.

    Returns:
        The value, a float32 scalar that is 0 before the first update, and the update, which adds the values of this
        step and returns the new value.

    Raises:
        InvalidArgumentError: the weights cannot be broadcast to the values.
    """
    with variable_scope(name, "mean", [values, weights]):
        each = cast_to(values, dtypes.float32)
        total = metric_variable([], dtypes.float32, "total")
        count = metric_variable([], dtypes.float32, "count")
        if weights is None:
            number = cast_to(make("Size", each), dtypes.float32)
        else:
            factors = _factors(weights, each)
            each *= factors
            number = reduce_sum(factors)
        return _quotient(total, count, reduce_sum(each), number, metrics_collections, updates_collections)


def _factors(weights: TensorLike, values: Tensor) -> Tensor:
    return broadcast_weights(aligned_weights(weights, values), values)


def _quotient(
    total: Variable, count: Variable, values: Tensor, number: Tensor, metrics: Collections, updates: Collections
) -> Metric:
    """Add to both variables. Return their quotient before and after."""
    value = div_no_nan(total, make("Maximum", count, 0.0), name="value")
    added, counted = total.assign_add(values), count.assign_add(number)
    update = div_no_nan(added, make("Maximum", counted, 0.0), name="update_op")
    return collected(value, update, metrics, updates)


def mean_tensor(
    values: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the mean of each element of `values`, whose shape is known, over all steps. See `mean`."""
    with variable_scope(name, "mean", [values, weights]):
        each = cast_to(values, dtypes.float32)
        total = metric_variable(each.shape, dtypes.float32, "total_tensor")
        count = metric_variable(each.shape, dtypes.float32, "count_tensor")
        number = ones_like(each)
        if weights is not None:
            number = _factors(weights, each)
            each *= number
        return _quotient(total, count, each, number, metrics_collections, updates_collections)


def percentage_below(
    values: TensorLike,
    threshold: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the fraction, from 0 to 1, of the values below `threshold`, over all steps. See `mean`."""
    below = make("Less", values, threshold)
    return mean(below, weights, metrics_collections, updates_collections, name or "percentage_below_threshold")


# ── labels and predictions ────────────────────────────────────────────────────────────────────────────────────────────


def accuracy(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the fraction of the predictions that equal their labels, over all steps. See `mean`.

    Args:
        labels: Classes.
        predictions: Classes, of the same shape; converted to the dtype of `labels`.
        weights: See `mean`.
        metrics_collections: See `mean`.
        updates_collections: See `mean`.
        name: See `mean`.

    Raises:
        InvalidArgumentError: the shapes differ by more than a last dimension of size 1.
    """
    right, found, factors = aligned(labels, predictions, weights)
    if found.dtype is not right.dtype:
        found = cast_to(found, right.dtype)
    correct = make("Equal", found, right)
    return mean(correct, factors, metrics_collections, updates_collections, name or "accuracy")


def mean_absolute_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the mean of |predictions - labels|, tensors of one dtype, over all steps. See `mean`."""
    right, found, factors = aligned(labels, predictions, weights)
    errors = make("Abs", found - right)
    return mean(errors, factors, metrics_collections, updates_collections, name or "mean_absolute_error")


def mean_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the mean of (predictions - labels)², tensors of one dtype, over all steps. See `mean`."""
    right, found, factors = aligned(labels, predictions, weights)
    errors = squared_difference(right, found)
    return mean(errors, factors, metrics_collections, updates_collections, name or "mean_squared_error")


def root_mean_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the square root of the mean of (predictions - labels)², over all steps. See `mean`."""
    squared = mean_squared_error(labels, predictions, weights, name=name or "root_mean_squared_error")
    value, update = (make("Sqrt", each) for each in squared)
    return collected(value, update, metrics_collections, updates_collections)


def mean_relative_error(
    labels: TensorLike,
    predictions: TensorLike,
    normalizer: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the mean of |predictions - labels| / normalizer, over all steps. See `mean`.

    `normalizer` has the shape of the labels; where it is 0, the error counts as 0.
    """
    right, found, factors = aligned(labels, predictions, weights)
    scale, found, _ = aligned(normalizer, found, None)
    errors = make("Abs", right - found) / scale
    known = where_v2(make("Equal", scale, 0.0), make("ZerosLike", right), errors)
    return mean(known, factors, metrics_collections, updates_collections, name or "mean_relative_error")


def mean_cosine_distance(
    labels: TensorLike,
    predictions: TensorLike,
    dim: int,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute 1 minus the mean dot product of labels and predictions along `dim`, over all steps. See `mean`.

    This is the cosine distance of vectors of length 1.
    """
    right, found, factors = aligned(labels, predictions, weights)
    products = reduce_sum(found * right, [dim], keepdims=True)
    near = mean(products, factors, name=name or "mean_cosine_distance")
    value, update = (1.0 - each for each in near)
    return collected(value, update, metrics_collections, updates_collections)


# ── classes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def mean_per_class_accuracy(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the mean of the accuracies of the classes 0 to `num_classes` - 1, over all steps.

    Args:
        labels: Integers; tensors of several dimensions are flattened.
        predictions: As many classes.
        num_classes: Number of classes. A class without labels has accuracy 0.
        weights: As many numbers, or a scalar.
        metrics_collections: See `mean`.
        updates_collections: See `mean`.
        name: Name of the variable scope; "mean_accuracy" by default.

    Returns:
        The value, and the update, which returns the [num_classes] accuracies.
    """
    with variable_scope(name, "mean_accuracy", [predictions, labels, weights]):
        right, found = flat(cast_to(labels, dtypes.int64)), flat(convert_to_tensor(predictions))
        merge_dims(found.dims, right.dims)
        total = metric_variable([num_classes], dtypes.float32, "total")
        count = metric_variable([num_classes], dtypes.float32, "count")
        correct = cast_to(make("Equal", cast_to(found, dtypes.int64), right), dtypes.float32)
        seen = ones_like(correct)
        if weights is not None:
            factors = flat(cast_to(weights, dtypes.float32))
            correct, seen = correct * factors, seen * factors
        value = reduce_mean(div_no_nan(count, make("Maximum", total, 0.0)), name="mean_accuracy")
        added = scatter_add(total, right, seen)
        counted = scatter_add(count, right, correct)
        update = div_no_nan(counted, make("Maximum", added, 0.0), name="update_op")
        return collected(value, update, metrics_collections, updates_collections)


def mean_iou(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: int,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the mean, over the classes, of intersection over union, from the confusion matrix of all steps.

    For a class, this is the number of its correct predictions divided by the number of elements that are labeled or
    predicted as this class. Classes that are neither are not averaged.

    Args:
        labels: Integers below `num_classes`; tensors of several dimensions are flattened.
        predictions: As many classes.
        num_classes: Number of classes.
        weights: As many numbers.
        metrics_collections: See `mean`.
        updates_collections: See `mean`.
        name: Name of the variable scope.

    Returns:
        The value, and the update, which returns the [num_classes, num_classes] float64 confusion matrix.
    """
    with variable_scope(name, "mean_iou", [predictions, labels, weights]):
        right, found = convert_to_tensor(labels), convert_to_tensor(predictions)
        merge_dims(found.dims, right.dims)
        matrix = metric_variable([num_classes, num_classes], dtypes.float64, "total_confusion_matrix")
        factors = None if weights is None else flat(convert_to_tensor(weights))
        counts = confusion_matrix(flat(right), flat(found), num_classes, dtypes.float64, weights=factors)
        update = convert_to_tensor(matrix.assign_add(counts))
        rows, columns = (cast_to(reduce_sum(matrix, axis), dtypes.float32) for axis in (0, 1))
        common = cast_to(make("DiagPart", matrix), dtypes.float32)
        union = rows + columns - common
        valid = reduce_sum(cast_to(make("NotEqual", union, 0.0), dtypes.float32))
        value = div_no_nan(reduce_sum(div_no_nan(common, union), name="mean_iou"), valid)
        return collected(value, update, metrics_collections, updates_collections)
