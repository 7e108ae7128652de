"""Counts of true and false positives and negatives over steps, and precision, recall and curves from these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, TypeAlias

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.graph import Tensor
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.array.selection import where_v2
from aioflow.ops.control.assertions import assert_greater_equal, assert_less_equal, assert_rank_in
from aioflow.ops.core import identity
from aioflow.ops.math.division import div_no_nan
from aioflow.ops.math.reduction import cumsum, reduce_min, reduce_sum
from aioflow.ops.math.sorting import argmax, argmin
from aioflow.ops.metrics.accumulators import (
    Collections,
    Metric,
    aligned,
    broadcast_weights,
    cast_to,
    collected,
    metric_variable,
)
from aioflow.ops.scoping import control_dependencies
from aioflow.ops.variables.scope import variable_scope

Curve: TypeAlias = Literal["ROC", "PR"]
SummationMethod: TypeAlias = Literal["trapezoidal", "careful_interpolation", "minoring", "majoring"]
Counts: TypeAlias = dict[str, Tensor]

_NAMES: Final = ("true_positives", "false_negatives", "true_negatives", "false_positives")
_SMALL: Final = 1e-7  # keeps denominators from being 0


def _bools(
    labels: TensorLike, predictions: TensorLike, weights: TensorLike | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    return aligned(cast_to(labels, dtypes.bool_), cast_to(predictions, dtypes.bool_), weights)


def _count(
    name: str,
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None,
    scope: str | None,
    metrics: Collections = None,
    updates: Collections = None,
) -> Metric:
    """Count the true or false positives or negatives in a scope of that name."""
    with variable_scope(scope, name, [predictions, labels, weights]):
        right, found, factors = _bools(labels, predictions, weights)
        each = cast_to(_outcome(name, right, found), dtypes.float32)
        count = metric_variable([], dtypes.float32, "count")
        if factors is not None:
            with control_dependencies([assert_rank_in(factors, [0, make("Rank", each)])]):
                each *= cast_to(factors, dtypes.float32)
        value = convert_to_tensor(count)
        return collected(value, convert_to_tensor(count.assign_add(reduce_sum(each))), metrics, updates)


def _outcome(name: str, labels: Tensor, predictions: Tensor) -> Tensor:
    found = predictions if name.endswith("positives") else make("LogicalNot", predictions)
    agrees = name in ("true_positives", "false_negatives")
    return make("LogicalAnd", labels if agrees else make("LogicalNot", labels), found)


def true_positives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Sum the weights of the elements that are predicted and labeled true, over all steps. See `metrics.mean`.

    Args:
        labels: Bools, or numbers of which those other than 0 are true.
        predictions: The same, of the same shape.
        weights: A scalar, or a tensor of the same rank; None counts the elements.
        metrics_collections: Names of collections to which the value is added.
        updates_collections: Names of collections to which the update is added.
        name: Name of the variable scope; the name of the function by default.

    Raises:
        InvalidArgumentError: the shapes differ by more than a last dimension of size 1.
    """
    return _count("true_positives", labels, predictions, weights, name, metrics_collections, updates_collections)


def true_negatives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Sum the weights of the elements that are predicted and labeled false. See `true_positives`."""
    return _count("true_negatives", labels, predictions, weights, name, metrics_collections, updates_collections)


def false_positives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Sum the weights of the elements that are predicted true and labeled false. See `true_positives`."""
    return _count("false_positives", labels, predictions, weights, name, metrics_collections, updates_collections)


def false_negatives(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Sum the weights of the elements that are predicted false and labeled true. See `true_positives`."""
    return _count("false_negatives", labels, predictions, weights, name, metrics_collections, updates_collections)


def precision(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the fraction of true labels among the positive predictions, or 0 without any. See `true_positives`."""
    return _fraction(
        "precision", "false_positives", labels, predictions, weights, metrics_collections, updates_collections, name
    )


def recall(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the fraction of positive predictions among the true labels, or 0 without any. See `true_positives`."""
    return _fraction(
        "recall", "false_negatives", labels, predictions, weights, metrics_collections, updates_collections, name
    )


def _fraction(
    name: str,
    others: str,
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None,
    metrics: Collections,
    updates: Collections,
    scope: str | None,
) -> Metric:
    """Divide the true positives by their sum with `others`."""
    with variable_scope(scope, name, [predictions, labels, weights]):
        right, found, factors = _bools(labels, predictions, weights)
        true = _count("true_positives", right, found, factors, None)
        false = _count(others, right, found, factors, None)
        value, update = (
            div_no_nan(part, make("Maximum", part + rest, 0.0), name=end)
            for part, rest, end in zip(true, false, ("value", "update_op"), strict=True)
        )
        return collected(value, update, metrics, updates)


# ── thresholds ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _counts_at(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Iterable[float],
    weights: TensorLike | None,
    names: Iterable[str] = _NAMES,
) -> tuple[Counts, Counts]:
    """Count the outcomes for each threshold: return the [thresholds] values and updates, by name.

    A prediction is positive if it is above the threshold.
    """
    limits = constant(np.asarray(list(thresholds), np.float32))
    scores = cast_to(predictions, dtypes.float32)
    checks = [
        check(scores, bound, message="predictions must be in [0, 1]")
        for check, bound in ((assert_greater_equal, 0.0), (assert_less_equal, 1.0))
    ]
    with control_dependencies(checks):
        right, found, factors = aligned(cast_to(labels, dtypes.bool_), identity(scores), weights)
    above = make("Greater", make("Reshape", found, [1, -1]), make("ExpandDims", limits, 1))
    if factors is not None:
        factors = make("Reshape", broadcast_weights(factors, found), [-1])
    values, updates = {}, {}
    for name in names:
        count = metric_variable(limits.shape, dtypes.float32, name)
        each = cast_to(_outcome(name, make("Reshape", right, [1, -1]), above), dtypes.float32)
        if factors is not None:
            each *= factors
        values[name] = convert_to_tensor(count)
        updates[name] = convert_to_tensor(count.assign_add(reduce_sum(each, 1)))
    return values, updates


def _count_at(
    name: str,
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Iterable[float],
    weights: TensorLike | None,
    metrics: Collections,
    updates: Collections,
    scope: str | None,
) -> Metric:
    with variable_scope(scope, name, [predictions, labels, weights]):
        found, updated = _counts_at(labels, predictions, thresholds, weights, [name])
        return collected(found[name], updated[name], metrics, updates)


def true_positives_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Iterable[float],
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Sum, for each threshold, the weights of the true positives over all steps.

    Args:
        labels: Bools, or numbers of which those other than 0 are true.
        predictions: Numbers from 0 to 1, of the same shape. Those above a threshold are positive.
        thresholds: Numbers; the results have one element for each.
        weights: A scalar, or a tensor of the rank of `labels` in which each size is 1 or that of `labels`.
        metrics_collections: Names of collections to which the value is added.
        updates_collections: Names of collections to which the update is added.
        name: Name of the variable scope; "true_positives" by default.

    Raises:
        InvalidArgumentError: shapes do not fit. In a step: a prediction is not in [0, 1].
    """
    return _count_at(
        "true_positives", labels, predictions, thresholds, weights, metrics_collections, updates_collections, name
    )


def true_negatives_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Iterable[float],
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Sum, for each threshold, the weights of the true negatives. See `true_positives_at_thresholds`."""
    return _count_at(
        "true_negatives", labels, predictions, thresholds, weights, metrics_collections, updates_collections, name
    )


def false_positives_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Iterable[float],
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Sum, for each threshold, the weights of the false positives. See `true_positives_at_thresholds`."""
    return _count_at(
        "false_positives", labels, predictions, thresholds, weights, metrics_collections, updates_collections, name
    )


def false_negatives_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Iterable[float],
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Sum, for each threshold, the weights of the false negatives. See `true_positives_at_thresholds`."""
    return _count_at(
        "false_negatives", labels, predictions, thresholds, weights, metrics_collections, updates_collections, name
    )


def precision_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Iterable[float],
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the precision for each threshold. See `true_positives_at_thresholds`."""
    names = ("true_positives", "false_positives")
    with variable_scope(name, "precision_at_thresholds", [predictions, labels, weights]):
        counts = _counts_at(labels, predictions, thresholds, weights, names)
        value, update = (_at(each, *names, f"precision_{end}") for each, end in _ends(counts))
        return collected(value, update, metrics_collections, updates_collections)


def recall_at_thresholds(
    labels: TensorLike,
    predictions: TensorLike,
    thresholds: Iterable[float],
    weights: TensorLike | None = None,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the recall for each threshold. See `true_positives_at_thresholds`."""
    names = ("true_positives", "false_negatives")
    with variable_scope(name, "recall_at_thresholds", [predictions, labels, weights]):
        counts = _counts_at(labels, predictions, thresholds, weights, names)
        value, update = (_at(each, *names, f"recall_{end}") for each, end in _ends(counts))
        return collected(value, update, metrics_collections, updates_collections)


def _ends(counts: tuple[Counts, Counts]) -> Iterable[tuple[Counts, str]]:
    return zip(counts, ("value", "update_op"), strict=True)


def _at(counts: Counts, part: str, rest: str, name: str | None = None) -> Tensor:
    """Return the fraction of `part` in the sum of both, for each threshold."""
    return make("RealDiv", counts[part], _SMALL + counts[part] + counts[rest], name=name)


def sensitivity_at_specificity(
    labels: TensorLike,
    predictions: TensorLike,
    specificity: float,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the recall at the threshold whose specificity is nearest to the given one, from 0 to 1.

    The specificity is the fraction of negative predictions among the false labels. The thresholds divide [0, 1] into
    `num_thresholds` - 1 equal parts. See `true_positives_at_thresholds`.
    """

    def of(counts: Counts, name: str) -> Tensor:
        distances = make("Abs", _at(counts, "true_negatives", "false_positives") - specificity)
        index = argmin(distances, 0)
        return _at(_taken(counts, index), "true_positives", "false_negatives", name)

    _check_fraction("specificity", specificity)
    with variable_scope(name, "sensitivity_at_specificity", [predictions, labels, weights]):
        counts = _counts_at(labels, predictions, _grid(num_thresholds, 1.0 + _SMALL), weights)
        value, update = (of(each, end) for each, end in _ends(counts))
        return collected(value, update, metrics_collections, updates_collections)


def specificity_at_sensitivity(
    labels: TensorLike,
    predictions: TensorLike,
    sensitivity: float,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    name: str | None = None,
) -> Metric:
    """Compute the specificity at the largest threshold whose recall is nearest to `sensitivity`, from 0 to 1.

    See `sensitivity_at_specificity`.
    """

    def of(counts: Counts, name: str) -> Tensor:
        distances = make("Abs", _at(counts, "true_positives", "false_negatives") - sensitivity)
        nearest = cast_to(make("Equal", distances, reduce_min(distances)), dtypes.int64)
        index = argmax(cumsum(nearest), 0)  # the last of those that are equally near
        return _at(_taken(counts, index), "true_negatives", "false_positives", name)

    _check_fraction("sensitivity", sensitivity)
    with variable_scope(name, "specificity_at_sensitivity", [predictions, labels, weights]):
        counts = _counts_at(labels, predictions, _grid(num_thresholds, 1.0 - _SMALL), weights)
        value, update = (of(each, end) for each, end in _ends(counts))
        return collected(value, update, metrics_collections, updates_collections)


def _check_fraction(what: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InvalidArgumentError(f"{what} is out of range", expected="a number from 0 to 1", actual=value)


def _grid(number: int, last: float) -> list[float]:
    return [-_SMALL, *((i + 1) / (number - 1) for i in range(number - 2)), last]


def _taken(counts: Counts, index: Tensor) -> Counts:
    return {name: make("GatherV2", each, index, 0) for name, each in counts.items()}


# ── area under a curve ────────────────────────────────────────────────────────────────────────────────────────────────


def auc(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike | None = None,
    num_thresholds: int = 200,
    metrics_collections: Collections = None,
    updates_collections: Collections = None,
    curve: Curve = "ROC",
    name: str | None = None,
    summation_method: SummationMethod = "trapezoidal",
    thresholds: Sequence[float] | None = None,
) -> Metric:
    """Compute the area under the ROC or the precision-recall curve, over all steps.

    Args:
        labels: Bools, or numbers of which those other than 0 are true.
        predictions: Numbers from 0 to 1, of the same shape.
        weights: See `mean`.
        num_thresholds: Number of points of the curve, at equal distances; not used with `thresholds`.
        metrics_collections: Names of collections to which the value is added.
        updates_collections: Names of collections to which the update is added.
        curve: "ROC", or "PR" for precision over recall.
        name: Name of the variable scope.
        summation_method: "trapezoidal", "minoring" (the lower of two neighbouring points), "majoring" (the higher), or
            for the curve "PR" "careful_interpolation" (Davis and Goadrich 2006), as between two points precision is not
            linear in recall.
        thresholds: Thresholds between 0 and 1, in any order; 0 and 1 are added.

    Raises:
        InvalidArgumentError: `curve` or `summation_method` is unknown, or shapes do not fit. In a step: a prediction
            is not in [0, 1].
    """
    _check_one_of("curve", curve, ("ROC", "PR"))
    _check_one_of(
        "summation_method", summation_method, ("trapezoidal", "careful_interpolation", "minoring", "majoring")
    )
    if thresholds is None:
        limits = [(i + 1) / (num_thresholds - 1) for i in range(num_thresholds - 2)]
    else:
        limits = sorted(thresholds)
    with variable_scope(name, "auc", [labels, predictions, weights]):
        counts = _counts_at(labels, predictions, [-_SMALL, *limits, 1.0 + _SMALL], weights)
        area = _area(curve, summation_method)
        value, update = (area(each, end) for each, end in _ends(counts))
        return collected(value, update, metrics_collections, updates_collections)


def _check_one_of(what: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InvalidArgumentError(f"unknown {what}", expected=f"one of {', '.join(allowed)}", actual=value)


def _area(curve: Curve, method: SummationMethod) -> Callable[[Counts, str], Tensor]:
    """Return the function from counts and the name of the node to the area."""
    if curve == "PR" and method == "careful_interpolation":
        return _interpolated_area

    def of(counts: Counts, name: str) -> Tensor:
        true, missed, false, rejected = (
            counts[each] for each in ("true_positives", "false_negatives", "false_positives", "true_negatives")
        )
        small = 1e-6
        hits = (true + small) / (true + missed + small)
        if curve == "ROC":
            x, y = false / (false + rejected + small), hits
        else:
            x, y = hits, (true + small) / (true + false + small)
        heights: Tensor
        if method == "minoring":
            heights = make("Minimum", y[:-1], y[1:])
        elif method == "majoring":
            heights = make("Maximum", y[:-1], y[1:])
        else:
            heights = (y[:-1] + y[1:]) / 2.0
        return reduce_sum((x[:-1] - x[1:]) * heights, name=name)

    return of


def _interpolated_area(counts: Counts, name: str) -> Tensor:
    """Return the area under the precision-recall curve.

    Between two points, the number of true positives is linear in the number of positives, with slope s and intercept i.
    The precision is then s + i / positives, whose integral over the recall has a logarithm.
    """
    true, false = counts["true_positives"], counts["false_positives"]
    positives = true + false
    step = true[:-1] - true[1:]
    slope = div_no_nan(step, make("Maximum", positives[:-1] - positives[1:], 0.0))
    intercept = true[1:] - slope * positives[1:]
    both = make("LogicalAnd", positives[:-1] > 0.0, positives[1:] > 0.0)
    ratio = where_v2(both, div_no_nan(positives[:-1], make("Maximum", positives[1:], 0.0)), 1.0)
    labeled = make("Maximum", true[1:] + counts["false_negatives"][1:], 0.0)
    return reduce_sum(div_no_nan(slope * (step + intercept * make("Log", ratio)), labeled), name=name)
