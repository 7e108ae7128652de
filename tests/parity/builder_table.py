"""Table of one correct call of each public builder, as data.

Tests run the calls with unknown shapes, with corrupted arguments, and against TensorFlow. An argument is one of:

- `Data`: a fed tensor.
- `Ints`: an integer tensor of parameters, such as a shape, an axis or sizes.
- `Var` or `Sparse`.
- A list of these.
- Any other Python value, which is passed unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Data:
    """A fed tensor."""

    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Ints:
    """An integer tensor whose value matters for shapes: a nested tuple, or one int."""

    value: Any
    dtype: str = "int32"


@dataclass(frozen=True)
class Var:
    """A variable."""

    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Sparse:
    """A sparse tensor with the dense shape `shape`."""

    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Call:
    """A builder, by its public name, and arguments for it."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        words = [*map(_text, self.args), *(f"{k}={_text(v)}" for k, v in self.kwargs.items())]
        return f"{self.name}({', '.join(words)})"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, Data | Var | Sparse):
        kind = "" if value.dtype == "float32" else f"{value.dtype} "
        return f"<{type(value).__name__} {kind}{list(value.shape)}>"
    return f"<{value.value}>" if isinstance(value, Ints) else repr(value)


def F(*shape: int) -> Data:
    return Data(shape)


def D(*shape: int) -> Data:
    return Data(shape, "float64")


def I(*shape: int) -> Data:  # noqa: E743
    return Data(shape, "int32")


def L(*shape: int) -> Data:
    return Data(shape, "int64")


def S(*shape: int) -> Data:
    return Data(shape, "string")


def B(*shape: int) -> Data:
    return Data(shape, "bool")


def C(*shape: int) -> Data:
    return Data(shape, "complex64")


def U(*shape: int) -> Data:
    return Data(shape, "uint8")


def N(value: Any) -> Ints:
    return Ints(tuple(value) if isinstance(value, list) else value)


def call(name: str, *args: Any, **kwargs: Any) -> Call:
    return Call(name, args, kwargs)


def _unary(names: str, argument: Data) -> list[Call]:
    return [call(name, argument) for name in names.split()]


def _binary(names: str, x: Data, y: Data) -> list[Call]:
    return [call(name, x, y) for name in names.split()]


_ELEMENTWISE = [
    *_unary(
        "abs acos acosh asin asinh atan atanh ceil cos cosh digamma erf erfc exp expm1 floor identity is_finite is_inf"
        " is_nan lgamma log log1p log_sigmoid negative ones_like rank reciprocal rint round rsqrt shape sigmoid sign"
        " sin sinh size sqrt square stop_gradient tan tanh zeros_like to_double to_int32 to_int64 to_bfloat16 to_float"
        " nn.relu nn.relu6 nn.elu nn.selu nn.leaky_relu nn.softplus nn.softsign nn.crelu nn.l2_loss nn.zero_fraction"
        " math.erfinv math.ndtri math.erfcinv math.reciprocal_no_nan sparse.from_dense as_string random_shuffle",
        F(2, 3),
    ),
    *_unary("angle conj imag real abs", C(2, 3)),
    *_unary("logical_not reduce_all reduce_any where", B(2, 3)),
    *_unary("bitwise.invert", I(2, 3)),
    *_unary("invert_permutation", I(4)),
    *_unary("lbeta", F(2, 3)),
    *_binary(
        "add atan2 div div_no_nan divide equal floor_div floordiv floormod greater greater_equal less less_equal"
        " maximum minimum mod multiply not_equal pow realdiv squared_difference subtract truediv math.xdivy"
        " math.xlog1py math.xlogy math.multiply_no_nan math.nextafter math.divide_no_nan complex zeta polygamma"
        " igamma igammac",
        F(2, 3),
        F(2, 3),
    ),
    *_binary("add multiply squared_difference equal maximum floormod", F(2, 3), F(3)),
    *_binary("add pow less", F(4, 1, 3), F(2, 1)),
    *_binary("truncatediv truncatemod", I(2, 3), I(2, 3)),
    *_binary("logical_and logical_or logical_xor", B(2, 3), B(3)),
    *_binary(
        "bitwise.bitwise_and bitwise.bitwise_or bitwise.bitwise_xor bitwise.left_shift bitwise.right_shift",
        I(2, 3),
        I(3),
    ),
    call("cast", F(2, 3), "int32"),
    call("saturate_cast", F(2, 3), "uint8"),
    call("bitcast", F(2, 3), "int32"),
    call("bitcast", D(2, 3), "int32"),
    call("bitcast", I(2, 2), "int64"),
    call("betainc", F(2, 3), F(2, 3), F()),
    call("scalar_mul", 2.0, F(2, 3)),
    call("scalar_mul", F(), F(2, 3)),
    call("add_n", [F(2, 3), F(2, 3)]),
    call("accumulate_n", [F(2, 3), F(2, 3)]),
    call("accumulate_n", [F(2, 3), F(2, 3)], shape=[2, 3]),
    call("check_numerics", F(2, 3), "message"),
    call("verify_tensor_all_finite", F(2, 3), "message"),
    call("clip_by_value", F(2, 3), 0.0, 1.0),
    call("clip_by_value", F(2, 3), F(), F(3)),
    call("clip_by_norm", F(2, 3), 1.0),
    call("clip_by_norm", F(2, 3), 1.0, axes=[1]),
    call("clip_by_average_norm", F(2, 3), 1.0),
    call("clip_by_global_norm", [F(2, 3), F(4)], 1.0),
    call("global_norm", [F(2, 3), F(4)]),
    call("cross", F(2, 3), F(2, 3)),
    call("math.polyval", [F(2, 3), F(2, 3)], F(2, 3)),
    call("tuple", [F(2, 3), F(4)]),
    call("identity_n", [F(2, 3), F(4)]),
    call("group", F(2), F(3)),
    call("Print", F(2, 3), [F(2)]),
    call("Assert", B(), [F(2)]),
    call("bincount", I(5)),
    call("bincount", I(5), minlength=3, maxlength=9),
    call("confusion_matrix", I(5), I(5)),
    call("confusion_matrix", I(5), I(5), N(3)),
    call("histogram_fixed_width", F(5), F(2), N(7)),
    call("histogram_fixed_width_bins", F(5), F(2), N(7)),
    call("as_string", I(2, 3), width=3),
]

_ARRAY = [
    call("constant", [1, 2, 3]),
    call("constant", [1.0, 2.0], "float32", shape=[2, 3]),
    call("convert_to_tensor", [1, 2, 3]),
    call("convert_to_tensor", F(2, 3), "float32"),
    call("placeholder", "float32", [None, 3]),
    call("placeholder_with_default", F(2, 3), [None, 3]),
    call("ensure_shape", F(2, 3), [None, 3]),
    call("broadcast_to", F(2, 1), N([4, 2, 3])),
    call("broadcast_dynamic_shape", N([2, 3]), N([3])),
    call("reshape", F(2, 6), N([3, 4])),
    call("reshape", F(2, 6), N([-1, 3])),
    call("reshape", F(2, 6), N([2, 2, -1])),
    call("expand_dims", F(2, 3), N(1)),
    call("expand_dims", F(2, 3), -1),
    call("squeeze", F(2, 1, 3, 1)),
    call("squeeze", F(2, 1, 3, 1), [1]),
    call("squeeze", F(2, 1, 3, 1), [1, -1]),
    call("transpose", F(2, 3, 4)),
    call("transpose", F(2, 3, 4), N([2, 0, 1])),
    call("matrix_transpose", F(2, 3, 4)),
    call("shape_n", [F(2, 3), F(4)]),
    call("fill", N([2, 3]), F()),
    call("zeros", N([2, 3])),
    call("ones", N([2, 3])),
    call("zeros", [2, 3], "int32"),
    call("eye", N(3)),
    call("eye", N(3), N(4)),
    call("eye", N(3), batch_shape=N([2])),
    call("range", N(5)),
    call("range", N(2), N(10), N(3)),
    call("range", F(), F(), F()),
    call("linspace", F(), F(), N(5)),
    call("linspace", 0.0, 1.0, N(5)),
    call("linspace", F(2), F(2), N(5)),
    call("linspace", F(2), F(2), N(5), axis=1),
    call("lin_space", 0.0, 1.0, N(5)),
    call("one_hot", I(2, 3), N(4)),
    call("one_hot", I(2, 3), N(4), axis=0),
    call("one_hot", I(2, 3), N(4), F(), F()),
    call("concat", [F(2, 3), F(2, 4)], N(1)),
    call("concat", [F(2, 3), F(2, 3)], -2),
    call("concat", [F(2), F(3), F(4)], N(0)),
    call("stack", [F(2, 3), F(2, 3)]),
    call("stack", [F(2, 3), F(2, 3)], axis=-1),
    call("parallel_stack", [F(3), F(3)]),
    call("unstack", F(2, 3)),
    call("unstack", F(2, 3), 3, -1),
    call("split", F(4, 6), 3, 1),
    call("split", F(4, 6), 2, N(0)),
    call("split", F(4, 6), N([1, 3, 2]), 1),
    call("split", F(4, 6), N([1, 3, -1]), 1, num=3),
    call("tile", F(2, 3), N([2, 1])),
    call("repeat", F(2, 3), N(2), axis=1),
    call("repeat", F(2, 3), I(3), axis=1),
    call("pad", F(2, 3), N([(1, 1), (0, 2)])),
    call("pad", F(2, 3), N([(1, 1), (0, 2)]), "REFLECT"),
    call("pad", F(2, 3), N([(1, 1), (0, 2)]), constant_values=1.0),
    call("slice", F(4, 6), N([1, 0]), N([2, -1])),
    call("slice", F(4, 6), N([1, 2]), N([2, 3])),
    call("strided_slice", F(4, 6), N([1, 0]), N([3, 6]), N([1, 2])),
    call("strided_slice", F(4, 6), N([1, 0]), N([3, 6])),
    call("strided_slice", F(4, 6), N([1]), N([2]), shrink_axis_mask=1),
    call("strided_slice", F(4, 6), N([1, 0]), N([3, 6]), N([1, 1]), end_mask=1, begin_mask=2),
    call("gather", F(4, 6), I(3)),
    call("gather", F(4, 6), I(3), axis=N(1)),
    call("gather", F(4, 6), I(4, 2), axis=1, batch_dims=1),
    call("batch_gather", F(4, 6), I(4, 2)),
    call("gather_nd", F(4, 6), I(3, 2)),
    call("gather_nd", F(4, 6), I(3, 1)),
    call("gather_nd", F(4, 6, 2), I(4, 3, 1), batch_dims=1),
    call("scatter_nd", I(3, 1), F(3, 5), N([4, 5])),
    call("tensor_scatter_add", F(4, 5), I(3, 1), F(3, 5)),
    call("tensor_scatter_nd_update", F(4, 5), I(3, 1), F(3, 5)),
    call("boolean_mask", F(4, 6), B(4)),
    call("boolean_mask", F(4, 6), B(4, 6)),
    call("boolean_mask", F(4, 6), B(6), axis=1),
    call("where", B(2, 3), F(2, 3), F(2, 3)),
    call("where", B(2), F(2, 3), F(2, 3)),
    call("where_v2", B(2, 1), F(2, 3), F(3)),
    call("reverse", F(2, 3), N([1])),
    call("reverse_sequence", F(4, 6), I(4), seq_axis=1, batch_axis=0),
    call("roll", F(4, 6), N([1]), N([0])),
    call("roll", F(4, 6), N(1), N(0)),
    call("sequence_mask", N([1, 3, 2])),
    call("sequence_mask", N([1, 3, 2]), N(5)),
    call("sequence_mask", I(2, 3), N(5)),
    call("sequence_mask", I(2, 3)),
    call("setdiff1d", I(5), I(3)),
    call("unique", I(5)),
    call("unique_with_counts", I(5)),
    call("unravel_index", I(5), N([2, 3])),
    call("unravel_index", I(), N([2, 3])),
    call("meshgrid", F(3), F(4)),
    call("meshgrid", F(3), F(4), indexing="ij"),
    call("dynamic_partition", F(4, 6), I(4), 2),
    call("dynamic_partition", F(4, 6), I(4, 6), 2),
    call("dynamic_stitch", [N([0, 2]), N([1, 3])], [F(2, 6), F(2, 6)]),
    call("dynamic_stitch", [I(2), I(3)], [F(2, 6), F(3, 6)]),
    call("batch_to_space_nd", F(4, 2, 3, 1), N([2, 2]), N([(0, 0), (0, 1)])),
    call("batch_to_space", F(4, 2, 3, 1), N([(0, 0), (0, 1)]), 2),
    call("space_to_batch_nd", F(1, 4, 6, 1), N([2, 2]), N([(0, 0), (0, 0)])),
    call("space_to_batch", F(1, 4, 6, 1), N([(0, 0), (0, 0)]), 2),
    call("required_space_to_batch_paddings", N([5, 7]), N([2, 3])),
    call("required_space_to_batch_paddings", N([5, 7]), N([2, 3]), N([(0, 0), (1, 1)])),
    call("depth_to_space", F(1, 2, 3, 8), 2),
    call("space_to_depth", F(1, 4, 6, 2), 2),
    call("searchsorted", F(2, 5), F(2, 3)),
    call("sort", F(2, 5)),
    call("sort", F(2, 5), axis=0, direction="DESCENDING"),
    call("argsort", F(2, 5)),
    call("nn.top_k", F(2, 5), N(3)),
    call("nn.in_top_k", F(2, 5), I(2), 3),
    call("math.in_top_k", F(2, 5), I(2), N(3)),
    call("diag", F(2, 3)),
    call("diag_part", F(2, 3, 2, 3)),
    call("linalg.tensor_diag", F(2)),
    call("linalg.tensor_diag_part", F(2, 2)),
    call("matrix_diag", F(2, 3)),
    call("matrix_diag_part", F(2, 3, 4)),
    call("matrix_set_diag", F(2, 3, 4), F(2, 3)),
    call("matrix_band_part", F(2, 3, 4), N(1), N(0)),
    call("trace", F(2, 3, 3)),
    call("random.shuffle", F(4, 3)),
    call("random_crop", F(4, 6), N([2, 3])),
    call("random_normal", N([2, 3])),
    call("random_uniform", N([2, 3])),
    call("random_uniform", N([2, 3]), 0, 5, "int32"),
    call("truncated_normal", N([2, 3])),
    call("random_gamma", N([2, 3]), F(4)),
    call("random_gamma", N([2, 3]), F(4), F(5, 1)),
    call("random_poisson", F(4), N([2, 3])),
    call("multinomial", F(2, 5), N(3)),
    call("random.stateless_uniform", N([2, 3]), N([1, 2])),
    call("random.stateless_normal", N([2, 3]), N([1, 2])),
    call("random.stateless_truncated_normal", N([2, 3]), N([1, 2])),
    call("serialize_tensor", F(2, 3)),
    call("parse_tensor", S(), "float32"),
]

_REDUCTIONS = [
    *(
        call(name, argument, *rest, **options)
        for name, argument in [
            *((n, F(2, 3, 4)) for n in ["reduce_sum", "reduce_mean", "reduce_prod", "reduce_max", "reduce_min"]),
            *((n, F(2, 3, 4)) for n in ["reduce_logsumexp", "math.reduce_euclidean_norm", "math.reduce_std"]),
            *((n, F(2, 3, 4)) for n in ["math.reduce_variance", "count_nonzero"]),
            *((n, B(2, 3, 4)) for n in ["reduce_all", "reduce_any"]),
        ]
        for rest, options in [
            ((), {}),
            ((N(1),), {}),
            ((N([0, 2]),), {}),
            ((N([0, -1]),), {"keepdims": True}),
            ((), {"keepdims": True}),
        ]
    ),
    call("reduce_join", S(2, 3)),
    call("reduce_join", S(2, 3), N([1])),
    call("reduce_join", S(2, 3), N(0), keep_dims=True),
    call("argmax", F(2, 3, 4)),
    call("argmax", F(2, 3, 4), N(1)),
    call("argmin", F(2, 3, 4), -1, output_type="int32"),
    call("cumsum", F(2, 3), N(1)),
    call("cumprod", F(2, 3), 0, exclusive=True),
    call("norm", F(2, 3, 4)),
    call("norm", F(2, 3, 4), axis=1),
    call("norm", F(2, 3, 4), "fro", axis=[1, 2], keepdims=True),
    call("linalg.normalize", F(2, 3), axis=1),
    call("nn.moments", F(2, 3, 4), [0]),
    call("nn.moments", F(2, 3, 4), [0, 1], keep_dims=True),
    call("nn.weighted_moments", F(2, 3), [0], F(2, 3)),
    call("nn.sufficient_statistics", F(2, 3), [0]),
    call("nn.normalize_moments", F(), F(3), F(3), None),
    call("segment_sum", F(5, 3), I(5)),
    call("segment_mean", F(5, 3), I(5)),
    call("segment_max", F(5, 3), I(5)),
    call("segment_min", F(5, 3), I(5)),
    call("segment_prod", F(5, 3), I(5)),
    *(
        call(f"unsorted_segment_{kind}", F(5, 3), I(5), N(4))
        for kind in ("sum", "mean", "max", "min", "prod", "sqrt_n")
    ),
    call("unsorted_segment_sum", F(5, 2, 3), I(5, 2), N(4)),
]

_MATRIX = [
    call("matmul", F(2, 3), F(3, 4)),
    call("matmul", F(3, 2), F(3, 4), transpose_a=True),
    call("matmul", F(5, 2, 3), F(5, 3, 4)),
    call("matmul", F(5, 2, 3), F(3, 4)),
    call("matmul", F(5, 2, 3), F(1, 4, 3), transpose_b=True),
    call("matmul", C(2, 3), C(4, 3), adjoint_b=True),
    call("linalg.matvec", F(2, 3), F(3)),
    call("tensordot", F(2, 3, 4), F(3, 4, 5), 2),
    call("tensordot", F(2, 3, 4), F(4, 5, 3), [[1, 2], [2, 0]]),
    call("tensordot", F(2, 3), F(3, 5), 1),
    call("einsum", "ij,jk->ik", F(2, 3), F(3, 4)),
    call("einsum", "bij,bjk->bik", F(5, 2, 3), F(5, 3, 4)),
    call("einsum", "...ij->...ji", F(5, 2, 3)),
    call("einsum", "ii->i", F(3, 3)),
    call("cholesky", F(2, 3, 3)),
    call("cholesky_solve", F(2, 3, 3), F(2, 3, 4)),
    call("matrix_determinant", F(2, 3, 3)),
    call("linalg.logdet", F(2, 3, 3)),
    call("linalg.slogdet", F(2, 3, 3)),
    call("linalg.adjoint", C(2, 3)),
    call("matrix_inverse", F(2, 3, 3)),
    call("matrix_solve", F(2, 3, 3), F(2, 3, 4)),
    call("matrix_triangular_solve", F(2, 3, 3), F(2, 3, 4)),
    call("qr", F(2, 3, 4)),
    call("qr", F(2, 3, 4), full_matrices=True),
    call("svd", F(2, 3, 4)),
    call("svd", F(2, 3, 4), compute_uv=False),
    call("self_adjoint_eig", F(2, 3, 3)),
    call("self_adjoint_eigvals", F(2, 3, 3)),
    call("linalg.l2_normalize", F(2, 3), 1),
]

_NN = [
    call("nn.conv2d", F(2, 8, 9, 3), F(3, 2, 3, 5), [1, 1, 1, 1], "SAME"),
    call("nn.conv2d", F(2, 8, 9, 3), F(3, 2, 3, 5), [1, 2, 2, 1], "VALID"),
    call("nn.conv2d", F(2, 8, 9, 3), F(3, 2, 3, 5), [1, 1, 1, 1], "VALID", dilations=[1, 2, 2, 1]),
    call("nn.conv2d", F(2, 3, 8, 9), F(3, 2, 3, 5), [1, 1, 2, 2], "SAME", data_format="NCHW"),
    call("nn.conv2d", F(2, 8, 9, 3), F(3, 2, 3, 5), 2, [[0, 0], [1, 2], [0, 1], [0, 0]]),
    call("nn.conv2d_transpose", F(2, 4, 5, 3), F(3, 2, 6, 3), N([2, 8, 10, 6]), [1, 2, 2, 1]),
    call("nn.conv2d_transpose", F(2, 4, 5, 3), F(2, 2, 6, 3), N([2, 8, 10, 6]), [1, 2, 2, 1], "VALID"),
    call("nn.conv2d_backprop_input", N([2, 8, 9, 3]), F(3, 2, 3, 5), F(2, 8, 9, 5), [1, 1, 1, 1], "SAME"),
    call("nn.conv2d_backprop_filter", F(2, 8, 9, 3), N([3, 2, 3, 5]), F(2, 8, 9, 5), [1, 1, 1, 1], "SAME"),
    call("nn.atrous_conv2d", F(2, 8, 9, 3), F(3, 2, 3, 5), 2, "SAME"),
    call("nn.atrous_conv2d", F(2, 8, 9, 3), F(3, 2, 3, 5), 2, "VALID"),
    call("nn.depthwise_conv2d", F(2, 8, 9, 3), F(3, 2, 3, 2), [1, 1, 1, 1], "SAME"),
    call("nn.depthwise_conv2d", F(2, 8, 9, 3), F(3, 2, 3, 2), [1, 1, 1, 1], "VALID", rate=[2, 2]),
    call("nn.depthwise_conv2d_native", F(2, 8, 9, 3), F(3, 2, 3, 2), [1, 2, 2, 1], "SAME"),
    call(
        "nn.depthwise_conv2d_native_backprop_input",
        N([2, 8, 9, 3]),
        F(3, 2, 3, 2),
        F(2, 8, 9, 6),
        [1, 1, 1, 1],
        "SAME",
    ),
    call(
        "nn.depthwise_conv2d_native_backprop_filter",
        F(2, 8, 9, 3),
        N([3, 2, 3, 2]),
        F(2, 8, 9, 6),
        [1, 1, 1, 1],
        "SAME",
    ),
    call("nn.separable_conv2d", F(2, 8, 9, 3), F(3, 2, 3, 2), F(1, 1, 6, 7), [1, 1, 1, 1], "SAME"),
    call("nn.max_pool", F(2, 8, 9, 3), [1, 2, 2, 1], [1, 2, 2, 1], "SAME"),
    call("nn.max_pool", F(2, 3, 8, 9), [1, 1, 3, 2], [1, 1, 2, 2], "VALID", data_format="NCHW"),
    call("nn.avg_pool", F(2, 8, 9, 3), [1, 3, 2, 1], [1, 2, 2, 1], "VALID"),
    call("nn.max_pool2d", F(2, 8, 9, 3), 2, 2, "VALID"),
    call("nn.avg_pool2d", F(2, 8, 9, 3), 2, 2, "SAME"),
    call("nn.bias_add", F(2, 8, 3), F(3)),
    call("nn.bias_add", F(2, 3, 8, 9), F(3), "NCHW"),
    call("nn.batch_normalization", F(2, 3), F(3), F(3), F(3), F(3), 1e-3),
    call("nn.batch_normalization", F(2, 3), F(3), F(3), None, None, 1e-3),
    call("nn.fused_batch_norm", F(2, 8, 9, 3), F(3), F(3)),
    call("nn.fused_batch_norm", F(2, 8, 9, 3), F(3), F(3), F(3), F(3), is_training=False),
    call("nn.fused_batch_norm", F(2, 3, 8, 9), F(3), F(3), data_format="NCHW"),
    call("nn.dropout", F(2, 3), rate=0.5),
    call("nn.dropout", F(2, 3), rate=0.5, noise_shape=N([2, 1])),
    call("nn.dropout", F(2, 3), 0.5),
    call("nn.embedding_lookup", F(7, 3), I(2, 5)),
    call("nn.embedding_lookup", [F(4, 3), F(3, 3)], I(2, 5)),
    call("nn.embedding_lookup", [F(4, 3), F(3, 3)], I(2, 5), "div"),
    call("nn.l2_normalize", F(2, 3), 1),
    call("nn.local_response_normalization", F(2, 4, 4, 6)),
    call("nn.log_poisson_loss", F(2, 3), F(2, 3)),
    call("nn.log_softmax", F(2, 3)),
    call("nn.softmax", F(2, 3)),
    call("nn.softmax", F(2, 3, 4), 1),
    call("nn.relu_layer", F(2, 3), F(3, 4), F(4)),
    call("nn.xw_plus_b", F(2, 3), F(3, 4), F(4)),
    call("nn.sigmoid_cross_entropy_with_logits", labels=F(2, 3), logits=F(2, 3)),
    call("nn.softmax_cross_entropy_with_logits", labels=F(2, 3), logits=F(2, 3)),
    call("nn.softmax_cross_entropy_with_logits_v2", F(2, 3, 4), F(2, 3, 4)),
    call("nn.softmax_cross_entropy_with_logits_v2", F(2, 3, 4), F(2, 3, 4), axis=1),
    call("nn.sparse_softmax_cross_entropy_with_logits", labels=I(2), logits=F(2, 3)),
    call("nn.sparse_softmax_cross_entropy_with_logits", labels=I(2, 4), logits=F(2, 4, 3)),
    call("nn.weighted_cross_entropy_with_logits", F(2, 3), F(2, 3), 2.0),
    call("losses.absolute_difference", F(2, 3), F(2, 3)),
    call("losses.mean_squared_error", F(2, 3), F(2, 3), F(2, 1)),
    call("losses.cosine_distance", F(2, 3), F(2, 3), 1),
    call("losses.hinge_loss", F(2, 3), F(2, 3)),
    call("losses.huber_loss", F(2, 3), F(2, 3)),
    call("losses.log_loss", F(2, 3), F(2, 3)),
    call("losses.sigmoid_cross_entropy", F(2, 3), F(2, 3)),
    call("losses.softmax_cross_entropy", F(2, 3), F(2, 3)),
    call("losses.softmax_cross_entropy", F(2, 3), F(2, 3), label_smoothing=0.1),
    call("losses.sparse_softmax_cross_entropy", I(2), F(2, 3)),
    call("losses.compute_weighted_loss", F(2, 3), F(2, 3)),
    call("losses.compute_weighted_loss", F(2, 3), F(2, 3), reduction="none"),
]

_IMAGES = [
    call("image.adjust_brightness", F(4, 6, 3), 0.1),
    call("image.adjust_contrast", F(4, 6, 3), 2.0),
    call("image.adjust_gamma", F(4, 6, 3), 0.5),
    call("image.central_crop", F(4, 6, 3), 0.5),
    call("image.central_crop", F(2, 4, 6, 3), 0.5),
    call("image.convert_image_dtype", U(4, 6, 3), "float32"),
    call("image.crop_and_resize", F(2, 4, 6, 3), F(5, 4), N([0, 1, 0, 1, 1]), N([2, 3])),
    call("image.crop_to_bounding_box", F(4, 6, 3), 1, 2, 2, 3),
    call("image.crop_to_bounding_box", F(2, 4, 6, 3), N(1), N(2), N(2), N(3)),
    call("image.pad_to_bounding_box", F(4, 6, 3), 1, 2, 8, 9),
    call("image.pad_to_bounding_box", F(2, 4, 6, 3), N(1), N(2), N(8), N(9)),
    call("image.resize_image_with_crop_or_pad", F(4, 6, 3), 8, 3),
    call("image.resize_image_with_crop_or_pad", F(2, 4, 6, 3), N(8), N(3)),
    call("image.flip_left_right", F(4, 6, 3)),
    call("image.flip_up_down", F(2, 4, 6, 3)),
    call("image.random_flip_left_right", F(4, 6, 3)),
    call("image.random_flip_up_down", F(2, 4, 6, 3)),
    call("image.random_brightness", F(4, 6, 3), 0.1),
    call("image.random_contrast", F(4, 6, 3), 0.1, 0.2),
    call("image.grayscale_to_rgb", F(4, 6, 1)),
    call("image.rgb_to_grayscale", F(4, 6, 3)),
    call("image.per_image_standardization", F(4, 6, 3)),
    call("image.resize_images", F(2, 4, 6, 3), N([8, 9])),
    call("image.resize_images", F(4, 6, 3), N([8, 9]), 1),
    call("image.resize_images", F(2, 4, 6, 3), [8, 9], preserve_aspect_ratio=True),
    call("image.resize_bilinear", F(2, 4, 6, 3), N([8, 9])),
    call("image.resize_nearest_neighbor", F(2, 4, 6, 3), N([8, 9])),
    call("image.resize_images", F(2, 4, 6, 3), N([8, 9]), 2),
    call("image.resize_bicubic", F(2, 4, 6, 3), N([8, 9])),
    call("image.resize_area", F(2, 4, 6, 3), N([8, 9])),
    call("image.resize_image_with_pad", F(2, 4, 6, 3), 8, 9),
    call("image.rgb_to_hsv", F(2, 4, 6, 3)),
    call("image.hsv_to_rgb", F(4, 6, 3)),
    call("image.adjust_hue", F(4, 6, 3), 0.1),
    call("image.adjust_saturation", F(2, 4, 6, 3), 0.5),
    call("image.random_hue", F(4, 6, 3), 0.1),
    call("image.random_saturation", F(4, 6, 3), 0.5, 2.0),
    call("image.transpose", F(2, 4, 6, 3)),
    call("image.rot90", F(4, 6, 3)),
    call("image.rot90", F(2, 4, 6, 3), 2),
    call("image.total_variation", F(2, 4, 6, 3)),
    call("image.sobel_edges", F(2, 4, 6, 3)),
    call("image.psnr", F(2, 4, 6, 3), F(2, 4, 6, 3), 1.0),
    call("image.decode_png", S()),
    call("image.decode_png", S(), 3),
    call("image.decode_jpeg", S(), 1),
    call("image.decode_bmp", S()),
    call("image.decode_gif", S()),
    call("image.decode_image", S(), 3),
    call("image.encode_png", U(4, 6, 3)),
    call("image.encode_jpeg", U(4, 6, 3)),
    call("image.extract_jpeg_shape", S()),
    call("image.is_jpeg", S()),
]

_STRINGS = [
    call("string_join", [S(2, 3), S(2, 3)], "-"),
    call("string_join", [S(), S(2, 3)]),
    call("string_split", S(4)),
    call("strings.split", S(4), ",", result_type="SparseTensor"),
    call("string_strip", S(2, 3)),
    call("string_to_hash_bucket", S(2, 3), 10),
    call("string_to_hash_bucket_fast", S(2, 3), 10),
    call("strings.to_hash_bucket_strong", S(2, 3), 10, [1, 2]),
    call("string_to_number", S(2, 3)),
    call("string_to_number", S(2, 3), "int32"),
    call("substr", S(2, 3), N(1), N(2)),
    call("substr", S(2, 3), I(2, 3), I(2, 3)),
    call("regex_replace", S(2, 3), "a", "b"),
    call("strings.regex_full_match", S(2, 3), "a"),
    call("strings.length", S(2, 3)),
    call("strings.lower", S(2, 3)),
    call("strings.upper", S(2, 3)),
    call("encode_base64", S(2, 3)),
    call("decode_base64", S(2, 3)),
    call("decode_raw", S(2, 3), "float32"),
    call("decode_csv", S(4), [[1.0], [2]]),
    call("read_file", S()),
    call("write_file", S(), S()),
    call("matching_files", S(2)),
    call("matching_files", "a*"),
]

_SPARSE = [
    call("sparse_add", Sparse((3, 4)), Sparse((3, 4))),
    call("sparse_add", Sparse((3, 4)), F(3, 4)),
    call("sparse_concat", 1, [Sparse((3, 4)), Sparse((3, 5))]),
    call("sparse.expand_dims", Sparse((3, 4)), 1),
    call("sparse_fill_empty_rows", Sparse((3, 4)), 1.0),
    call("sparse_maximum", Sparse((3, 4)), Sparse((3, 4))),
    call("sparse_minimum", Sparse((3, 4)), Sparse((3, 4))),
    call("sparse_merge", Sparse((3, 4), "int64"), Sparse((3, 4)), 10),
    call("sparse_reduce_sum", Sparse((3, 4)), N(1)),
    call("sparse_reduce_sum", Sparse((3, 4)), 1, keepdims=True),
    call("sparse_reduce_max", Sparse((3, 4))),
    call("sparse_reduce_sum_sparse", Sparse((3, 4)), 1),
    call("sparse_reduce_max_sparse", Sparse((3, 4)), 1),
    call("sparse_reorder", Sparse((3, 4))),
    call("sparse_reset_shape", Sparse((3, 4))),
    call("sparse_reset_shape", Sparse((3, 4)), N([5, 6])),
    call("sparse_reshape", Sparse((3, 4)), N([2, 6])),
    call("sparse_reshape", Sparse((3, 4)), N([2, -1])),
    call("sparse_retain", Sparse((3, 4)), B(5)),
    call("sparse_slice", Sparse((3, 4)), [0, 1], [2, 2]),
    call("sparse_softmax", Sparse((3, 4))),
    call("sparse_split", sp_input=Sparse((3, 4)), num_split=2, axis=1),
    call("sparse_tensor_dense_matmul", Sparse((3, 4)), F(4, 2)),
    call("sparse_tensor_dense_matmul", Sparse((3, 4)), F(3, 2), adjoint_a=True),
    call("sparse_tensor_to_dense", Sparse((3, 4))),
    call("sparse_to_dense", L(5, 2), Ints((3, 4), "int64"), F(5)),
    call("sparse_to_dense", I(5), N([7]), 1.0, 0.0),
    call("sparse_to_indicator", Sparse((3, 4), "int64"), 10),
    call("sparse_transpose", Sparse((3, 4))),
    call("sparse_transpose", Sparse((3, 4)), [1, 0]),
    call("sparse.eye", 3),
    call("sparse_placeholder", "float32", [3, None]),
    call("sparse_placeholder", "float32"),
    call("serialize_sparse", Sparse((3, 4))),
    call("serialize_many_sparse", Sparse((3, 4))),
    call("deserialize_many_sparse", S(2, 3), "float32"),
    call("deserialize_many_sparse", S(2, 3), "float32", 2),
    call("convert_to_tensor_or_sparse_tensor", Sparse((3, 4))),
    call("SparseTensor", L(5, 2), F(5), Ints((3, 4), "int64")),
    call("IndexedSlices", F(5, 2), I(5), N([7, 2])),
]

_STATE = [
    call("Variable", [1.0, 2.0]),
    call("get_variable", "v", [2, 3]),
    call("get_variable", "v", initializer=[1.0, 2.0]),
    call("get_local_variable", "v", [2, 3]),
    call("assign", Var((2, 3)), F(2, 3)),
    call("assign_add", Var((2, 3)), F(2, 3)),
    call("assign_sub", Var((2, 3)), F(2, 3)),
    call("count_up_to", Var((), "int32"), 3),
    *(
        call(f"scatter_{kind}", Var((4, 3)), I(2), F(2, 3))
        for kind in ("add", "div", "max", "min", "mul", "sub", "update")
    ),
    call("scatter_nd_add", Var((4, 3)), I(2, 1), F(2, 3)),
    call("scatter_nd_sub", Var((4, 3)), I(2, 1), F(2, 3)),
    call("scatter_nd_update", Var((4, 3)), I(2, 1), F(2, 3)),
    call("is_variable_initialized", Var((2, 3))),
    call("variables_initializer", [Var((2, 3))]),
    call("report_uninitialized_variables", [Var((2, 3))]),
    call("gather", Var((4, 3)), I(2)),
    call("gather_nd", Var((4, 3)), I(2, 1)),
    call("nn.embedding_lookup", Var((4, 3)), I(2)),
]

_TRAINING = [
    *(
        call(f"train.{name}", 0.1, N(5), 10, 0.5)
        for name in ("exponential_decay", "inverse_time_decay", "natural_exp_decay")
    ),
    call("train.cosine_decay", 0.1, N(5), 10),
    call("train.cosine_decay_restarts", 0.1, N(5), 10),
    call("train.linear_cosine_decay", 0.1, N(5), 10),
    call("train.noisy_linear_cosine_decay", 0.1, N(5), 10),
    call("train.polynomial_decay", 0.1, N(5), 10),
    call("train.piecewise_constant", N(5), [1, 2], [0.1, 0.2, 0.3]),
    call("train.batch", [F(2, 3)], 4),
    call("train.batch", [F(5, 3)], 4, enqueue_many=True),
    call("train.batch", [F(2, 3)], 4, allow_smaller_final_batch=True),
    call("train.shuffle_batch", [F(2, 3)], 4, 50, 10),
    call("train.batch_join", [[F(2, 3)], [F(2, 3)]], 4),
    call("train.shuffle_batch_join", [[F(2, 3)], [F(2, 3)]], 4, 50, 10),
    call("train.limit_epochs", F(2, 3), 2),
    call("train.assert_global_step", Var((), "int64")),
]

TABLE: Sequence[Call] = (
    *_ELEMENTWISE,
    *_ARRAY,
    *_REDUCTIONS,
    *_MATRIX,
    *_NN,
    *_IMAGES,
    *_STRINGS,
    *_SPARSE,
    *_STATE,
    *_TRAINING,
)
