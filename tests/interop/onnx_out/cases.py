"""Cases of the export tests: functions of placeholders, with the arrays to feed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aioflow as af
from aioflow.typing import ImageFormat

__all__ = ["CASES", "Case"]

_RANDOM = np.random.default_rng(7)


def floats(*shape: int, low: float = -2.0, high: float = 2.0, dtype: Any = np.float32) -> NDArray[Any]:
    """Return random numbers."""
    return _RANDOM.uniform(low, high, shape).astype(dtype)


def ints(*shape: int, low: int = -9, high: int = 10, dtype: Any = np.int32) -> NDArray[Any]:
    """Return random whole numbers."""
    return _RANDOM.integers(low, high, shape).astype(dtype)


def array(dtype: str, values: Any) -> NDArray[Any]:
    """Return an array of these values."""
    return np.array(values, dtype)


def bools(*shape: int) -> NDArray[Any]:
    """Return random booleans."""
    return _RANDOM.random(shape) < 0.5


@dataclass(frozen=True)
class Case:
    """One graph to export.

    Attributes:
        name: Name of the test.
        build: Function from placeholders to tensors.
        arrays: Values to feed.
        static_only: Whether the graph is exported only with known sizes.
        tolerance: Tolerance of the comparison of results.
        reference: Whether ONNX's own evaluator, which is written for clarity, runs the graph too.
    """

    name: str
    build: Callable[..., Any]
    arrays: list[NDArray[Any]] = field(default_factory=list)
    static_only: bool = False
    tolerance: float = 1e-5
    reference: bool = False


CASES: list[Case] = []


def case(name: str, build: Callable[..., Any], *arrays: Any, **options: Any) -> None:
    """Add a case."""
    CASES.append(Case(name, build, [np.asarray(a) for a in arrays], **options))


# -- elementwise -------------------------------------------------------------------------------------------------------

for _op in ("abs", "ceil", "cos", "exp", "floor", "negative", "rint", "round", "sigmoid", "sign", "sin", "square"):
    case(_op, getattr(af, _op), floats(3, 4), reference=True)
for _op in ("sinh", "cosh", "tan", "tanh", "erf", "erfc", "asinh", "atan", "is_nan", "is_inf", "is_finite", "expm1"):
    case(_op, getattr(af.math, _op), np.r_[floats(9), array("float32", [0, -0.0, 1e-6, np.inf, -np.inf, np.nan])])
for _op in ("acos", "asin", "atanh"):
    case(_op, getattr(af.math, _op), floats(3, 4, low=-0.9, high=0.9))
for _op in ("log", "sqrt", "rsqrt", "reciprocal", "acosh", "log1p"):
    case(_op, getattr(af.math, _op), floats(3, 4, low=1.1, high=5))
case("log1p_small", af.math.log1p, array("float32", [1e-7, -1e-7, 0, 1e-3, -0.5, -1, np.inf, -2]))
for _op in ("elu", "leaky_relu", "relu", "relu6", "selu", "softplus", "softsign"):
    case(_op, getattr(af.nn, _op), floats(3, 4, low=-8, high=8))
    case(f"{_op}_float64", getattr(af.nn, _op), floats(3, 4, low=-8, high=8, dtype=np.float64))
for _op in ("sinh", "cosh", "tan", "tanh", "log1p", "expm1", "exp", "sqrt"):
    case(f"{_op}_float64", getattr(af.math, _op), floats(3, 4, low=0.1, dtype=np.float64), tolerance=1e-12)
case("round_int", af.round, ints(4))
case("invert", af.bitwise.invert, ints(4, dtype=np.int16))
case("l2_loss", af.nn.l2_loss, floats(3, 4))
case("zeros_like", lambda x: [af.zeros_like(x), af.ones_like(x)], ints(2, 3), reference=True)

for _kind in (
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
):
    _low = 1 if _kind.startswith("u") else -9
    _x, _y = ints(3, 4, low=_low, dtype=_kind), ints(4, low=1, dtype=_kind)
    for _op in ("add", "subtract", "multiply", "maximum", "minimum"):
        case(f"{_op}_{_kind}", getattr(af, _op), _x, _y, tolerance=1e-3)
    for _op in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"):
        case(f"{_op}_{_kind}", getattr(af, _op), _x, _y)
    case(f"floordiv_{_kind}", lambda x, y: x // y, _x, _y, tolerance=1e-2)
    case(f"mod_{_kind}", lambda x, y: x % y, _x, _y, tolerance=1e-2)
case("wraps", lambda x, y: [x + y, x * y, x - y], array("uint8", [250, 3]), array("uint8", [10, 200]))
case("wraps_int8", lambda x, y: [x + y, x * y, x - y], array("int8", [120, -100]), array("int8", [10, 100]))
_signs = [np.array(v) for v in ([7, -7, 7, -7, 6, -6], [2, 2, -2, -2, 3, -3])]
case("floordiv_signs", lambda x, y: x // y, *(v.astype(np.int32) for v in _signs), reference=True)
case("floordiv_signs_float", lambda x, y: [x // y, x % y], *(v.astype(np.float32) for v in _signs))
case("mod_signs", lambda x, y: x % y, *(v.astype(np.int64) for v in _signs), reference=True)
case("truncatediv", af.truncatediv, *(v.astype(np.int32) for v in _signs))
case("truncatemod", af.truncatemod, *(v.astype(np.int32) for v in _signs))
case("div_extreme", lambda x, y: x // y, array("int32", [-(2**31), 2**31 - 1]), array("int32", [3, -2]))
case("pow", af.pow, floats(3, 4, low=0.1), floats(4))
case("pow_int", af.pow, ints(3, 4), ints(4, low=0, high=4))
case("squared_difference", af.squared_difference, floats(3, 4), floats(4))
case("div_no_nan", af.div_no_nan, floats(4), array("float32", [0, 1, 2, 0]))
case(
    "multiply_no_nan", af.math.multiply_no_nan, array("float32", [np.nan, 1, np.inf, 3]), array("float32", [0, 1, 0, 2])
)
case("xlogy", af.math.xlogy, array("float32", [0, 1, 0]), array("float32", [0, 2, 3]))
case("xdivy", af.math.xdivy, array("float32", [0, 1, 0]), array("float32", [0, 2, 3]))
_angles = np.array([(y, x) for y in (0.0, -0.0, 1.5, -2) for x in (0.0, -0.0, 1, -3)], np.float32)
case("atan2", af.atan2, _angles[:, 0], _angles[:, 1])
case("add_n", lambda *v: af.add_n(list(v)), ints(3), ints(3), ints(3))
case("logical", lambda x, y: [x & y, x | y, x ^ y, af.logical_not(x)], bools(3, 4), bools(4), reference=True)
case(
    "bitwise",
    lambda x, y: [f(x, y) for f in (af.bitwise.bitwise_and, af.bitwise.bitwise_or, af.bitwise.bitwise_xor)],
    ints(5),
    ints(5),
)
case(
    "shifts",
    lambda x, n: [af.bitwise.left_shift(x, n), af.bitwise.right_shift(x, n)],
    array("int32", [5, -5, 2**30, -1]),
    array("int32", [1, 1, 3, 31]),
)
case(
    "shifts_uint8",
    lambda x, n: [af.bitwise.left_shift(x, n), af.bitwise.right_shift(x, n)],
    *array("uint8", [[5, 255], [1, 3]]),
)
case("where_rows", lambda c, x, y: af.where(c, x, y), bools(3), floats(3, 4), floats(3, 4))
case("where_v2", af.where_v2, bools(3, 1), floats(3, 4), floats(4), reference=True)
case("where_bool", af.where_v2, bools(3, 1), bools(3, 4), bools(4))
case("clip", lambda x: af.clip_by_value(x, -1.0, 1.0), floats(3, 4), reference=True)
case(
    "approximate_equal",
    lambda x, y: af.raw_ops.ApproximateEqual(x=x, y=y, tolerance=0.1),
    array("float32", [1, 2]),
    array("float32", [1.05, 2.2]),
)

# -- casts -------------------------------------------------------------------------------------------------------------

for _to in ("float32", "float64", "int32", "int8", "uint8", "int64", "bool", "float16", "bfloat16"):
    case(
        f"cast_{_to}",
        lambda x, to=_to: af.cast(af.cast(x, to), af.float32 if to == "bfloat16" else to),
        array("float32", [0, 1.7, 3.2, 100]),
    )
case(
    "cast_negative", lambda x: [af.cast(x, t) for t in (af.int32, af.int64, af.bool)], array("float32", [-1.7, -0.2, 5])
)
case("cast_wraps", lambda x: [af.cast(x, t) for t in (af.int8, af.uint8, af.uint32)], array("int32", [300, -1, 128]))
case("bfloat16", lambda x: af.cast(af.cast(x, af.bfloat16) * 2 + 1, af.float32), floats(5), tolerance=1e-2)

# -- products ----------------------------------------------------------------------------------------------------------

case("matmul", af.matmul, floats(3, 4), floats(4, 5), reference=True)
case("matmul_a", lambda a, b: af.matmul(a, b, transpose_a=True), floats(4, 3), floats(4, 5))
case("matmul_b", lambda a, b: af.matmul(a, b, transpose_b=True), floats(3, 4), floats(5, 4), reference=True)
case("matmul_int", af.matmul, ints(3, 4), ints(4, 2))
case("matmul_batch", af.matmul, floats(2, 1, 3, 4), floats(5, 4, 2), reference=True)
case(
    "matmul_batch_adjoint",
    lambda a, b: af.matmul(a, b, adjoint_a=True, transpose_b=True),
    floats(2, 4, 3),
    floats(2, 5, 4),
)
case("matmul_const", lambda x: af.matmul(x, af.constant(floats(5, 4)), transpose_b=True), floats(3, 4))
case("einsum", lambda a, b: af.einsum("bij,bjk->bik", a, b), floats(2, 3, 4), floats(2, 4, 5))
case("tensordot", lambda a, b: af.tensordot(a, b, [[1], [0]]), floats(2, 3), floats(3, 4, 2))
case("cross", af.linalg.cross, floats(2, 3), floats(2, 3))
case("det", af.linalg.det, floats(2, 3, 3))

# -- convolutions, pooling and images ----------------------------------------------------------------------------------

_KERNEL, _DEPTHWISE = floats(3, 3, 3, 4), floats(3, 2, 3, 2)
for _padding in ("SAME", "VALID"):
    for _stride in (1, 2, 3):
        for _size in (7, 8):
            case(
                f"conv_{_padding}_{_stride}_{_size}",
                lambda x, p=_padding, s=_stride: af.nn.conv2d(x, af.constant(_KERNEL), [1, s, s, 1], p),
                floats(2, _size, _size + 1, 3),
                reference=_stride == 2 and _size == 7,
            )
    case(
        f"pools_{_padding}",
        lambda x, p=_padding: [
            af.nn.max_pool(x, [1, 3, 2, 1], [1, 2, 2, 1], p),
            af.nn.avg_pool(x, [1, 3, 2, 1], [1, 2, 1, 1], p),
        ],
        floats(2, 7, 8, 3),
    )
    case(
        f"depthwise_{_padding}",
        lambda x, p=_padding: af.nn.depthwise_conv2d(x, af.constant(_DEPTHWISE), [1, 2, 2, 1], p),
        floats(2, 7, 8, 3),
    )
    case(
        f"conv_transpose_{_padding}",
        lambda x, p=_padding: af.nn.conv2d_transpose(
            x, af.constant(_KERNEL), [2, 8, 8, 3] if p == "SAME" else [2, 9, 9, 3], [1, 2, 2, 1], p
        ),
        floats(2, 4, 4, 4),
        static_only=True,
    )
case(
    "conv_dilated",
    lambda x: af.nn.conv2d(x, af.constant(_KERNEL), [1, 1, 1, 1], "SAME", dilations=[1, 2, 2, 1]),
    floats(2, 9, 8, 3),
)
case(
    "conv_explicit",
    lambda x: af.nn.conv2d(x, af.constant(_KERNEL), [1, 2, 2, 1], [[0, 0], [1, 2], [0, 1], [0, 0]]),
    floats(2, 7, 8, 3),
)
case("conv_fed_kernel", lambda x, k: af.nn.conv2d(x, k, [1, 1, 1, 1], "VALID"), floats(2, 7, 8, 3), floats(3, 3, 3, 2))
case(
    "conv_nchw",
    lambda x: af.nn.conv2d(x, af.constant(_KERNEL), [1, 1, 2, 2], "SAME", data_format="NCHW"),
    floats(2, 3, 7, 8),
)
case(
    "bias_nchw",
    lambda x, b: af.nn.bias_add(x, b, data_format="NCHW"),
    floats(2, 3, 4, 5),
    floats(3),
)
case("bias", af.nn.bias_add, floats(2, 3, 4), floats(4), reference=True)
case("atrous", lambda x: af.nn.atrous_conv2d(x, af.constant(_KERNEL), 2, "VALID"), floats(1, 12, 12, 3))
case("lrn", lambda x: af.nn.lrn(x, 2, 1.0, 0.5, 0.75), floats(2, 3, 4, 7))


def _tower(x: Any) -> Any:
    """Apply convolutions, and between them ops that do not depend on the position of the channel axis."""
    first = af.nn.relu6(
        af.nn.bias_add(af.nn.conv2d(x, af.constant(_KERNEL), [1, 1, 1, 1], "SAME"), af.constant(floats(4)))
    )
    padded = af.pad(first, [[0, 0], [1, 1], [2, 1], [0, 0]])
    side = af.nn.max_pool(padded, [1, 2, 2, 1], [1, 1, 1, 1], "SAME") * 0.5 + af.constant(floats(1, 1, 4))
    both = af.concat([padded, side], axis=3)
    second = af.nn.conv2d(both, af.constant(floats(1, 1, 8, 5)), [1, 1, 1, 1], "VALID")
    gate = af.sigmoid(af.reduce_mean(second, [1, 2], keepdims=True))
    return af.reduce_mean(second * gate, [1, 2])


case("tower", _tower, floats(2, 6, 7, 3))


def _norm(x: Any, training: bool, layout: ImageFormat) -> Any:
    channels = 3
    scale, offset, mean = (af.constant(floats(channels)) for _ in range(3))
    variance = af.constant(floats(channels, low=0.5, high=1.5))
    if training:
        return af.nn.fused_batch_norm(x, scale, offset, epsilon=0.01, data_format=layout)
    return af.nn.fused_batch_norm(x, scale, offset, mean, variance, 0.01, layout, False)


case("batch_norm", lambda x: _norm(x, False, "NHWC")[0], floats(2, 4, 5, 3), reference=True)
case("batch_norm_nchw", lambda x: _norm(x, False, "NCHW")[0], floats(2, 3, 4, 5))
case("batch_norm_training", lambda x: list(_norm(x, True, "NHWC")), floats(2, 4, 5, 3), tolerance=1e-4)
case(
    "resize",
    lambda x: [
        af.image.resize_bilinear(x, [5, 9]),
        af.image.resize_bilinear(x, [5, 9], align_corners=True),
        af.image.resize_bilinear(x, [5, 9], half_pixel_centers=True),
        af.image.resize_nearest_neighbor(x, [5, 9]),
        af.image.resize_nearest_neighbor(x, [5, 9], align_corners=True),
        af.image.resize_nearest_neighbor(x, [5, 9], half_pixel_centers=True),
        af.image.resize_bilinear(x, [2, 2], half_pixel_centers=True),
    ],
    floats(2, 3, 4, 3),
)
case("space_to_depth", lambda x: [af.space_to_depth(x, 2), af.depth_to_space(x, 2)], floats(2, 4, 6, 8))
case("space_to_batch", lambda x: af.space_to_batch_nd(x, [2, 3], [[1, 1], [0, 2]]), floats(2, 4, 7, 3))
case("batch_to_space", lambda x: af.batch_to_space_nd(x, [2, 3], [[1, 0], [0, 2]]), floats(12, 4, 3, 3))

# -- reductions --------------------------------------------------------------------------------------------------------

for _op in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_euclidean_norm"):
    _reduce = getattr(af.math, _op)
    case(f"{_op}_all", _reduce, floats(2, 3, 4), reference=True)
    case(f"{_op}_axes", lambda x, f=_reduce: f(x, [0, -1], keepdims=True), floats(2, 3, 4))
    case(f"{_op}_none", lambda x, f=_reduce: f(x, np.zeros(0, np.int32)), floats(2, 3))
    case(f"{_op}_int", lambda x, f=_reduce: f(x, 1), ints(2, 5))
    case(f"{_op}_fed_axes", _reduce, floats(2, 3, 4), array("int32", [1, -1]), static_only=True)
    case(f"{_op}_empty", lambda x, f=_reduce: f(x, 0), floats(0, 3))
    case(f"{_op}_int8", lambda x, f=_reduce: f(x, 1), ints(2, 5, dtype=np.int8, low=-2, high=3))
case("reduce_all", lambda x: [af.reduce_all(x, 0), af.reduce_any(x, 1, keepdims=True), af.reduce_any(x)], bools(3, 4))
case("reduce_all_empty", lambda x: [af.reduce_all(x, 0), af.reduce_any(x, 0)], np.zeros((0, 3), bool))
case("reduce_logsumexp", lambda x: af.reduce_logsumexp(x, 1), floats(3, 4))
case(
    "argmax",
    lambda x: [af.argmax(x, 1), af.argmin(x, 0, output_type=af.int32)],
    ints(3, 5, low=0, high=3),
    reference=True,
)
case(
    "argmax_types",
    lambda x: [af.argmax(af.cast(x, t), 1) for t in (af.int8, af.uint16, af.int64, af.float64)],
    ints(3, 5, low=0),
)
for _exclusive in (False, True):
    for _backwards in (False, True):
        case(
            f"cumsum_{_exclusive}_{_backwards}",
            lambda x, e=_exclusive, r=_backwards: [
                af.cumsum(x, 1, exclusive=e, reverse=r),
                af.cumprod(x, 0, exclusive=e, reverse=r),
            ],
            floats(3, 4),
        )
case("softmax", lambda x: [af.nn.softmax(x), af.nn.log_softmax(x)], floats(3, 4), reference=True)
case("softmax_axis", lambda x: af.nn.softmax(x, axis=1), floats(2, 3, 4))
case(
    "cross_entropy",
    lambda x, y: af.nn.softmax_cross_entropy_with_logits(labels=y, logits=x),
    floats(3, 4),
    array("float32", [[0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0, 1]]),
)
case(
    "sparse_cross_entropy",
    lambda x, y: af.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x),
    floats(3, 4),
    array("int32", [1, 0, 3]),
)
case(
    "sigmoid_cross_entropy",
    lambda x, y: af.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=x),
    floats(3),
    floats(3, low=0, high=1),
)
case("moments", lambda x: list(af.nn.moments(x, [0, 1])), floats(3, 4, 5))
case("l2_normalize", lambda x: af.nn.l2_normalize(x, 1), floats(3, 4))
case("in_top_k", lambda x, y: af.nn.in_top_k(x, y, 2), floats(4, 5), array("int32", [0, 1, 2, 3]))

# -- shapes ------------------------------------------------------------------------------------------------------------

case(
    "shape",
    lambda x: [af.shape(x), af.shape(x, out_type=af.int64), af.size(x), af.rank(x)],
    floats(2, 3),
    reference=True,
)
case("reshape", lambda x: [af.reshape(x, [4, -1]), af.reshape(x, [-1])], floats(2, 6), reference=True)
case("reshape_dynamic", lambda x: af.reshape(x, [af.shape(x)[0], af.shape(x)[1] // 2, 2]), floats(3, 4))
case("reshape_fed", af.reshape, floats(2, 6), array("int64", [3, -1]))
case("reshape_empty", lambda x: af.reshape(x, [0, 2]), floats(0, 3))
case(
    "expand_dims",
    lambda x: [af.expand_dims(x, 0), af.expand_dims(x, -1), af.expand_dims(x, 1)],
    floats(2, 3),
    reference=True,
)
case("squeeze", lambda x: [af.squeeze(x, [0]), af.squeeze(x, [-1])], floats(1, 3, 1))
case("squeeze_all", af.squeeze, floats(1, 3, 1))
case("transpose", lambda x: [af.transpose(x, [2, 0, 1]), af.transpose(x)], floats(2, 3, 4), reference=True)
case("broadcast_to", lambda x: af.broadcast_to(x, [2, 3, 4]), floats(3, 1))
case("fill", lambda x: af.fill(af.shape(x), 7), floats(2, 3))
case("tile", lambda x: af.tile(x, [2, 3]), ints(2, 3, dtype=np.int16), reference=True)
case("tile_fed", af.tile, floats(2, 3), array("int32", [2, 1]))
case("range", lambda n: [af.range(n), af.range(n, 20, 3), af.range(10, 0, -n)], np.int32(4))
case("range_float", lambda x: af.range(0.0, x, 0.5), np.float32(2.6))
case("linspace", lambda a, b: af.linspace(a, b, 5), np.float32(1), np.float32(3))
case("zeros", lambda x: af.zeros([af.shape(x)[0], 2], af.int64), floats(3))

_cube = floats(4, 5, 6)
for _kind in ("uint16", "int16", "uint32", "uint64", "bfloat16"):
    case(
        f"extremes_of_nothing_{_kind}",
        lambda x, to=_kind: [af.cast(f(af.cast(x, to), [1]), af.float32) for f in (af.reduce_max, af.reduce_min)],
        floats(3, 0),
    )
case("diagonal_of_nothing", lambda x: af.linalg.diag_part(x[:, 9:]), _cube)
case(
    "segments_of_nothing",
    lambda x, i: [af.math.unsorted_segment_sum(x[..., 9:], i, 3), af.dynamic_stitch([i], [x[..., 9:]])],
    floats(2, 2, 3),
    ints(2, 2, low=0, high=3),
    static_only=True,
)
case("slice_plain", lambda x: [x[1:3], x[:, 1:-1, ::2], x[..., -2:]], _cube, reference=True)
case("slice_numbers", lambda x: [x[1], x[:, -1], x[0, 1, 2], x[..., 3]], _cube, reference=True)
case("slice_back", lambda x: [x[::-1], x[3:0:-1], x[:, ::-2], x[-1:-3:-1]], _cube)
case("slice_new", lambda x: [x[None], x[:, None, 1], x[..., None], x[1, ..., None, 2:4]], _cube)
case("slice_outside", lambda x: [x[2:99], x[-99:2], x[9:], x[3:1]], _cube)
case("slice_back_outside", lambda x: [x[-99::-1], x[:, -99:-100:-2], x[99::-1], x[0:-99:-1], x[1::-1, ::-1]], _cube)
case("slice_fed", lambda x, i: [x[i], x[i:], x[:i], x[:, i : i + 2], x[..., i]], _cube, np.int32(1))
case("slice_fed_last", lambda x, i: [x[i], x[:, i]], _cube, np.int32(-1))
case("slice", lambda x: af.slice(x, [1, 0, 2], [2, -1, 3]), _cube, reference=True)
case("slice_fed_sizes", af.slice, _cube, array("int32", [1, 0, 2]), array("int32", [2, -1, 3]))
case(
    "gather",
    lambda x, i: [af.gather(x, i), af.gather(x, i, axis=1), af.gather(x, i, axis=-1)],
    _cube,
    array("int32", [[0, 2], [3, 1]]),
)
case("gather_scalar", lambda x, i: af.gather(x, i, axis=1), _cube, np.int64(2))
case(
    "gather_batch",
    lambda x, i: af.gather(x, i, batch_dims=1, axis=1),
    floats(3, 4, 5),
    array("int32", [[0, 1], [2, 3], [1, 1]]),
)
case(
    "gather_batch_far",
    lambda x, i: af.gather(x, i, batch_dims=1, axis=2),
    floats(3, 4, 5),
    array("int32", [[0, 1], [2, 3], [1, 1]]),
)
case("gather_nd", af.gather_nd, _cube, array("int32", [[0, 1], [2, 3]]), reference=True)
case("scatter_nd", lambda i, u: af.scatter_nd(i, u, [5, 2]), array("int32", [[1], [3], [1]]), floats(3, 2))
case(
    "tensor_scatter",
    lambda x, i, u: [
        f(x, i, u)
        for f in (
            af.tensor_scatter_nd_update,
            af.tensor_scatter_nd_add,
            af.tensor_scatter_nd_sub,
            af.tensor_scatter_nd_max,
        )
    ],
    floats(5, 2),
    array("int32", [[1], [3]]),
    floats(2, 2),
)
case("where_indices", af.where, bools(3, 4))
case("where_numbers", af.where, ints(3, 4, low=0, high=2))
case("boolean_mask", af.boolean_mask, floats(4, 3), np.array([True, False, True, True]), static_only=True)
case(
    "one_hot",
    lambda i: [af.one_hot(i, 4), af.one_hot(i, 4, 5, -1, axis=0), af.one_hot(i, 4, axis=1, dtype=af.float64)],
    array("int32", [[0, 3, -1], [9, 2, 1]]),
)
case("reverse", lambda x: af.reverse(x, [0, -1]), _cube, reference=True)
case(
    "reverse_sequence",
    lambda x, n: af.reverse_sequence(x, n, seq_axis=1, batch_axis=0),
    _cube,
    array("int64", [1, 3, 5, 0]),
)
case(
    "reverse_sequence_far",
    lambda x, n: af.reverse_sequence(x, n, seq_axis=2, batch_axis=0),
    _cube,
    array("int64", [1, 3, 5, 0]),
)
case("roll", lambda x: [af.roll(x, 2, 0), af.roll(x, [1, -3], [0, 1])], _cube)

# -- joining and splitting ---------------------------------------------------------------------------------------------

case(
    "concat", lambda x, y: [af.concat([x, y], 0), af.concat([x, y, x], -1)], floats(2, 3), floats(2, 3), reference=True
)
case("split", lambda x: af.split(x, 3, axis=1), floats(2, 6), reference=True)
case("split_sizes", lambda x: af.split(x, [1, -1, 2], axis=1), floats(2, 6))
case("split_fed", lambda x, n: af.split(x, n, axis=1, num=2), floats(2, 6), array("int64", [2, -1]))
case("slice_back_fed", lambda x, i: [x[i::-1], x[:, i::-2], x[0, i:-9:-1]], floats(3, 4), np.int32(-4))
case(
    "slice_fed_steps",
    lambda x, s: [
        af.strided_slice(x, [-9, 1], [2, 9], s, begin_mask=2),
        af.strided_slice(x, [2, -1], [0, -9], s, end_mask=3),
        af.strided_slice(x, [1, -9, 3], [9, -9, 4], af.concat([s, [1]], 0), new_axis_mask=1, shrink_axis_mask=4),
    ],
    floats(4, 6),
    array("int32", [2, -1]),
)
case("slice_fed_strides", lambda x, s: af.strided_slice(x, [0, 1], [4, 5], s), floats(4, 6), array("int32", [2, 3]))
case("stack", lambda x, y: [af.stack([x, y]), af.stack([x, y], axis=-1)], floats(2, 3), floats(2, 3), reference=True)
case("unstack", lambda x: af.unstack(x, 3, axis=1), floats(2, 3), reference=True)
case("dynamic_partition", lambda x, p: af.dynamic_partition(x, p, 3), floats(5, 2), array("int32", [0, 2, 0, 2, 2]))
case(
    "dynamic_stitch",
    lambda i, j, x, y: af.dynamic_stitch([i, j], [x, y]),
    array("int32", [0, 3]),
    array("int32", [2, 1, 0]),
    floats(2, 2),
    floats(3, 2),
)
case("unique", lambda x: [*af.unique(x), *af.unique_with_counts(x)], array("int64", [3, 1, 3, 2, 1]))
case("top_k", lambda x: [*af.nn.top_k(x, 2), *af.nn.top_k(x, 1)], ints(3, 6, low=0, high=4))
case("top_k_fed", lambda x, k: list(af.nn.top_k(x, k)), floats(3, 6), np.int32(3))
case("sort", lambda x: [af.sort(x), af.argsort(x, direction="DESCENDING")], floats(3, 5))
case(
    "pad",
    lambda x: [af.pad(x, [[1, 2], [0, 1]]), af.pad(x, [[1, 0], [0, 1]], constant_values=9.0)],
    floats(2, 3),
    reference=True,
)
case("pad_int16", lambda x: af.pad(x, [[1, 2], [0, 1]]), ints(2, 3, dtype=np.int16))
case("pad_mirror", lambda x: [af.pad(x, [[1, 2], [0, 1]], mode=m) for m in ("REFLECT", "SYMMETRIC")], floats(3, 4))
case("pad_fed", af.pad, floats(2, 3), array("int32", [[1, 0], [2, 1]]))
case("segment_sum", af.segment_sum, floats(5, 2), array("int32", [0, 0, 2, 2, 3]))
case(
    "segments",
    lambda x, i: [f(x, i) for f in (af.segment_mean, af.segment_max, af.segment_min, af.segment_prod)],
    floats(5, 2),
    array("int32", [0, 0, 2, 2, 3]),
)
case(
    "unsorted_segments",
    lambda x, i: [
        f(x, i, 4)
        for f in (af.unsorted_segment_sum, af.unsorted_segment_prod, af.unsorted_segment_max, af.unsorted_segment_min)
    ],
    floats(5, 2),
    array("int32", [3, -1, 0, 3, 0]),
)
case("bincount", lambda x: af.math.bincount(x, minlength=3, maxlength=6), array("int32", [1, 1, 4, 9, 0]))
case("band_part", lambda x: [af.linalg.band_part(x, 1, 0), af.linalg.band_part(x, -1, 1)], floats(2, 4, 5))
case("diagonals", lambda x: [af.linalg.diag(x), af.linalg.diag_part(af.linalg.diag(x))], floats(2, 3))
case("set_diag", af.linalg.set_diag, floats(2, 3, 4), floats(2, 3))
case("trace", af.linalg.trace, floats(2, 3, 3))
case("norm", lambda x: [af.norm(x), af.norm(x, ord=1, axis=1)], floats(2, 3))

_ids = array("int32", [[0, 3], [2, 2]])
case("embedding", lambda i: af.nn.embedding_lookup(af.constant(floats(4, 3)), i), _ids)
case(
    "embedding_parts", lambda i: af.nn.embedding_lookup([af.constant(floats(2, 3)), af.constant(floats(2, 3))], i), _ids
)
case("embedding_variable", lambda i: af.nn.embedding_lookup(af.get_variable("table", [4, 3]), i), _ids)
case(
    "embedding_sparse",
    lambda v, i: af.nn.embedding_lookup_sparse(
        af.constant(floats(4, 3)), af.SparseTensor(i, v, [2, 3]), None, combiner="mean"
    ),
    array("int64", [1, 3, 2]),
    array("int64", [[0, 0], [0, 1], [1, 2]]),
    static_only=True,
)
case(
    "searchsorted",
    lambda x, v: [af.searchsorted(x, v, side=s) for s in ("left", "right")],
    np.sort(floats(2, 6)),
    floats(2, 4),
)
case("unravel_index", lambda i: af.unravel_index(i, [3, 4, 5]), array("int32", [0, 59, 22]))
case("sparse_to_dense", lambda i, v: af.sparse_to_dense(i, [4, 5], v, 7.0), array("int64", [[0, 1], [3, 2]]), floats(2))
case("sparse_scalar", lambda i: af.sparse_to_dense(i, [4], 1, 0), array("int32", [1, 3]))
case("adjust_contrast", lambda x: af.image.adjust_contrast(x, 1.5), floats(2, 4, 5, 3))
case("xlog1py", af.math.xlog1py, array("float32", [0, 2, -1]), array("float32", [-1, 1e-6, 3]))


def _differentiated(x: Any) -> Any:
    """Return the gradient of a network with respect to its input."""
    hidden = af.nn.leaky_relu(af.matmul(af.tanh(x), af.constant(floats(3, 4))))
    for activation in (af.nn.relu, af.nn.elu, af.nn.selu, af.nn.softplus, af.nn.softsign, af.sigmoid, af.nn.relu6):
        hidden = activation(af.nn.bias_add(hidden, af.constant(floats(4))))
    loss = af.reduce_sum(af.sqrt(hidden + 1.0) + af.rsqrt(hidden + 2.0) + af.reciprocal(hidden + 3.0))
    return af.gradients(loss, x)


case("gradients", _differentiated, floats(2, 3))

# -- strings -----------------------------------------------------------------------------------------------------------

_texts = np.array([b"abc", b"", b"x1y"], object)
case("string_join", lambda x, y: af.strings.join([x, y], separator="-"), _texts, _texts)
case("string_match", lambda x: af.strings.regex_full_match(x, "[a-z]+"), _texts)
case("string_equal", lambda x: af.equal(x, "abc"), _texts)
case("string_gather", lambda x: af.reshape(af.gather(x, [2, 0]), [2, 1]), _texts)
case(
    "string_numbers",
    lambda x: [af.strings.to_number(x), af.strings.to_number(x, af.int64)],
    np.array([b"12", b"-3"], object),
)
case("as_string", af.strings.as_string, ints(3))

# -- branches and loops ------------------------------------------------------------------------------------------------

for _value in (1.0, -1.0):
    case(
        f"cond_{_value}",
        lambda x: af.cond(af.reduce_sum(x) > 0, lambda: [x * 2, af.constant(1.0)], lambda: [x - 1, af.reduce_max(x)]),
        np.full((2, 3), _value, np.float32),
        reference=True,
    )


def _nested(x: Any, y: Any) -> Any:
    def inner() -> Any:
        return af.cond(y > 0, lambda: x + y, lambda: af.square(x) * y)

    outer = af.cond(x > 0, inner, lambda: x - y)
    return [outer, af.cond(outer > 1, lambda: outer, lambda: -outer)]


for _first, _second in ((1, 1), (1, -1), (-1, 1)):
    case(f"cond_nested_{_first}_{_second}", _nested, np.float32(_first), np.float32(_second))
case(
    "cond_in_cond_of_one_predicate",
    lambda p, x: af.cond(p, lambda: af.cond(p, lambda: x + 1, lambda: x - 1), lambda: x * 2),
    array("bool", True),
    array("float32", 3),
)
case(
    "case",
    lambda i: af.switch_case(i, [lambda: i * 10, lambda: i + 100, lambda: -i]),
    np.int32(1),
)
case(
    "while_loop",
    lambda n, x: af.while_loop(lambda i, a: i < n, lambda i, a: (i + 1, a * 2 + x), [0, x]),
    np.int32(4),
    floats(2, 3),
    reference=True,
)
case("while_none", lambda n: af.while_loop(lambda i: i < n, lambda i: i + 1, [af.constant(5)]), np.int32(3))


def _collatz(n: Any) -> Any:
    def step(value: Any, count: Any) -> Any:
        following = af.cond(af.equal(value % 2, 0), lambda: value // 2, lambda: 3 * value + 1)
        return following, count + 1

    return af.while_loop(lambda value, _: value > 1, step, [n, 0])


case("while_with_cond", _collatz, np.int32(7))


def _triangle(n: Any) -> Any:
    def row(i: Any, total: Any) -> Any:
        _, added = af.while_loop(lambda j, _: j <= i, lambda j, t: (j + 1, t + j), [0, total])
        return i + 1, added

    return af.while_loop(lambda i, _: i < n, row, [0, 0])[1]


case("while_nested", _triangle, np.int32(5))
case(
    "while_in_cond",
    lambda n: af.cond(n > 2, lambda: af.while_loop(lambda i: i < 10, lambda i: i + n, [n]), lambda: n),
    np.int32(3),
)
case(
    "while_growing",
    lambda x: af.while_loop(
        lambda i, _: i < 3,
        lambda i, a: (i + 1, af.concat([a, a], 0)),
        [0, x],
        [af.TensorShape([]), af.TensorShape([None, 2])],
    )[1],
    floats(1, 2),
    static_only=True,
)
case(
    "while_swaps",
    lambda a, b: af.while_loop(lambda i, x, y: i < 3, lambda i, x, y: (i + 1, y, x), [0, a, b])[1:],
    np.float32(1),
    np.float32(2),
)

# -- arrays of tensors -------------------------------------------------------------------------------------------------

case("map_fn", lambda x: af.map_fn(lambda row: row * 2 + af.reduce_sum(row), x), floats(4, 3))
case("map_fn_several", lambda x, y: af.map_fn(lambda r: (r[0] + r[1], r[0] * 2), (x, y)), floats(4, 3), floats(4, 1))
case("map_fn_types", lambda x: af.map_fn(lambda row: af.cast(row > 0, af.int64), x, dtype=af.int64), floats(4, 3))
case("foldl", lambda x: af.foldl(lambda a, row: a * 0.5 + row, x), floats(4, 3))
case("foldr", lambda x: af.foldr(lambda a, row: a * 0.5 + row, x, initializer=np.zeros(3, np.float32)), floats(4, 3))
case("scan", lambda x: af.scan(lambda a, row: a + row, x, initializer=np.ones(3, np.float32)), floats(4, 3))
case(
    "scan_reverse",
    lambda x: af.scan(lambda a, row: a * 0.9 + row, x, initializer=np.ones(3, np.float32), reverse=True),
    floats(4, 3),
)

case("scan_from_first", lambda x: af.scan(lambda a, row: a * 0.9 + row, x), floats(4, 3))
case("scan_from_last", lambda x: af.scan(lambda a, row: a * 0.9 + row, x, reverse=True), floats(4, 3))

case(
    "array_scattered",
    lambda x: af.TensorArray(af.float32, 3).scatter([2, 0, 1], x).stack(),
    floats(3, 2),
)
case("array_joined", lambda x: af.TensorArray(af.float32, 3).unstack(af.reshape(x, [3, 2, 1])).concat(), floats(3, 2))


def _recurrent(x: Any) -> Any:
    """Apply a simple recurrent layer over [time, batch, features], of any length."""
    weights, state = af.constant(floats(3, 4)), af.constant(floats(4, 4))
    start = af.zeros([af.shape(x)[1], 4])
    outputs = af.scan(lambda h, row: af.tanh(af.matmul(row, weights) + af.matmul(h, state)), x, initializer=start)
    return [outputs, outputs[-1]]


case("recurrent", _recurrent, floats(5, 2, 3))

# -- volumes -----------------------------------------------------------------------------------------------------------

case(
    "volumes",
    lambda x: [
        af.nn.conv3d(x, af.constant(floats(2, 3, 2, 2, 3)), [1, 2, 1, 2, 1], "SAME"),
        af.nn.max_pool3d(x, [1, 2, 2, 2, 1], [1, 2, 2, 2, 1], "VALID"),
        af.nn.avg_pool3d(x, [1, 2, 2, 2, 1], [1, 1, 2, 1, 1], "SAME"),
    ],
    floats(1, 4, 5, 6, 2),
)
