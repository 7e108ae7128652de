"""Kernels of the cross entropies, which compute the loss and its gradient by the logits from one exponential."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.kernels.nn.activations import narrow, softmax_parts, widen
from aioflow.kernels.registry import Binding, binder
from aioflow.memory.values import Array, Namespace


@binder("SoftmaxCrossEntropyWithLogits", fresh=True)
def dense(binding: Binding) -> Callable[[Array, Array], tuple[Array, Array]]:
    xp, parts = binding.xp, softmax_parts(binding.xp)

    def body(features: Array, labels: Array) -> tuple[Array, Array]:
        if features.shape != labels.shape:
            features, labels = _broadcast(xp, features, labels)
        _check_logits(features)
        shifted, backprop, total = parts(features)
        targets = widen(labels)
        # The gradient by the logits is softmax - labels, and -log softmax is log Σexp - (x - max).
        backprop /= total
        backprop -= targets
        terms = xp.log(total) - shifted
        terms *= targets
        xp.copyto(terms, terms.dtype.type(0), where=targets == 0)  # 0 times infinity counts as 0
        return narrow(terms.sum(axis=-1), features.dtype), narrow(backprop, features.dtype)

    return body


def _broadcast(xp: Namespace, features: Array, labels: Array) -> tuple[Array, Array]:
    fits = features.ndim == labels.ndim == 2 and all(
        a == b or 1 in (a, b) for a, b in zip(features.shape, labels.shape, strict=True)
    )
    if not fits:
        raise InvalidArgumentError(
            "logits and labels must be broadcastable matrices", expected=f"labels {features.shape}", actual=labels.shape
        )
    shape = np.broadcast_shapes(features.shape, labels.shape)
    return xp.broadcast_to(features, shape), xp.broadcast_to(labels, shape)


def _check_logits(features: Array) -> None:
    if features.ndim != 2:
        raise InvalidArgumentError("logits must be a matrix", expected="rank 2", actual=features.shape)
    if features.shape[1] == 0:
        raise InvalidArgumentError(
            "there must be at least one class", expected="(batch, classes >= 1)", actual=features.shape
        )


@binder("SparseSoftmaxCrossEntropyWithLogits", fresh=True)
def sparse(binding: Binding) -> Callable[[Array, Array], tuple[Array, Array]]:
    xp, parts = binding.xp, softmax_parts(binding.xp)
    unsigned = np.dtype(f"u{binding.input_dtypes[1].np_dtype.itemsize}")
    last: list[Array | None] = [None]

    def body(features: Array, labels: Array) -> tuple[Array, Array]:
        _check_logits(features)
        batch, classes = features.shape
        if labels.shape != (batch,):
            raise InvalidArgumentError(
                "labels need one class per row of logits", expected=(batch,), actual=labels.shape
            )
        # Viewed as unsigned, a negative label is large, so one pass finds both.
        if batch and int(labels.view(unsigned).max()) >= classes:
            _refuse_label(labels, classes)
        shifted, backprop, total = parts(features)
        # Read once, because a concurrent step may replace it.
        rows = last[0]
        if rows is None or rows.shape[0] != batch:
            rows = last[0] = xp.arange(batch)
        loss = xp.log(total[:, 0]) - shifted[rows, labels]
        backprop /= total
        backprop[rows, labels] -= backprop.dtype.type(1)
        return narrow(loss, features.dtype), narrow(backprop, features.dtype)

    return body


def _refuse_label(labels: Array, classes: int) -> None:
    wrong = labels[(labels < 0) | (labels >= classes)]
    raise InvalidArgumentError(
        f"received a label value of {int(wrong[0])} which is outside the valid range of [0, {classes})",
        expected=f"0 <= label < {classes}",
        actual=f"{wrong.size} of {labels.size} labels outside, the first {int(wrong[0])}",
    )
