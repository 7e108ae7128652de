"""Quantization and dequantization with a scale and a zero point, which runtimes merge into integer computations.

The scale and the zero point are one number each, or one per position along an axis, in a shape that broadcasts.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims, num_elements
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.patterns import Found
from aioflow.interop.onnx.exporting.rules import composed
from aioflow.interop.onnx.exporting.types import is_exportable, tensor_type
from aioflow.interop.onnx.exporting.values import ModelValue

_STORED: Final = {dtypes.int8: 18, dtypes.uint8: 18, dtypes.int16: 21, dtypes.uint16: 21}  # first opset with the dtype
_STORED_FOUR: Final = {dtypes.int4: 21, dtypes.uint4: 21}


def _is_stored(dtype: DType, opset: int) -> bool:
    return opset >= {**_STORED, **_STORED_FOUR}.get(dtype, 99)


def _fits(x: Dims, scale: Dims, zero: Dims) -> bool:
    """Return whether a scale and a zero point are one number each, or vary along one axis of x."""
    if scale is None or None in scale or num_elements(zero) != num_elements(scale):
        return False
    many = [axis for axis, size in enumerate(scale) if size != 1]
    # QuantizeLinear has one axis.
    return not many or (len(many) == 1 and x is not None and len(scale) <= len(x))


def _is_exact(found: Found) -> bool:
    """Return whether all casts in the pattern widen, to int32 or float32; a cast to other bytes wraps some numbers."""
    _, *inner = found.nodes.values()
    return all(node.op != "Cast" or node.outputs[0].dtype.size >= 4 for node in inner)


def _dequantizes(found: Found, opset: int) -> bool:
    x, scale = found.spec("x"), found.spec("scale")
    if not _is_exact(found):
        return False
    if "zero" not in found.edges:
        is_stored = _is_stored(x.dtype, opset) or (x.dtype is dtypes.int32 and found.constant("x") is not None)
        return is_stored and scale.dtype is dtypes.float32 and _fits(x.dims, scale.dims, scale.dims)
    zero = found.spec("zero")
    if zero.dtype is not x.dtype or scale.dtype is not dtypes.float32 or not _fits(x.dims, scale.dims, zero.dims):
        return False
    # For int32, DequantizeLinear allows no zero point other than 0.
    if x.dtype is dtypes.int32:
        value = found.constant("zero")
        return value is not None and not value.any()
    return _is_stored(x.dtype, opset)


@composed("DequantizeLinear", "Cast(Cast[x] - Cast[zero]) * scale", "Cast(Cast[x]) * scale", where=_dequantizes)
def dequantize(node: ExportedNode, x: ModelValue, scale: ModelValue, zero: ModelValue | None = None) -> ModelValue:
    """Export (x - zero) · scale."""
    # Without a zero point, onnxruntime's optimizer assumes unsigned integers.
    if zero is None and x.dtype is not dtypes.int32:
        zero = node.const(np.zeros(scale.dims or (), x.dtype.np_dtype), x.dtype)
    return node.make("DequantizeLinear", x, *_parameters(node, scale, zero), axis=_axis(node, x, scale))


def _quantizes(found: Found, opset: int) -> bool:
    x, dtype, scale = found.spec("x"), found.root.outputs[0].dtype, found.spec("scale")
    if not _is_exact(found):
        return False
    if x.dtype is not dtypes.float32 or scale.dtype is not dtypes.float32 or not _is_stored(dtype, opset):
        return False
    # QuantizeLinear clips to the range of the dtype; any other clip would differ.
    if (found.number("least"), found.number("most")) != (dtype.min, dtype.max):
        return False
    zero = found.spec("zero") if "zero" in found.edges else None
    if zero is None:
        return _fits(x.dims, scale.dims, scale.dims)
    return zero.dtype is dtype and _fits(x.dims, scale.dims, zero.dims)


@composed(
    "QuantizeLinear",
    "Cast(Maximum(Minimum(Cast[Round(x / scale)] + Cast[zero], most), least))",
    "Cast(Maximum(Minimum(Cast[Round(x / scale)], most), least))",
    where=_quantizes,
)
def quantize(
    node: ExportedNode,
    x: ModelValue,
    scale: ModelValue,
    most: ModelValue,
    least: ModelValue,
    zero: ModelValue | None = None,
) -> ModelValue:
    """Export x / scale + zero, rounded and clipped to the range of the dtype."""
    if zero is None:
        zero = node.const(np.zeros(scale.dims or (), node.dtype.np_dtype), node.dtype)
    return node.make("QuantizeLinear", x, *_parameters(node, scale, zero), axis=_axis(node, x, scale))


def _parameters(node: ExportedNode, scale: ModelValue, zero: ModelValue | None) -> list[ModelValue]:
    """Return the scale and the zero point as a scalar or a vector each."""
    shape = [] if num_elements(scale.dims) == 1 else [-1]
    return [node.reshaped(each, shape) for each in (scale, zero) if each is not None]


def _axis(node: ExportedNode, x: ModelValue, scale: ModelValue) -> int | None:
    dims = scale.dims or ()
    many = [axis for axis, size in enumerate(dims) if size != 1]
    # The scale broadcasts from the last axis, so its axes are counted from there.
    return node.rank(x) - len(dims) + many[0] if many else None


# ── integer products ──────────────────────────────────────────────────────────────────────────────────────────────────

_BYTES: Final = (dtypes.int8, dtypes.uint8)
_MANY: Final = 1024  # minimum size in bytes of a constant that is stored narrow


def _is_of_bytes(found: Found, opset: int) -> bool:
    """Return whether the pattern is a product of bytes with zero points.

    The left zero point is one number, the right one a number or one per column.
    """
    if found.root.outputs[0].dtype is not dtypes.int32 or any(found.spec(name).dtype not in _BYTES for name in "ab"):
        return False
    product = found.node("product").attrs
    if not _is_exact(found):
        return False
    if any(product.get(name) for name in ("transpose_a", "transpose_b", "adj_x", "adj_y")):
        return False
    columns = (found.spec("b").dims or (None,))[-1]
    shapes_of: dict[str, tuple[Dims, ...]] = {"a": ((),), "b": ((), (columns,))}
    for name, shapes in shapes_of.items():
        if f"{name}_zero" in found.edges:
            zero = found.spec(f"{name}_zero")
            if zero.dtype is not found.spec(name).dtype or zero.dims not in shapes or zero.dims == (None,):
                return False
    return True


@composed(
    "MatMulInteger",
    *(
        f"Cast((product := {op}({left}, {right})))"
        for op in ("MatMul", "BatchMatMulV2")
        for left in ("Cast(a) - Cast(a_zero)", "Cast(a)")
        for right in ("Cast(b) - Cast(b_zero)", "Cast(b)")
    ),
    where=_is_of_bytes,
)
def matmul_integer(
    node: ExportedNode, a: ModelValue, b: ModelValue, a_zero: ModelValue | None = None, b_zero: ModelValue | None = None
) -> ModelValue:
    """Export the exact product of integers."""
    # Zero points are positional in MatMulInteger: b's cannot be passed without a's.
    if a_zero is None and b_zero is not None:
        a_zero = node.like(0, a)
    return node.make("MatMulInteger", a, b, a_zero, b_zero)


def _widens(found: Found, opset: int) -> bool:
    x, made = found.search.graph.nodes[found.search.behind(found.edges["x"]).node], found.root.outputs[0].dtype
    if x.op != "Const" or x.attrs["value"].dtype == object or x.attrs["value"].nbytes < _MANY:
        return False
    return x.outputs[0].dtype.size <= 2 and made.size >= 4 and all(map(is_exportable, (x.outputs[0].dtype, made)))


@composed("Cast", "Cast(x)", where=_widens)
def widened(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export weights in the narrow dtype plus a cast, to keep the file small. Runtimes widen weights during loading."""
    # `node.cast` would fold the cast into a wide constant.
    (made,) = node.scope.make("Cast", node.name, [x], 1, {"to": tensor_type(node.dtype)}, node.dtype)
    return made
