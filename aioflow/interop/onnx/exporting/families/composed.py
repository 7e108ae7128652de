"""Layers and activations that are one op in ONNX and several ops in aioflow."""

from __future__ import annotations

import numpy as np

from aioflow.graph import dtypes
from aioflow.interop.onnx.exporting.families.elementwise import kept
from aioflow.interop.onnx.exporting.node import ExportedNode
from aioflow.interop.onnx.exporting.patterns import Found
from aioflow.interop.onnx.exporting.rules import composed
from aioflow.interop.onnx.exporting.types import computed_in
from aioflow.interop.onnx.exporting.values import ModelValue

# ── activations ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_float32(found: Found, opset: int) -> bool:
    return found.root.outputs[0].dtype is dtypes.float32


@composed(
    "HardSwish",
    "x * Minimum(Maximum(x * 0.16666667 + 0.5, 0), 1)",
    "x * Relu6(x + 3) * 0.16666667",
    "x * (Relu6(x + 3) * 0.16666667)",
    "x * Relu6(x + 3) / 6",
    "x * (Relu6(x + 3) / 6)",
    where=_is_float32,
    any_layout=True,
)
def hard_swish(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export x times a linear ramp from 0 at -3 to 1 at 3."""
    return kept(x, node.make("HardSwish", x))


def _is_line(found: Found, opset: int) -> bool:
    return _is_float32(found, opset) and None not in (found.number("alpha"), found.number("beta"))


@composed(
    "HardSigmoid",
    "Minimum(Maximum(x * alpha + beta, 0), 1)",
    "Maximum(Minimum(x * alpha + beta, 1), 0)",
    where=_is_line,
    any_layout=True,
)
def hard_sigmoid(node: ExportedNode, x: ModelValue, alpha: ModelValue, beta: ModelValue) -> ModelValue:
    """Export alpha · x + beta, clipped to [0, 1]."""
    slope, offset = (float(node.known(v, "a line that is not constant")) for v in (alpha, beta))
    return kept(x, node.make("HardSigmoid", x, alpha=slope, beta=offset))


def _is_gelu(found: Found, opset: int) -> bool:
    # ONNX has Gelu since opset 20.
    return opset >= 20 and _is_float32(found, opset)


@composed(
    "Gelu",
    "x * 0.5 * (Erf(x * 0.70710678) + 1)",
    "x * 0.5 * (Erf(x / 1.41421356) + 1)",
    "x * (Erf(x / 1.41421356) + 1) * 0.5",
    "x * (Erf(x * 0.70710678) + 1) * 0.5",
    where=_is_gelu,
    any_layout=True,
)
def gelu(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export x · Φ(x), where Φ is the standard normal CDF."""
    return kept(x, node.make("Gelu", x))


@composed(
    "GeluTanh",
    "x * 0.5 * (Tanh((x + x * x * x * 0.044715) * 0.79788456) + 1)",
    "x * 0.5 * (Tanh((x + Pow(x, 3) * 0.044715) * 0.79788456) + 1)",
    where=_is_gelu,
    any_layout=True,
)
def gelu_by_tanh(node: ExportedNode, x: ModelValue) -> ModelValue:
    """Export the tanh approximation of `gelu`."""
    return kept(x, node.make("Gelu", x, approximate="tanh"))


def _has_bounds(found: Found, opset: int) -> bool:
    # Only where onnxruntime runs Clip on the dtype itself: a clip in a wider one gains nothing.
    dtype = found.root.outputs[0].dtype
    # ONNX's Clip takes scalar bounds only.
    return computed_in("Clip", dtype) is dtype and found.spec("low").dims == () == found.spec("high").dims


@composed("Clip", "Minimum(Maximum(x, low), high)", where=_has_bounds, any_layout=True)
def clip(node: ExportedNode, x: ModelValue, low: ModelValue, high: ModelValue) -> ModelValue:
    """Export x clipped to two bounds; if they are in the wrong order, the result is the upper one."""
    return kept(x, node.make("Clip", x, low, high))


def _is_ordered(found: Found, opset: int) -> bool:
    low, high = found.number("low"), found.number("high")
    return _has_bounds(found, opset) and low is not None and high is not None and low <= high


@composed("ClipFromBelow", "Maximum(Minimum(x, high), low)", where=_is_ordered, any_layout=True)
def clip_from_below(node: ExportedNode, x: ModelValue, low: ModelValue, high: ModelValue) -> ModelValue:
    """Export the other order of `clip`, which is equal if the bounds are in order."""
    return clip(node, x, low, high)


# ── shapes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _copies_sizes(found: Found, opset: int) -> bool:
    """Return whether the part is the input's sizes, padded with ones to the new rank."""
    part, count = found.node("part").attrs, found.spec("sizes").dims
    begin, end, strides, ones = (found.constant(name) for name in ("begin", "end", "strides", "ones"))
    if begin is None or end is None or strides is None or ones is None or count is None or len(count) != 1:
        return False
    if any(part[f"{name}_mask"] for name in ("end", "ellipsis", "new_axis", "shrink_axis")):
        return False
    # The part must be `[:n]` with step 1, where n is the number of wanted sizes.
    whole = (part["begin_mask"] == 1 or begin.tolist() == [0]) and strides.tolist() == [1]
    return whole and end.tolist() == list(count) == list(ones.shape) and bool((ones == 1).all())


@composed(
    "Reshape",
    "Reshape(x, SelectV2(Equal(sizes, 0), "
    "(part := StridedSlice(ConcatV2(Shape(x), ones, axis), begin, end, strides)), sizes))",
    where=_copies_sizes,
)
def reshape_with_sizes_kept(
    node: ExportedNode,
    x: ModelValue,
    sizes: ModelValue,
    ones: ModelValue,
    axis: ModelValue,
    begin: ModelValue,
    end: ModelValue,
    strides: ModelValue,
) -> ModelValue:
    """Export a reshape in which 0 stands for the input's size of that axis."""
    return node.make("Reshape", x, node.int64(sizes))


# ── normalization ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_last_axes(found: Found, opset: int) -> bool:
    """Return whether the axes are the last ones, and scale and offset have their sizes."""
    x, axes = found.spec("x"), found.constant("axes")
    if x.dims is None or axes is None or not _is_float32(found, opset) or found.number("epsilon") is None:
        return False
    rank = len(x.dims)
    # LayerNormalization normalizes from one axis to the last, so the axes must be a suffix.
    own = sorted(int(axis) % rank for axis in np.reshape(axes, -1))
    if not own or own != list(range(own[0], rank)) or not all(found.node(n).attrs["keep_dims"] for n in _MEANS):
        return False
    sizes = x.dims[own[0] :]
    given = [found.spec(name).dims for name in ("scale", "offset") if name in found.edges]
    return None not in sizes and all(dims == sizes for dims in given)


_MEANS = ("mean", "variance")
_NORMAL = "(x - (mean := Mean(x, axes))) * Rsqrt((variance := Mean(Square(x - mean), axes)) + epsilon) * scale"


@composed("LayerNormalization", f"{_NORMAL} + offset", _NORMAL, where=_is_last_axes)
def layer_normalization(
    node: ExportedNode,
    x: ModelValue,
    axes: ModelValue,
    epsilon: ModelValue,
    scale: ModelValue,
    offset: ModelValue | None = None,
) -> ModelValue:
    """Export the normalization of the last axes: subtract the mean, divide by the standard deviation."""
    axis = node.rank(x) - node.known(axes, "axes that are not constant").size
    least = float(node.known(epsilon, "an epsilon that is not constant"))
    return node.make("LayerNormalization", x, scale, offset, axis=axis, epsilon=least)


# ── products ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_affine(found: Found, opset: int) -> bool:
    dtype, dims = found.root.outputs[0].dtype, found.spec("offset").dims
    sizes = found.spec("product").dims
    if computed_in("Gemm", dtype) is not dtype or dims is None or sizes is None or len(dims) > 2:
        return False
    # Gemm broadcasts the offset to the product; an offset that enlarges the product is not allowed.
    return all(own in (1, size) for own, size in zip(dims[::-1], sizes[::-1], strict=False)) and None not in dims


@composed("Gemm", "BiasAdd((product := MatMul(a, b)), offset)", "(product := MatMul(a, b)) + offset", where=_is_affine)
def gemm(node: ExportedNode, a: ModelValue, b: ModelValue, offset: ModelValue) -> ModelValue:
    """Export a product of two matrices plus an offset."""
    product = node.within("product").attrs
    return node.make("Gemm", a, b, offset, transA=int(product["transpose_a"]), transB=int(product["transpose_b"]))
