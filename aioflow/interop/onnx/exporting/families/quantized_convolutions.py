"""Convolutions of 8-bit tensors, with int32 sums or requantized 8-bit results.

ONNX images and filters are transposed to aioflow's layout and back.
"""

from __future__ import annotations

from typing import Final

from aioflow.graph import dtypes
from aioflow.interop.onnx.exporting.families.convolutions import groups_of
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.patterns import Found
from aioflow.interop.onnx.exporting.rules import composed
from aioflow.interop.onnx.exporting.values import ModelValue
from aioflow.interop.onnx.exporting.windows import windows_of

_BYTES: Final = (dtypes.int8, dtypes.uint8)
_ORDERS: Final = {"to_last": [0, 2, 3, 1], "to_kernel": [2, 3, 1, 0], "to_first": [0, 3, 1, 2]}


def _product(x: str, w: str) -> str:
    return f"(product := Conv2D(Transpose({x}, to_last), Transpose({w}, to_kernel)))"


def _is_of_bytes(found: Found, opset: int) -> bool:
    for name, order in _ORDERS.items():
        value = found.constant(name)
        if value is None or value.tolist() != order:
            return False
    if str(found.node("product").attrs["data_format"]) != "NHWC":
        return False
    for name in ("x", "w"):
        own = found.spec(name).dtype
        if own not in _BYTES or (f"{name}_zero" in found.edges and found.spec(f"{name}_zero").dtype is not own):
            return False
    return "x_zero" not in found.edges or found.spec("x_zero").dims == ()


def _gives_sums(found: Found, opset: int) -> bool:
    return found.root.outputs[0].dtype is dtypes.int32 and _is_of_bytes(found, opset)


@composed(
    "ConvInteger",
    *(
        f"Cast(Transpose({_product(x, w)}, to_first))"
        for x in ("Cast(x) - Cast(x_zero)", "Cast(x)")
        for w in ("Cast(w) - Cast(w_zero)", "Cast(w)")
    ),
    where=_gives_sums,
)
def conv_integer(
    node: ExportedNode,
    x: ModelValue,
    w: ModelValue,
    to_last: ModelValue,
    to_kernel: ModelValue,
    to_first: ModelValue,
    x_zero: ModelValue | None = None,
    w_zero: ModelValue | None = None,
) -> ModelValue:
    """Export a convolution of 8-bit tensors that returns the exact int32 sums."""
    if x_zero is None and w_zero is not None:
        # Zero points are positional in ConvInteger: w's cannot be passed without x's.
        x_zero = node.like(0, x)
    return _convolved(node, "ConvInteger", x, w, x, w, x_zero, _vector(node, w_zero))


def _gives_bytes(found: Found, opset: int) -> bool:
    dtype, factor = found.root.outputs[0].dtype, found.spec("factor")
    if dtype not in _BYTES or factor.dtype is not dtypes.float32 or factor.dims is None:
        return False
    if (found.number("least"), found.number("most")) != (dtype.min, dtype.max):
        return False
    if "bias" in found.edges and found.spec("bias").dtype is not dtypes.int32:
        return False
    return found.spec("y_zero").dtype is dtype and found.spec("y_zero").dims == () and _is_of_bytes(found, opset)


_BOTH: Final = _product("Cast(x) - Cast(x_zero)", "Cast(w) - Cast(w_zero)")


@composed(
    "QLinearConv",
    *(
        f"Cast(Maximum(Minimum(Round(Cast[Transpose({sums}, to_first)] * Cast(factor)) + Cast(y_zero), most), least))"
        for sums in (_BOTH, f"BiasAdd({_BOTH}, Cast(bias))")
    ),
    where=_gives_bytes,
)
def qlinear_conv(
    node: ExportedNode,
    x: ModelValue,
    x_zero: ModelValue,
    to_last: ModelValue,
    w: ModelValue,
    w_zero: ModelValue,
    to_kernel: ModelValue,
    to_first: ModelValue,
    factor: ModelValue,
    y_zero: ModelValue,
    most: ModelValue,
    least: ModelValue,
    bias: ModelValue | None = None,
) -> ModelValue:
    """Export a convolution of 8-bit tensors whose sums are rescaled and rounded back to 8 bits.

    `factor`, one number or one for each filter, stands for the three scales: it is passed as the scale of the
    filters, and the other two scales are 1.
    """
    # y = sums · factor, and ONNX computes sums · x_scale · w_scale / y_scale.
    one, of_filters = node.const(1, dtypes.float32), _vector(node, factor)
    zeros = _vector(node, w_zero)
    return _convolved(node, "QLinearConv", x, w, x, one, x_zero, w, of_filters, zeros, one, y_zero, bias)


def _vector(node: ExportedNode, value: ModelValue | None) -> ModelValue | None:
    """Return a scalar as it is, and one value per filter as a vector."""
    if value is None or value.dims is None or len(value.dims) == 0:
        return value
    return node.reshaped(value, [-1])


def _convolved(node: ExportedNode, op: str, x: ModelValue, w: ModelValue, *inputs: ModelValue | None) -> ModelValue:
    """Make the node `op` with the window attributes of the convolution within the pattern."""
    inner = node.within("product")
    windows = windows_of(inner)
    sizes = None if w.dims is None else w.dims[2:]
    return node.make(
        op,
        *inputs,
        group=groups_of(inner, x, w),
        strides=windows.strides,
        dilations=windows.dilations,
        **windows.padding(inner, x, sizes),
    )
