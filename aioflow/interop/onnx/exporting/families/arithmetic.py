"""Arithmetic, comparisons and logic of two operands, with broadcasting, and bit shifts."""

from __future__ import annotations

from functools import partial
from typing import Any

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType, as_dtype
from aioflow.graph.shapes import broadcast_dims
from aioflow.interop.onnx.exporting.families.elementwise import log1p_of
from aioflow.interop.onnx.exporting.layouts import elementwise, of_two
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.rules import exporter
from aioflow.interop.onnx.exporting.values import ModelValue


def binary(ours: str, theirs: str, **attrs: Any) -> None:
    """Register the translation of an op that ONNX has unchanged."""

    @exporter(ours, any_layout=True)
    def made(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
        return elementwise(node, [x, y], partial(node.make, theirs, **attrs))


binary("Add", "Add")
binary("AddV2", "Add")
binary("BitwiseAnd", "BitwiseAnd")
binary("BitwiseOr", "BitwiseOr")
binary("BitwiseXor", "BitwiseXor")
binary("Div", "Div")
binary("Greater", "Greater")
binary("GreaterEqual", "GreaterOrEqual")
binary("Less", "Less")
binary("LessEqual", "LessOrEqual")
binary("LogicalAnd", "And")
binary("LogicalOr", "Or")
binary("Maximum", "Max")
binary("Minimum", "Min")
binary("Mul", "Mul")
binary("RealDiv", "Div")
binary("Sub", "Sub")
binary("TruncateDiv", "Div")
binary("TruncateMod", "Mod", fmod=1)


@exporter("Equal", "NotEqual", any_layout=True)
def equal(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
    """Export elementwise equality."""

    def compare(a: ModelValue, b: ModelValue) -> ModelValue:
        same = node.make("Equal", a, b)
        return node.make("Not", same) if node.op == "NotEqual" else same

    if not node.attr("incompatible_shape_error", True):
        # Shapes that do not broadcast then give False instead of an error, which ONNX's Equal cannot do.
        if not (x.is_static and y.is_static):
            node.refuse("incompatible_shape_error=False with shapes that are not known")
        try:
            broadcast_dims([x.dims, y.dims])
        except InvalidArgumentError:
            node.refuse("incompatible_shape_error=False with incompatible shapes")
    return elementwise(node, [x, y], compare)


@exporter("AddN", any_layout=True)
def add_n(node: ExportedNode, *values: ModelValue) -> ModelValue:
    """Export the sum of values of one shape, added from the left."""

    def added(first: ModelValue, *others: ModelValue) -> ModelValue:
        for other in others:
            first = node.make("Add", first, other)
        return first

    return elementwise(node, values, added)


@exporter("BiasAdd", "BiasAddV1", any_layout=True)
def bias_add(node: ExportedNode, value: ModelValue, bias: ModelValue) -> ModelValue:
    """Export the addition of a bias to every channel."""
    if str(node.attr("data_format", "NHWC")).startswith("NC"):
        # [channels] becomes [channels, 1, …], which broadcasts from the last axis to axis 1.
        shaped = node.unsqueezed(bias, range(1, node.rank(value) - 1))
        return node.make("Add", node.rows(value), shaped)
    return elementwise(node, [value, bias], partial(node.make, "Add"))


@of_two("SquaredDifference")
def squared_difference(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
    """Export (x - y)²."""
    difference = node.make("Sub", x, y)
    return node.make("Mul", difference, difference)


@of_two("FloorDiv")
def floor_div(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
    """Export the quotient, rounded down; ONNX rounds integers towards zero."""
    quotient = node.make("Div", x, y)
    if x.dtype.is_floating:
        return node.make("Floor", quotient)
    if x.dtype.is_unsigned:
        return quotient
    zero, one = node.like(0, x), node.like(1, x)
    # The truncated quotient is one too large if there is a rest of the other sign than the divisor.
    rest = node.make("Sub", x, node.make("Mul", quotient, y))
    inexact = node.make("Not", node.make("Equal", rest, zero))
    lower = node.make("And", inexact, _differ_in_sign(node, rest, y))
    return node.make("Where", lower, node.make("Sub", quotient, one), quotient)


@of_two("FloorMod")
def floor_mod(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
    """Export the remainder with the sign of the divisor."""
    # ONNX's Mod of integers has the sign of the divisor already; of floats it must be that of the dividend (fmod).
    if x.dtype.is_integer:
        return node.make("Mod", x, y)
    rest = node.make("Mod", x, y, fmod=1)
    other = node.make(
        "And", node.make("Not", node.make("Equal", rest, node.like(0, x))), _differ_in_sign(node, rest, y)
    )
    return node.make("Where", other, node.make("Add", rest, y), rest)


def _differ_in_sign(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
    zero = node.like(0, x)
    return node.make("Xor", node.make("Less", x, zero), node.make("Less", y, zero))


@of_two("Mod")
def mod(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
    """Export the remainder with the sign of the dividend."""
    return node.make("Mod", x, y, fmod=1)


@of_two("Pow")
def power(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
    """Export x to the power of y."""
    # ONNX has no Pow of narrow or unsigned integers; wide ones wrap around as these do when they are cast back. 16-bit
    # floats are computed in float32, as by aioflow's kernel.
    if x.dtype.is_integer and x.dtype.size < 4:
        x, y = (node.cast(v, dtypes.int32) for v in (x, y))
    elif x.dtype.is_unsigned:
        x, y = (node.cast(v, dtypes.int64) for v in (x, y))
    elif x.dtype in (dtypes.float16, dtypes.bfloat16):
        x, y = (node.cast(v, dtypes.float32) for v in (x, y))
    return node.cast(node.make("Pow", x, y), node.dtype)


def _where_zero(node: ExportedNode, test: ModelValue, made: ModelValue) -> ModelValue:
    zero = node.like(0, test)
    return node.make("Where", node.make("Equal", test, zero), node.like(0, made), made)


@of_two("DivNoNan")
def div_no_nan(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
    """Export x / y, or 0 where y is 0."""
    return _where_zero(node, y, node.make("Div", x, y))


@of_two("MulNoNan")
def mul_no_nan(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
    """Export x · y, or 0 where y is 0, whatever x is."""
    # 0 · ∞ and 0 · NaN would be NaN.
    return _where_zero(node, y, node.make("Mul", x, y))


@of_two("Xdivy")
def xdivy(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
    """Export x / y, or 0 where x is 0."""
    return _where_zero(node, x, node.make("Div", x, y))


@of_two("Xlogy")
def xlogy(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
    """Export x · log(y), or 0 where x is 0."""
    # Log(0) is -∞, and 0 · -∞ would be NaN.
    return _where_zero(node, x, node.make("Mul", x, node.make("Log", y)))


@of_two("Xlog1py")
def xlog1py(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
    """Export x · log(1 + y), or 0 where x is 0."""
    return _where_zero(node, x, node.make("Mul", x, log1p_of(node, y)))


@of_two("Atan2")
def atan2(node: ExportedNode, y: ModelValue, x: ModelValue) -> ModelValue:
    """Export the angle of (x, y).

    It is atan(y/x), plus π (or minus π if y is negative or -0) where x is negative.
    """
    # Where x is 0, y/x is infinite or NaN: the angle is ±π/2 there, and at the origin ±π or y, by the sign of x.
    zero, pi = node.like(0, x), node.like(3.141592653589793, x)
    angle = node.make("Atan", node.make("Div", y, x))
    # By the sign bit of y, so that the angle of (-1, -0) is -π.
    turn = node.make("Where", _is_negative(node, y), node.make("Neg", pi), pi)
    turned = node.make("Where", node.make("Less", x, zero), node.make("Add", angle, turn), angle)
    origin = node.make("Where", _is_negative(node, x), turn, y)
    upright = node.make("Where", node.make("Equal", y, zero), origin, node.make("Mul", turn, node.like(0.5, x)))
    return node.make("Where", node.make("Equal", x, zero), upright, turned)


def _is_negative(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Return whether the sign bit is set, so that -0 counts as negative."""
    zero = node.like(0, x)
    # 1 / -0 is minus infinity, while -0 itself is not less than 0.
    below = node.make("Less", node.make("Reciprocal", x), zero)
    return node.make("Or", node.make("Less", x, zero), node.make("And", node.make("Equal", x, zero), below))


@exporter("ApproximateEqual", any_layout=True)
def approximate_equal(node: ExportedNode, x: ModelValue, y: ModelValue) -> ModelValue:
    """Export |x - y| < tolerance."""

    def near(a: ModelValue, b: ModelValue) -> ModelValue:
        return node.make("Less", node.make("Abs", node.make("Sub", a, b)), node.like(node.attr("tolerance"), a))

    return elementwise(node, [x, y], near)


@exporter("SelectV2", any_layout=True)
def select_v2(node: ExportedNode, condition: ModelValue, t: ModelValue, e: ModelValue) -> ModelValue:
    """Export the selection between two values; all three inputs broadcast."""
    return elementwise(node, [condition, t, e], partial(node.make, "Where"))


@exporter("Select", any_layout=True)
def select(node: ExportedNode, condition: ModelValue, t: ModelValue, e: ModelValue) -> ModelValue:
    """Export the selection between two values; a vector of conditions selects whole rows."""
    rank = t.rank if e.rank is None else e.rank
    # TensorFlow broadcasts such a vector from the front, ONNX from the back.
    if condition.rank == 1 and rank is None:
        node.refuse("a vector of conditions for values of unknown rank")
    if condition.rank == 1 and rank is not None and rank > 1:
        shaped = node.unsqueezed(condition, range(1, rank))
        return node.make("Where", shaped, node.rows(t), node.rows(e))
    return elementwise(node, [condition, t, e], partial(node.make, "Where"))


# ── bit shifts; ONNX only shifts unsigned integers ────────────────────────────────────────────────────────────────────


def _unsigned(dtype: DType) -> DType:
    return dtype if dtype.is_unsigned else as_dtype(f"u{dtype.name}")


def _shifted(node: ExportedNode, x: ModelValue, by: ModelValue, direction: str) -> ModelValue:
    kind = _unsigned(x.dtype)
    # TensorFlow clamps the shift to the range from 0 to the number of bits less one.
    by = node.make("Min", node.make("Max", by, node.like(0, by)), node.like(8 * x.dtype.size - 1, by))
    made = node.make("BitShift", node.cast(x, kind), node.cast(by, kind), direction=direction)
    return node.cast(made, x.dtype)


@exporter("LeftShift")
def left_shift(node: ExportedNode, x: ModelValue, by: ModelValue) -> ModelValue:
    """Export a left shift."""
    return _shifted(node, x, by, "LEFT")


@exporter("RightShift")
def right_shift(node: ExportedNode, x: ModelValue, by: ModelValue) -> ModelValue:
    """Export an arithmetic right shift: ones are shifted into negative numbers."""
    if x.dtype.is_unsigned:
        return _shifted(node, x, by, "RIGHT")
    negative = node.make("Less", x, node.like(0, x))
    # Shift the complement of negative numbers: its complement has ones where the shift inserted zeros.
    turned = node.make("Where", negative, node.make("BitwiseNot", x), x)
    made = _shifted(node, turned, by, "RIGHT")
    return node.make("Where", negative, node.make("BitwiseNot", made), made)
