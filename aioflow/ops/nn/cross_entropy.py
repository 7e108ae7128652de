"""Cross entropies: each op computes the loss and, in the same pass, its gradient with respect to the logits."""

from __future__ import annotations

import math

from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph.gradient_registry import gradient
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, broadcast_dims, format_dims, is_compatible, merge_dims
from aioflow.graph.traits import opaque, transcendental
from aioflow.ops import rows
from aioflow.ops.apply import TensorLike, constant, convert_to_tensor, make, make_list
from aioflow.ops.array.static_shapes import swap_with_last
from aioflow.ops.core import cast_like, stop_gradient
from aioflow.ops.nn.activations import (
    is_last_axis,
    log_softmax,
    one_axis,
    softmax,
    softplus,
    sum_last,
    unless_zero,
)
from aioflow.ops.scoping import name_scope


def _dense_shape(ctx: ShapeContext) -> list[Dims]:
    # Broadcasting with an unknown matrix keeps the rank 2.
    unknown = (None, None)
    both = broadcast_dims([ctx.dims("features") or unknown, ctx.dims("labels") or unknown])
    if both is None or len(both) != 2:
        raise InvalidArgumentError("logits and labels must be matrices", expected="rank 2", actual=format_dims(both))
    return [(both[0],), both]


def _sparse_shape(ctx: ShapeContext) -> list[Dims]:
    features = ctx.require_rank("features", 2) or (None, None)
    labels = ctx.require_rank("labels", 1) or (None,)
    if not is_compatible((features[0],), labels):
        raise InvalidArgumentError(
            "logits and labels must have the same first dimension",
            expected=f"labels {format_dims((features[0],))}",
            actual=format_dims(labels),
        )
    # A size that is known of one input holds for both.
    rows = merge_dims((features[0],), labels)
    return [rows, (*(rows or ()), features[1])]


define_op(
    "SoftmaxCrossEntropyWithLogits",
    "features: T, labels: T",
    "loss: T, backprop: T",
    ["T: {floats}"],
    shape=_dense_shape,
    rows=rows.first_axes,
    traits=opaque(cost=transcendental(1.5)),
)
define_op(
    "SparseSoftmaxCrossEntropyWithLogits",
    "features: T, labels: Tlabels",
    "loss: T, backprop: T",
    ["T: {floats}", "Tlabels: {index} = int64"],
    shape=_sparse_shape,
    rows=rows.first_axes,
    traits=opaque(cost=transcendental(1.5)),
)


def _logits_grad(op: Operation, grad_loss: Tensor | None, grad_backprop: Tensor | None) -> Tensor | None:
    """Return the gradient of the logits through the loss and, in a second derivative, through `backprop`."""
    logits, backprop = op.inputs[0], op.outputs[1]
    # One loss per row, times backprop = softmax(logits) - labels.
    total = None if grad_loss is None else make("ExpandDims", grad_loss, -1) * backprop
    if grad_backprop is not None:
        # backprop depends on the logits through softmax, whose Jacobian is diag(p) - p pᵀ.
        p = softmax(logits)
        second = (grad_backprop - sum_last(grad_backprop * p)) * p
        total = second if total is None else total + second
    return total


@gradient("SparseSoftmaxCrossEntropyWithLogits")
def _sparse_grad(op: Operation, grad_loss: Tensor | None, grad_backprop: Tensor | None) -> list[Tensor | None]:
    return [_logits_grad(op, grad_loss, unless_zero(grad_backprop)), None]


@gradient("SoftmaxCrossEntropyWithLogits")
def _dense_grad(op: Operation, grad_loss: Tensor | None, grad_backprop: Tensor | None) -> list[Tensor | None]:
    logits, labels = op.inputs
    grad_backprop = unless_zero(grad_backprop)
    if not is_compatible(logits.dims, labels.dims):
        raise UnimplementedError(
            "there is no gradient when logits and labels are broadcast",
            expected=f"labels {format_dims(logits.dims)}",
            actual=format_dims(labels.dims),
        ).at(op.name, op.type, op.source)
    # loss = -Σ labels log p, so its gradient by the labels is -log p.
    by_labels = None if grad_loss is None else make("ExpandDims", grad_loss, -1) * -log_softmax(logits)
    if grad_backprop is not None:
        # backprop = p - labels, hence the minus.
        by_labels = -grad_backprop if by_labels is None else by_labels - grad_backprop
    return [_logits_grad(op, grad_loss, grad_backprop), by_labels]


# ── builders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _required(**values: TensorLike | None) -> list[TensorLike]:
    """Return the values. Raise InvalidArgumentError if one is missing.

    The published signatures have None as their default.
    """
    missing = [name for name, value in values.items() if value is None]
    if missing:
        raise InvalidArgumentError(
            f"{' and '.join(missing)} must be given by name", expected=", ".join(values), actual="None"
        )
    return [value for value in values.values() if value is not None]


def _precise(tensor: Tensor) -> Tensor:
    """Return a half-precision tensor as float32, in which losses are computed."""
    return make("Cast", tensor, DstT="float32") if tensor.dtype.name in ("float16", "bfloat16") else tensor


def softmax_cross_entropy_with_logits_v2(
    labels: TensorLike, logits: TensorLike, axis: int | None = None, name: str | None = None, dim: int | None = None
) -> Tensor:
    """Return -sum(labels * log_softmax(logits)) along `axis`. Gradients flow to logits and labels.

    Args:
        labels: Probabilities, of the shape of `logits`; each row should sum to 1.
        logits: Unscaled log probabilities.
        axis: The axis of the classes; the last by default.
        name: Name of the node.
        dim: Old name of `axis`.

    Returns:
        The loss, of the shape of `logits` without `axis`.

    Raises:
        InvalidArgumentError: the shapes differ.
    """
    labels, logits = _required(labels=labels, logits=logits)
    return _dense_loss(labels, logits, one_axis(axis, dim), name, "softmax_cross_entropy_with_logits")


def softmax_cross_entropy_with_logits(
    labels: TensorLike | None = None,
    logits: TensorLike | None = None,
    dim: int = -1,
    name: str | None = None,
    axis: int | None = None,
) -> Tensor:
    """Return `softmax_cross_entropy_with_logits_v2` without a gradient with respect to the labels."""
    labels, logits = _required(labels=labels, logits=logits)
    with name_scope(name, "softmax_cross_entropy_with_logits_sg", [logits, labels]) as scope:
        # The stop_gradient is all that tells this function from the second version.
        fixed = stop_gradient(convert_to_tensor(labels), name="labels_stop_gradient")
        return _dense_loss(fixed, logits, dim if axis is None else int(axis), scope, "")


def _dense_loss(labels: TensorLike, logits: TensorLike, axis: int, name: str | None, default: str) -> Tensor:
    with name_scope(name, default, [logits, labels]) as scope:
        given = convert_to_tensor(logits, name="logits")
        features = _precise(given)
        # Python values take the dtype of the logits; a tensor keeps its own and is cast below.
        targets = convert_to_tensor(labels, None if isinstance(labels, Tensor) else features.dtype, name="labels")
        targets = cast_like(targets, features)
        dims: Dims = given.dims
        order = None if is_last_axis(given, axis) else _axis_to_end(given, axis)
        if order is not None:
            features, targets = make("Transpose", features, order), make("Transpose", targets, order)
        outer = None if features.dims is None else features.dims[:-1]
        flat = features.dims is not None and len(features.dims) == 2
        # The op takes matrices only: other ranks are flattened to rows and their losses reshaped.
        rows = (features, targets) if flat else (_as_rows(features), _as_rows(targets))
        # The caller's name belongs to the node whose output is returned.
        loss = make_list("SoftmaxCrossEntropyWithLogits", *rows, name=scope if flat and features is given else None)[0]
        if not flat:
            loss = _with_outer_shape(loss, features, outer)
        if dims is not None:
            loss.set_shape(outer)
        return cast_like(loss, given)


def _axis_to_end(tensor: Tensor, axis: int) -> list[int] | Tensor:
    if tensor.dims is None:
        rank = make("Rank", tensor)
        # A negative axis counts from the end; its number is known only with the rank.
        last = make("Reshape", make("FloorMod", axis, rank), [1])
        return make("ConcatV2", [make_list("ListDiff", make("Range", 0, rank, 1), last)[0], last], 0)
    # Called for its check of the axis.
    swap_with_last(tensor, axis)
    # Not the swap itself: the other axes keep their order, which is that of the loss.
    size = len(tensor.dims)
    return [i for i in range(size) if i != axis % size] + [axis % size]


def _as_rows(tensor: Tensor) -> Tensor:
    """Reshape the tensor to a matrix whose rows are its last axis."""
    dims = tensor.dims
    if dims and dims[-1] is not None:
        return make("Reshape", tensor, [-1, dims[-1]])
    last = make("StridedSlice", make("Shape", tensor), [-1], [0], [1], end_mask=1)
    rows = make("Reshape", tensor, make("ConcatV2", [convert_to_tensor([-1]), last], 0))
    return rows


def _with_outer_shape(loss: Tensor, features: Tensor, outer: Dims) -> Tensor:
    shape: Tensor
    sizes = [] if outer is None else [d for d in outer if d is not None]
    if outer is not None and len(sizes) == len(outer):
        shape = constant(sizes, "int32", shape=(len(sizes),))
    else:
        shape = make("StridedSlice", make("Shape", features), [0], [-1], [1], begin_mask=1)
    return make("Reshape", loss, shape)


def sparse_softmax_cross_entropy_with_logits(
    labels: TensorLike | None = None, logits: TensorLike | None = None, name: str | None = None
) -> Tensor:
    """Return -log_softmax(logits)[labels]: the cross entropy for labels that are class numbers.

    Args:
        labels: [...] int32 or int64 class numbers, each in [0, classes).
        logits: [..., classes] unscaled log probabilities.
        name: Name of the node.

    Returns:
        The loss, of the shape of `labels` and the dtype of `logits`.

    Raises:
        InvalidArgumentError: the shapes do not fit; at run time, a label is out of range.
    """
    labels, logits = _required(labels=labels, logits=logits)
    with name_scope(name, "SparseSoftmaxCrossEntropyWithLogits", [labels, logits]) as scope:
        classes, given = convert_to_tensor(labels), convert_to_tensor(logits)
        features = _precise(given)
        _check_sparse(classes, given)
        if given.dims is not None and len(given.dims) == 2:
            own = scope if features is given else None
            loss = make_list("SparseSoftmaxCrossEntropyWithLogits", features, classes, name=own)[0]
            return cast_like(loss, given)
        # The op takes a vector of labels, so leading axes are flattened and restored after it.
        outer = classes.dims
        flat = make("Reshape", classes, [-1])
        loss = make_list("SparseSoftmaxCrossEntropyWithLogits", _as_rows(features), flat)[0]
        loss = make("Reshape", loss, make("Shape", classes))
        loss.set_shape(outer)
        return cast_like(loss, given)


def _check_sparse(labels: Tensor, logits: Tensor) -> None:
    if logits.dims == ():
        raise InvalidArgumentError("logits cannot be a scalar", expected="rank >= 1", actual=format_dims(logits.dims))
    outer = None if logits.dims is None else logits.dims[:-1]
    if not is_compatible(outer, labels.dims):
        raise InvalidArgumentError(
            "labels must have the shape of logits without its last axis",
            expected=format_dims(outer),
            actual=format_dims(labels.dims),
        )


def sigmoid_cross_entropy_with_logits(
    labels: TensorLike | None = None, logits: TensorLike | None = None, name: str | None = None
) -> Tensor:
    """Return the cross entropy of independent binary labels: softplus(logits) - logits * labels, elementwise.

    Raises:
        InvalidArgumentError: the shapes differ.
    """
    labels, logits = _required(labels=labels, logits=logits)
    with name_scope(name, "logistic_loss", [logits, labels]) as scope:
        x = convert_to_tensor(logits, name="logits")
        z = convert_to_tensor(labels, x.dtype, name="labels")
        # Called for its check: a broadcast of labels against logits is not wanted here.
        merge_dims(x.dims, z.dims)
        # softplus equals max(x, 0) + log(1 + exp(-|x|)), but that expression has a wrong gradient at 0.
        return make("Sub", softplus(x), x * z, name=scope)


def weighted_cross_entropy_with_logits(
    labels: TensorLike | None = None,
    logits: TensorLike | None = None,
    pos_weight: TensorLike | None = None,
    name: str | None = None,
    targets: TensorLike | None = None,
) -> Tensor:
    """Like `sigmoid_cross_entropy_with_logits`, but positive labels have the weight `pos_weight`.

    `targets` is an older name of `labels`.

    Raises:
        InvalidArgumentError: the shapes differ.
    """
    labels = targets if labels is None else labels
    labels, logits, pos_weight = _required(labels=labels, logits=logits, pos_weight=pos_weight)
    with name_scope(name, "logistic_loss", [logits, labels]) as scope:
        x = convert_to_tensor(logits, name="logits")
        z = convert_to_tensor(labels, x.dtype, name="labels")
        merge_dims(x.dims, z.dims)
        # -z w log σ(x) - (1 - z) log(1 - σ(x)) = (1 - z) x + (1 + (w - 1) z) softplus(-x).
        weight = 1 + (convert_to_tensor(pos_weight, x.dtype) - 1) * z
        return make("AddV2", (1 - z) * x, weight * softplus(-x), name=scope)


def log_poisson_loss(
    targets: TensorLike, log_input: TensorLike, compute_full_loss: bool = False, name: str | None = None
) -> Tensor:
    """Return exp(log_input) - log_input * targets, elementwise: the loss of a Poisson regression.

    With `compute_full_loss`, add Stirling's approximation of log(targets!) where targets > 1.

    Raises:
        InvalidArgumentError: the shapes differ.
    """
    with name_scope(name, "log_poisson_loss", [log_input, targets]):
        c = convert_to_tensor(log_input, name="log_input")
        z = convert_to_tensor(targets, c.dtype, name="targets")
        merge_dims(c.dims, z.dims)
        result: Tensor = make("Exp", c) - c * z
        if compute_full_loss:
            stirling = z * make("Log", z) - z + 0.5 * make("Log", 2 * math.pi * z)
            small = make("LogicalAnd", z >= 0, z <= 1)
            result += make("SelectV2", small, make("ZerosLike", z), stirling)
        return result
