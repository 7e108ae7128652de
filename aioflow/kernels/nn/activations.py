"""Kernels of activations, bias, softmax and L2 loss, over any array namespace.

float16 and bfloat16 are computed in float32 if a kernel applies more than one operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from aioflow.errors import InvalidArgumentError
from aioflow.graph.dtypes import DType
from aioflow.kernels.narrowing import narrowed
from aioflow.kernels.registry import Binding, KernelBody, binder, kernel
from aioflow.memory.values import Array, Namespace, NpDType

_HALVES = "float16 bfloat16"
_SHORT_ROW = 64  # classes; above about this number a reduction by rows is faster, as measured
# λ and λα of Klambauer et al., "Self-normalizing neural networks", 2017.
_SELU_SCALE = 1.0507009873554805
_SELU_SCALE_ALPHA = 1.7580993408473768


def widen(value: Array) -> Array:
    """Return a half-precision value in float32, and others unchanged."""
    return value.astype(np.float32) if value.dtype.itemsize == 2 and value.dtype.kind not in "iu" else value


def narrow(value: Array, dtype: NpDType) -> Array:
    """Return the value in `dtype`."""
    return value if value.dtype == dtype else narrowed(value, dtype)


def _number(binding: Binding, value: float) -> Any:
    """Return a scalar of the node's own dtype, which promotes no operand."""
    return binding.output_dtypes[0].as_numpy_dtype(value)


# ── relu ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


# x != x is true for NaN alone, which `maximum` returns, too.
@binder("Relu", fresh=True, takes_out=True, exact_c="({0} != {0} || {0} > 0) ? {0} : (T)0")
def relu(binding: Binding) -> KernelBody:
    maximum, zero = binding.xp.maximum, _number(binding, 0)

    def body(features: Array, out: Array | None = None) -> Array:
        return maximum(features, zero, out=out)

    return body


@binder(
    "Relu6",
    fresh=True,
    takes_out=True,
    exact_c="{0} != {0} ? {0} : ({0} > 0 ? ({0} < 6 ? {0} : (T)6) : (T)0)",
)
def relu6(binding: Binding) -> KernelBody:
    maximum, minimum = binding.xp.maximum, binding.xp.minimum
    zero, six = _number(binding, 0), _number(binding, 6)

    def body(features: Array, out: Array | None = None) -> Array:
        return minimum(maximum(features, zero, out=out), six, out=out)

    return body


@binder("ReluGrad", fresh=True, takes_out=True, exact_c="{0} * ({1} > 0)")
def relu_grad(binding: Binding) -> KernelBody:
    multiply, zero = binding.xp.multiply, _number(binding, 0)

    def body(gradients: Array, features: Array, out: Array | None = None) -> Array:
        return multiply(gradients, features > zero, out=out)

    return body


@binder("Relu6Grad", fresh=True, takes_out=True, exact_c="{0} * ({1} > 0 && {1} < 6)")
def relu6_grad(binding: Binding) -> KernelBody:
    multiply, zero, six = binding.xp.multiply, _number(binding, 0), _number(binding, 6)

    def body(gradients: Array, features: Array, out: Array | None = None) -> Array:
        return multiply(gradients, (features > zero) & (features < six), out=out)

    return body


@binder("LeakyRelu", fresh=True)
def leaky_relu(binding: Binding) -> KernelBody:
    xp, alpha, scale = binding.xp, binding.attrs["alpha"], _number(binding, binding.attrs["alpha"])
    # Then alpha * x <= x exactly where x >= 0, so the maximum chooses.
    if 0 <= alpha <= 1:
        return lambda features: xp.maximum(features, features * scale)
    return lambda features: xp.where(features > 0, features, features * scale)


@binder("LeakyReluGrad", fresh=True)
def leaky_relu_grad(binding: Binding) -> KernelBody:
    xp, scale = binding.xp, _number(binding, binding.attrs["alpha"])
    return lambda gradients, features: xp.where(features > 0, gradients, gradients * scale)


# ── smooth activations ────────────────────────────────────────────────────────────────────────────────────────────────


def _in_float32(binding: Binding, body: KernelBody) -> KernelBody:
    """Return the body, computed in float32 for half-precision nodes."""
    dtype = binding.output_dtypes[0].np_dtype
    if binding.output_dtypes[0].name not in _HALVES:
        return body
    return lambda *inputs: narrowed(body(*(i.astype(np.float32) for i in inputs)), dtype)


def _compute_number(binding: Binding) -> type:
    """Return the scalar type of the computation."""
    # A Python number would do for NumPy's own dtypes, but bfloat16 promotes with it.
    dtype: DType = binding.output_dtypes[0]
    return np.float32 if dtype.name in _HALVES else dtype.as_numpy_dtype


@binder("Elu", fresh=True)
def elu(binding: Binding) -> KernelBody:
    xp, zero = binding.xp, _compute_number(binding)(0)

    def body(features: Array) -> Array:
        # expm1 of positive numbers is not used, and the minimum keeps it from overflowing.
        return xp.where(features > zero, features, xp.expm1(xp.minimum(features, zero)))

    return _in_float32(binding, body)


@binder("EluGrad", fresh=True, exact_c="{1} < 0 ? ({1} + 1) * {0} : {0}")
def elu_grad(binding: Binding) -> KernelBody:
    xp, one = binding.xp, _compute_number(binding)(1)
    # For x < 0 the derivative exp(x) is y + 1, from the output y.
    return _in_float32(
        binding, lambda gradients, outputs: xp.where(outputs < 0, (outputs + one) * gradients, gradients)
    )


@binder("Selu", fresh=True)
def selu(binding: Binding) -> KernelBody:
    xp, number = binding.xp, _compute_number(binding)
    zero, scale, scale_alpha = number(0), number(_SELU_SCALE), number(_SELU_SCALE_ALPHA)

    def body(features: Array) -> Array:
        return xp.where(features > zero, features * scale, xp.expm1(xp.minimum(features, zero)) * scale_alpha)

    return _in_float32(binding, body)


@binder("SeluGrad", fresh=True)
def selu_grad(binding: Binding) -> KernelBody:
    xp, number = binding.xp, _compute_number(binding)
    scale, scale_alpha = number(_SELU_SCALE), number(_SELU_SCALE_ALPHA)

    def body(gradients: Array, outputs: Array) -> Array:
        # For x < 0 the derivative λα exp(x) is y + λα.
        return xp.where(outputs < 0, gradients * (outputs + scale_alpha), gradients * scale)

    return _in_float32(binding, body)


@binder("Softplus", fresh=True)
def softplus(binding: Binding) -> KernelBody:
    xp, zero = binding.xp, _compute_number(binding)(0)

    def body(features: Array) -> Array:
        # log(1 + exp(x)), in a form whose exponential does not overflow.
        return xp.maximum(features, zero) + xp.log1p(xp.exp(-abs(features)))

    return _in_float32(binding, body)


@binder("SoftplusGrad", fresh=True)
def softplus_grad(binding: Binding) -> KernelBody:
    xp, one = binding.xp, _compute_number(binding)(1)
    return _in_float32(binding, lambda gradients, features: gradients / (xp.exp(-features) + one))


@binder("Softsign", fresh=True, exact_c="{0} / (fabs({0}) + 1)")
def softsign(binding: Binding) -> KernelBody:
    one = _compute_number(binding)(1)
    return _in_float32(binding, lambda features: features / (abs(features) + one))


@binder("SoftsignGrad", fresh=True)
def softsign_grad(binding: Binding) -> KernelBody:
    one = _compute_number(binding)(1)

    def body(gradients: Array, features: Array) -> Array:
        base = abs(features) + one
        slope: Array = gradients / (base * base)
        return slope

    return _in_float32(binding, body)


# ── bias ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@binder("BiasAdd", fresh=True, takes_out=True, exact_c="{0} + {1}")
@binder("BiasAddV1", fresh=True, takes_out=True)
def bias_add(binding: Binding) -> KernelBody:
    add = binding.xp.add
    first = binding.attrs.get("data_format") == "NCHW"
    value, bias = binding.input_dims
    # Shapes that are known to fit need no check, so the ufunc itself is the body.
    if not first and value and bias and value[-1] is not None and value[-1] == bias[0]:
        return add

    def body(value: Array, bias: Array, out: Array | None = None) -> Array:
        axis = 1 if first else value.ndim - 1
        if bias.ndim != 1 or value.ndim < 2 + first or value.shape[axis] != bias.shape[0]:
            raise InvalidArgumentError(
                "bias needs one element per channel",
                expected=f"a value of rank >= {2 + first} with a channel for each element of the bias",
                actual=f"{value.shape} and {bias.shape}",
            )
        return add(value, bias.reshape(-1, *[1] * (value.ndim - 2)) if first else bias, out=out)

    return body


def column_sums(xp: Namespace) -> Callable[[Array], Array]:
    """Return a function that sums a matrix over its rows. Halves are summed in float32, integers wrap.

    A product with a row of ones is several times faster than a reduction along the first axis, which traverses the
    matrix row by row.
    """
    ones: dict[tuple[int, NpDType], Array] = {}

    def total(matrix: Array) -> Array:
        if matrix.dtype.kind != "f" or matrix.dtype.itemsize < 4:
            if matrix.dtype.itemsize == 2 and matrix.dtype.kind not in "iu":
                return xp.add.reduce(matrix.astype(np.float32), axis=0).astype(matrix.dtype)
            return xp.add.reduce(matrix, axis=0, dtype=matrix.dtype)
        key = (matrix.shape[0], matrix.dtype)
        row = ones.get(key)
        if row is None:
            if len(ones) > 4:  # keep only the latest for batches of many sizes
                ones.clear()
            row = ones[key] = xp.ones(*key)
        return xp.dot(row, matrix)

    return total


@binder("BiasAddGrad", fresh=True)
def bias_add_grad(binding: Binding) -> Callable[[Array], Array]:
    total = column_sums(binding.xp)
    first = binding.attrs["data_format"] != "NHWC"

    def body(out_backprop: Array) -> Array:
        shape = out_backprop.shape
        if len(shape) < 2 + first:
            raise InvalidArgumentError(
                "the value has no channels to add the bias to", expected=f"rank >= {2 + first}", actual=shape
            )
        if not first:
            return total(out_backprop.reshape(math.prod(shape[:-1]), shape[-1]))
        n, c, *rest = shape
        by_image = widen(out_backprop).reshape(n, c, math.prod(rest)).sum(axis=2)
        return narrow(by_image.sum(axis=0), out_backprop.dtype)

    return body


# ── softmax ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def softmax_parts(xp: Namespace) -> Callable[[Array], tuple[Array, Array, Array]]:
    """Return a function of a matrix that returns (logits - max, its exponential, its sum) by rows, in new buffers.

    The results are float32 or wider. A reduction along short rows (few classes) costs one call per row. For these, the
    maximum is taken over the columns of a transposed copy, and the sum is a product with ones.
    """
    ones: dict[tuple[int, NpDType], Array] = {}

    def parts(logits: Array) -> tuple[Array, Array, Array]:
        x = widen(logits)
        rows, classes = x.shape
        if classes == 0 or rows == 0:
            return x + 0, x + 0, xp.ones((rows, 1), x.dtype)
        if classes > _SHORT_ROW:
            shifted = x - xp.max(x, axis=1, keepdims=True)
            exps = xp.exp(shifted)
            return shifted, exps, exps.sum(axis=1, keepdims=True)
        shifted = x - xp.max(xp.ascontiguousarray(x.T), axis=0)[:, None]
        exps = xp.exp(shifted)
        column = ones.get((classes, x.dtype))
        if column is None:
            column = ones[classes, x.dtype] = xp.ones((classes, 1), x.dtype)
        return shifted, exps, xp.matmul(exps, column)

    return parts


def _rows(logits: Array) -> Array:
    if logits.ndim == 2:
        return logits
    if logits.ndim == 0:
        raise InvalidArgumentError("the logits have no last axis", expected="rank >= 1", actual=())
    return logits.reshape(math.prod(logits.shape[:-1]), logits.shape[-1])


@binder("Softmax", fresh=True)
def softmax(binding: Binding) -> Callable[[Array], Array]:
    parts = softmax_parts(binding.xp)

    def body(logits: Array) -> Array:
        _, exps, total = parts(_rows(logits))
        exps /= total
        return narrow(exps.reshape(logits.shape), logits.dtype)

    return body


@binder("LogSoftmax", fresh=True)
def log_softmax(binding: Binding) -> Callable[[Array], Array]:
    xp, parts = binding.xp, softmax_parts(binding.xp)

    def body(logits: Array) -> Array:
        shifted, _, total = parts(_rows(logits))
        shifted -= xp.log(total)
        return narrow(shifted.reshape(logits.shape), logits.dtype)

    return body


@kernel("L2Loss", fresh=True)
def l2_loss(xp: Namespace, t: Array) -> Array:
    flat = widen(t).reshape(-1)
    return narrow(xp.dot(flat, flat) * flat.dtype.type(0.5), t.dtype)
