"""Elementwise functions of one value, and activations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from aioflow.graph import dtypes
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue


def kept(x: ModelValue, made: ModelValue) -> ModelValue:
    """Return an elementwise result with the axes of `x`."""
    return replace(made, dims=x.dims, channels_first=x.channels_first)


def unary(ours: str, theirs: str, **attrs: Any) -> None:
    """Register the translation of an op that ONNX has unchanged."""

    @exporter(ours, any_layout=True)
    def made(node: ExportedNode, x: ModelValue) -> ModelValue:
        return kept(x, node.make(theirs, x, **attrs))


unary("Abs", "Abs")
unary("Acos", "Acos")
unary("Acosh", "Acosh")
unary("Asin", "Asin")
unary("Asinh", "Asinh")
unary("Atan", "Atan")
unary("Atanh", "Atanh")
unary("Ceil", "Ceil")
unary("Cos", "Cos")
unary("Erf", "Erf")
unary("Exp", "Exp")
unary("Floor", "Floor")
unary("Inv", "Reciprocal")
unary("Invert", "BitwiseNot")
unary("IsInf", "IsInf")
unary("IsNan", "IsNaN")
unary("Log", "Log")
unary("LogicalNot", "Not")
unary("Neg", "Neg")
unary("Reciprocal", "Reciprocal")
unary("Relu", "Relu")
unary("Rint", "Round")
unary("Sigmoid", "Sigmoid")
unary("Sign", "Sign")
unary("Sin", "Sin")
unary("Sqrt", "Sqrt")
unary("Tanh", "Tanh")


@exporter("Round", any_layout=True)
def rounded(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export rounding half to even; integers are unchanged."""
    # ONNX's Round takes floats only.
    return x if x.dtype.is_integer else kept(x, node.make("Round", x))


@exporter("Square", any_layout=True)
def square(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export x²."""
    return kept(x, node.make("Mul", x, x))


@exporter("Rsqrt", any_layout=True)
def rsqrt(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export 1 / √x."""
    return kept(x, node.make("Reciprocal", node.make("Sqrt", x)))


@exporter("Erfc", any_layout=True)
def erfc(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export 1 - erf(x)."""
    return kept(x, node.make("Sub", node.like(1, x), node.make("Erf", x)))


@exporter("Log1p", any_layout=True)
def log1p(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export log(1 + x), exact for small x: log(u)·x/(u - 1), where u is the rounded value of 1 + x (Kahan)."""
    return kept(x, log1p_of(node, x))


def log1p_of(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Return log(1 + x). The result does not have the axes of `x` yet (`kept`)."""
    one = node.like(1, x)
    u = node.make("Add", x, one)
    step = node.make("Sub", u, one)
    log = node.make("Log", u)
    scaled = node.make("Mul", log, node.make("Div", x, step))
    # Where 1 + x rounds to 1, the logarithm is x itself.
    small = node.make("Equal", step, node.like(0, x))
    # The scaled form is NaN (inf / inf) where u is infinite.
    plain = node.make("Or", node.make("IsInf", u), node.make("LessOrEqual", u, node.like(0, x)))
    return node.make("Where", small, x, node.make("Where", plain, log, scaled))


@exporter("Expm1", any_layout=True)
def expm1(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export exp(x) - 1, exact for small x: (u - 1)·x/log(u), where u is the rounded value of exp(x) (Kahan)."""
    return kept(x, _expm1(node, x))


def _expm1(node: ExportedNode, x: ModelValue) -> ModelValue:
    one = node.like(1, x)
    u = node.make("Exp", x)
    step = node.make("Sub", u, one)
    scaled = node.make("Mul", step, node.make("Div", x, node.make("Log", u)))
    # The difference is precise enough for |x| > 1; the scaled form fails where exp(x) underflows or overflows.
    far = node.make("Greater", node.make("Abs", x), one)
    return node.make("Where", node.make("Equal", u, one), x, node.make("Where", far, step, scaled))


@exporter("IsFinite", any_layout=True)
def is_finite(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export whether x is neither infinite nor NaN."""
    return kept(x, node.make("Not", node.make("Or", node.make("IsInf", x), node.make("IsNaN", x))))


@exporter("Cosh", any_layout=True)
def cosh(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export cosh(x), as (exp(x) + exp(-x)) / 2 for float64, which onnxruntime lacks."""
    if x.dtype is not dtypes.float64:
        return kept(x, node.make("Cosh", x))
    return kept(x, _half(node, x))


@exporter("Sinh", any_layout=True)
def sinh(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export sinh(x), as (expm1(x) - expm1(-x)) / 2 for float64, which onnxruntime lacks."""
    if x.dtype is not dtypes.float64:
        return kept(x, node.make("Sinh", x))
    # Differences of exp would cancel for small x.
    both = node.make("Sub", _expm1(node, x), _expm1(node, node.make("Neg", x)))
    return kept(x, node.make("Mul", both, node.like(0.5, x)))


def _half(node: ExportedNode, x: ModelValue) -> ModelValue:
    both = node.make("Add", node.make("Exp", x), node.make("Exp", node.make("Neg", x)))
    return node.make("Mul", both, node.like(0.5, x))


@exporter("Tan", any_layout=True)
def tan(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export tan(x), as sin(x) / cos(x) for float64, which onnxruntime lacks."""
    if x.dtype is not dtypes.float64:
        return kept(x, node.make("Tan", x))
    return kept(x, node.make("Div", node.make("Sin", x), node.make("Cos", x)))


# ── activations ───────────────────────────────────────────────────────────────────────────────────────────────────────


# onnxruntime has most of these for float32 only (`exporting/types.py`), so float64 is composed of other ops.


@exporter("Relu6", any_layout=True)
def relu6(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export x clipped to [0, 6]."""
    return kept(x, node.make("Clip", x, node.like(0, x), node.like(6, x)))


@exporter("Elu", any_layout=True)
def elu(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export x, or exp(x) - 1 where x is negative."""
    if x.dtype is not dtypes.float64:
        return kept(x, node.make("Elu", x))
    return kept(x, _negative_part(node, x, _expm1(node, x)))


@exporter("Selu", any_layout=True)
def selu(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export the scaled ELU of self-normalizing networks."""
    # The constants of the SELU paper, which TensorFlow fixes; ONNX has them as attributes in float32.
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    if x.dtype is not dtypes.float64:
        return kept(x, node.make("Selu", x, alpha=alpha, gamma=scale))
    negative = node.make("Mul", _expm1(node, x), node.like(alpha, x))
    return kept(x, node.make("Mul", _negative_part(node, x, negative), node.like(scale, x)))


@exporter("LeakyRelu", any_layout=True)
def leaky_relu(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export x, or alpha · x where x is negative."""
    alpha = float(node.attr("alpha"))
    if x.dtype is not dtypes.float64:
        return kept(x, node.make("LeakyRelu", x, alpha=alpha))
    return kept(x, _negative_part(node, x, node.make("Mul", x, node.like(alpha, x))))


def _negative_part(node: ExportedNode, x: ModelValue, negative: ModelValue) -> ModelValue:
    return node.make("Where", node.make("Less", x, node.like(0, x)), negative, x)


@exporter("Softplus", any_layout=True)
def softplus(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export log(exp(x) + 1)."""
    if x.dtype is not dtypes.float64:
        return kept(x, node.make("Softplus", x))
    # max(x, 0) + log(1 + exp(-|x|)) is the same, and cannot overflow.
    small = log1p_of(node, node.make("Exp", node.make("Neg", node.make("Abs", x))))
    return kept(x, node.make("Add", node.make("Max", x, node.like(0, x)), small))


@exporter("Softsign", any_layout=True)
def softsign(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export x / (|x| + 1)."""
    if x.dtype is not dtypes.float64:
        return kept(x, node.make("Softsign", x))
    return kept(x, node.make("Div", x, node.make("Add", node.make("Abs", x), node.like(1, x))))


@exporter("L2Loss")
def l2_loss(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export half the sum of squares."""
    return node.make("Mul", node.make("ReduceSumSquare", x, keepdims=0), node.like(np.float64(0.5), x))
