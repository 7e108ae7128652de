"""Losses that are averaged by weights and collected: the contents of `aioflow.losses`.

The argument `weights` is a number, or a tensor of the rank of the losses in which each size is 1 or the losses' size.
float64 losses stay float64 (TensorFlow computes them in float32); integers and half precision become float32.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

from aioflow.arguments import check_kind
from aioflow.errors import InvalidArgumentError
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import GraphKeys, Tensor
from aioflow.graph.shapes import Dims, format_dims, is_compatible, merge_dims, num_elements
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make
from aioflow.ops.core import stop_gradient
from aioflow.ops.nn.activations import relu
from aioflow.ops.nn.cross_entropy import (
    sigmoid_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits_v2,
    sparse_softmax_cross_entropy_with_logits,
)
from aioflow.ops.scoping import name_scope

LossReduction: TypeAlias = Literal[
    "none", "weighted_sum", "weighted_mean", "weighted_sum_over_batch_size", "weighted_sum_by_nonzero_weights"
]


class Reduction:
    """The reductions of losses to one number.

    - NONE keeps the losses as they are.
    - SUM is their sum.
    - MEAN is the sum divided by the sum of the weights.
    - SUM_OVER_BATCH_SIZE is the sum divided by the number of losses.
    - SUM_BY_NONZERO_WEIGHTS is the sum divided by the number of losses whose weight is not 0.
    """

    NONE: Final = "none"
    SUM: Final = "weighted_sum"
    SUM_OVER_BATCH_SIZE: Final = "weighted_sum_over_batch_size"
    MEAN: Final = "weighted_mean"
    SUM_BY_NONZERO_WEIGHTS: Final = "weighted_sum_by_nonzero_weights"
    SUM_OVER_NONZERO_WEIGHTS: Final = SUM_BY_NONZERO_WEIGHTS

    @classmethod
    def all(cls) -> tuple[LossReduction, ...]:
        """Return all reductions."""
        return get_args(LossReduction)

    @classmethod
    def validate(cls, key: str) -> None:
        """Raise InvalidArgumentError if `key` is not a reduction."""
        if key not in cls.all():
            raise InvalidArgumentError("invalid reduction", expected=f"one of {', '.join(cls.all())}", actual=key)


_BY_NONZERO: Final = Reduction.SUM_BY_NONZERO_WEIGHTS
_LOSSES: Final = GraphKeys.LOSSES


def _floating(value: TensorLike) -> Tensor:
    tensor = convert_to_tensor(value)
    return tensor if tensor.dtype.name in ("float32", "float64") else make("Cast", tensor, DstT="float32")


def _pair(labels: TensorLike | None, predictions: TensorLike | None) -> tuple[Tensor, Tensor]:
    """Return both as floating tensors of the dtype of `predictions`.

    Raise InvalidArgumentError if the shapes differ.
    """
    if labels is None or predictions is None:
        raise InvalidArgumentError("labels and predictions must be given", expected="two tensors", actual="None")
    second = _floating(predictions)
    first = _like(labels, second)
    merge_dims(second.dims, first.dims)
    return first, second


def _like(value: TensorLike, like: Tensor) -> Tensor:
    tensor = convert_to_tensor(value, None if hasattr(value, "dtype") else like.dtype)
    return tensor if tensor.dtype is like.dtype else make("Cast", tensor, DstT=like.dtype)


# ── weighting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def compute_weighted_loss(
    losses: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: LossReduction = _BY_NONZERO,
) -> Tensor:
    """Return the losses times `weights`, reduced, in the dtype of `losses`, and add them to the collection.

    Raises:
        InvalidArgumentError: the weights do not broadcast to the losses, or `reduction` is unknown.
    """
    Reduction.validate(reduction)
    with name_scope(scope, "weighted_loss", [losses, weights]):
        given = convert_to_tensor(losses)
        each = _floating(given)
        plain = isinstance(weights, int | float)
        # A weight of 1 needs no node.
        factor = None if plain and weights == 1 else _like(weights, each)
        if factor is not None:
            _check_broadcast(factor.dims, each.dims)
        weighted = each if factor is None else each * factor
        result = _reduced(weighted, each, factor, weights if plain else None, reduction)
        if reduction != Reduction.NONE:
            # Not inferred if the rank of the losses is unknown.
            result.set_shape(())
        if result.dtype is not given.dtype:
            result = make("Cast", result, DstT=given.dtype)
        add_loss(result, loss_collection)
        return result


def _check_broadcast(weights: Dims, losses: Dims) -> None:
    if weights is None or losses is None or weights == ():
        return
    fits = len(weights) == len(losses) and all(
        w in (1, None) or v is None or w == v for w, v in zip(weights, losses, strict=True)
    )
    if not fits:
        raise InvalidArgumentError(
            "weights cannot be broadcast to the losses",
            expected=f"a scalar, or {format_dims(losses)} with sizes that may be 1",
            actual=format_dims(weights),
        )


def _reduced(
    weighted: Tensor, losses: Tensor, factor: Tensor | None, number: object, reduction: LossReduction
) -> Tensor:
    if reduction == Reduction.NONE:
        return weighted
    axes = _all_axes(weighted)
    total: Tensor
    # A plain number other than 0 makes every loss count.
    by_count = reduction == Reduction.SUM_OVER_BATCH_SIZE or (reduction == _BY_NONZERO and number not in (None, 0))
    if (by_count or (reduction == Reduction.MEAN and factor is None)) and num_elements(losses.dims):
        # Every loss counts and there is at least one, so the quotient is the plain mean.
        total = make("Mean", weighted, axes)
        return total
    total = make("Sum", weighted, axes)
    if reduction == Reduction.SUM:
        return total
    # If no loss counts, the result is 0 and not NaN.
    return make("DivNoNan", total, _count(losses, factor, by_count, reduction))


def _count(losses: Tensor, factor: Tensor | None, by_count: bool, reduction: LossReduction) -> Tensor:
    """Return the divisor of the sum of the losses."""
    count: Tensor
    if by_count or factor is None:
        count = make("Cast", make("Size", losses), DstT=losses.dtype)
        return count
    if reduction == _BY_NONZERO:
        # A weight counts 1 if it is not 0.
        factor = make("Cast", make("NotEqual", factor, constant(0, factor.dtype)), DstT=losses.dtype)
    # A weight that is broadcast counts once for each of its losses.
    full = factor if is_same(factor.dims, losses.dims) else factor + make("ZerosLike", losses)
    count = make("Sum", full, _all_axes(full))
    return count


def is_same(a: Dims, b: Dims) -> bool:
    """Return whether both are fully known, and equal."""
    return a is not None and None not in a and a == b


def _all_axes(tensor: Tensor) -> Tensor:
    if tensor.dims is not None:
        return constant(list(range(len(tensor.dims))), "int32", shape=(len(tensor.dims),))
    return make("Range", 0, make("Rank", tensor), 1)


# ── losses ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def absolute_difference(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: LossReduction = _BY_NONZERO,
) -> Tensor:
    """Return the weighted loss |predictions - labels|."""
    with name_scope(scope, "absolute_difference", [predictions, labels, weights]):
        truth, guess = _pair(labels, predictions)
        return compute_weighted_loss(abs(guess - truth), weights, None, loss_collection, reduction)


def mean_squared_error(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: LossReduction = _BY_NONZERO,
) -> Tensor:
    """Return the weighted loss (predictions - labels) ** 2."""
    with name_scope(scope, "mean_squared_error", [predictions, labels, weights]):
        truth, guess = _pair(labels, predictions)
        return compute_weighted_loss(make("SquaredDifference", guess, truth), weights, None, loss_collection, reduction)


def huber_loss(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    delta: float = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: LossReduction = _BY_NONZERO,
) -> Tensor:
    """Return the weighted Huber loss.

    It is error ** 2 / 2 where |error| <= delta, and linear with slope delta beyond.
    """
    with name_scope(scope, "huber_loss", [predictions, labels, weights]):
        truth, guess = _pair(labels, predictions)
        error = abs(guess - truth)
        # With inner = min(error, delta), the sum below is error² / 2 up to delta, and delta * error - delta² / 2 above.
        inner = make("Minimum", error, constant(delta, error.dtype))
        return compute_weighted_loss(
            0.5 * inner * inner + delta * (error - inner), weights, None, loss_collection, reduction
        )


def log_loss(
    labels: TensorLike,
    predictions: TensorLike,
    weights: TensorLike = 1.0,
    epsilon: float = 1e-7,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: LossReduction = _BY_NONZERO,
) -> Tensor:
    """Return the weighted loss -labels * log(predictions) - (1 - labels) * log(1 - predictions).

    `epsilon` is added inside the logarithms.
    """
    with name_scope(scope, "log_loss", [predictions, labels, weights]):
        truth, guess = _pair(labels, predictions)
        losses = -truth * make("Log", guess + epsilon) - (1 - truth) * make("Log", 1 - guess + epsilon)
        return compute_weighted_loss(losses, weights, None, loss_collection, reduction)


def hinge_loss(
    labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: LossReduction = _BY_NONZERO,
) -> Tensor:
    """Return the weighted loss max(0, 1 - t * logits), with t = 2 * labels - 1 for labels 0 and 1."""
    with name_scope(scope, "hinge_loss", [logits, labels, weights]):
        truth, guess = _pair(labels, logits)
        return compute_weighted_loss(relu(1 - (2 * truth - 1) * guess), weights, None, loss_collection, reduction)


def cosine_distance(
    labels: TensorLike,
    predictions: TensorLike,
    axis: int | None = None,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: LossReduction = _BY_NONZERO,
    dim: int | None = None,
) -> Tensor:
    """Return the weighted loss 1 - sum(predictions * labels) along `axis`, for vectors of length 1.

    `dim` is the older name of `axis`.

    Raises:
        InvalidArgumentError: neither `axis` nor `dim` is given, or the shapes do not fit.
    """
    along = dim if axis is None else axis
    if along is None:
        raise InvalidArgumentError("axis must be given", expected="an axis", actual="None")
    with name_scope(scope, "cosine_distance_loss", [predictions, labels, weights]):
        truth, guess = _pair(labels, predictions)
        losses = 1 - make("Sum", guess * truth, [along], keep_dims=True)
        return compute_weighted_loss(losses, weights, None, loss_collection, reduction)


def sigmoid_cross_entropy(
    multi_class_labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: LossReduction = _BY_NONZERO,
) -> Tensor:
    """Return `nn.sigmoid_cross_entropy_with_logits`, weighted.

    `label_smoothing` moves labels by that fraction towards 1/2.
    """
    with name_scope(scope, "sigmoid_cross_entropy_loss", [logits, multi_class_labels, weights]):
        guess = convert_to_tensor(logits)
        truth = _like(multi_class_labels, guess)
        if label_smoothing > 0:
            truth = truth * (1 - label_smoothing) + 0.5 * label_smoothing
        losses = sigmoid_cross_entropy_with_logits(labels=truth, logits=guess)
        return compute_weighted_loss(losses, weights, None, loss_collection, reduction)


def softmax_cross_entropy(
    onehot_labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    label_smoothing: float = 0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: LossReduction = _BY_NONZERO,
) -> Tensor:
    """Return `nn.softmax_cross_entropy_with_logits`, weighted.

    `label_smoothing` moves labels by that fraction towards 1/classes. No gradient flows to the labels.

    Raises:
        InvalidArgumentError: the shapes differ.
    """
    with name_scope(scope, "softmax_cross_entropy_loss", [logits, onehot_labels, weights]):
        guess = convert_to_tensor(logits)
        truth = _like(onehot_labels, guess)
        merge_dims(guess.dims, truth.dims)
        if label_smoothing > 0:
            truth = truth * (1 - label_smoothing) + label_smoothing / _classes(truth)
        fixed = stop_gradient(truth, name="labels_stop_gradient")
        losses = softmax_cross_entropy_with_logits_v2(labels=fixed, logits=guess, name="xentropy")
        return compute_weighted_loss(losses, weights, None, loss_collection, reduction)


def _classes(labels: Tensor) -> int | Tensor:
    if labels.dims and labels.dims[-1] is not None:
        return labels.dims[-1]
    last = make("StridedSlice", make("Shape", labels), [-1], [0], [1], end_mask=1)
    return make("Cast", make("Squeeze", last), DstT=labels.dtype)


def sparse_softmax_cross_entropy(
    labels: TensorLike,
    logits: TensorLike,
    weights: TensorLike = 1.0,
    scope: str | None = None,
    loss_collection: str | None = _LOSSES,
    reduction: LossReduction = _BY_NONZERO,
) -> Tensor:
    """Return `nn.sparse_softmax_cross_entropy_with_logits`, weighted. Labels may have a last axis of size 1.

    Raises:
        InvalidArgumentError: the shapes do not fit; at run time, a label is out of range.
    """
    with name_scope(scope, "sparse_softmax_cross_entropy_loss", [logits, labels, weights]):
        classes, guess = convert_to_tensor(labels), convert_to_tensor(logits)
        classes = _without_last(classes, None if guess.dims is None else len(guess.dims) - 1)
        # Weights may have the last axis of the labels, too.
        if isinstance(weights, Tensor):
            weights = _without_last(weights, None if classes.dims is None else len(classes.dims))
        losses = sparse_softmax_cross_entropy_with_logits(labels=classes, logits=guess, name="xentropy")
        return compute_weighted_loss(losses, weights, None, loss_collection, reduction)


def _without_last(tensor: Tensor, rank: int | None) -> Tensor:
    """Drop a last axis of size 1 if the tensor then has the given rank."""
    dims = tensor.dims
    if rank is None or dims is None or len(dims) != rank + 1 or not is_compatible(dims[-1:], (1,)):
        return tensor
    return make("Squeeze", tensor, squeeze_dims=[-1])


# ── collections ───────────────────────────────────────────────────────────────────────────────────────────────────────


def add_loss(loss: Tensor, loss_collection: str | None = _LOSSES) -> None:
    """Add `loss` to the named collection. None adds it to no collection."""
    if loss_collection:
        check_kind(loss, Tensor, "a loss", "a tensor")
        loss.graph.add_to_collection(loss_collection, loss)


def get_losses(scope: str | None = None, loss_collection: str = _LOSSES) -> list[Tensor]:
    """Return the losses of the default graph; with `scope`, only losses whose names match that regular expression."""
    return default_graph().get_collection(loss_collection, scope)


def get_regularization_losses(scope: str | None = None) -> list[Tensor]:
    """Return the regularization losses of the default graph, selected by `scope` as in `get_losses`."""
    return default_graph().get_collection(GraphKeys.REGULARIZATION_LOSSES, scope)


def get_regularization_loss(scope: str | None = None, name: str = "total_regularization_loss") -> Tensor:
    """Return the sum of the regularization losses, 0 if there are no such losses."""
    losses = get_regularization_losses(scope)
    return _sum(losses, name) if losses else constant(0.0)


def get_total_loss(
    add_regularization_losses: bool = True, name: str = "total_loss", scope: str | None = None
) -> Tensor:
    """Return the sum of the collected losses, by default with the regularization losses.

    Raises:
        InvalidArgumentError: there are no losses.
    """
    losses = get_losses(scope) + (get_regularization_losses(scope) if add_regularization_losses else [])
    if not losses:
        raise InvalidArgumentError(
            "there is nothing to add up", expected="at least one loss in the collection", actual="none"
        )
    return _sum(losses, name)


def _sum(losses: list[Tensor], name: str) -> Tensor:
    return make("AddN", losses, name=name)
