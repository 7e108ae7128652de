"""Arithmetic: known facts and accuracy, gradients that TensorFlow lacks by finite differences, error messages."""

from __future__ import annotations

import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

import aioflow as af
from aioflow.compiler.prune import StepRequest, prune
from aioflow.errors import DTypeError, InvalidArgumentError, UnimplementedError
from aioflow.graph.gradient_registry import GRADIENTS
from aioflow.graph.opdef import OPS
from aioflow.kernels.registry import KERNELS
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.bind import bind_graph
from aioflow.runtime.device import host
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients
from tests.support.dense import dense

RNG = np.random.default_rng(5)
EPSILON: dict[Any, float] = {np.float16: 2**-10, ml_dtypes.bfloat16: 2**-7, np.float32: 2**-23, np.float64: 2**-52}
FLOATS = list(EPSILON)


def value(tensor: Any, feeds: Any = None) -> Any:
    return evaluate([tensor], feeds)[0]


def op(name: str, **attrs: Any) -> Callable[..., Any]:
    return lambda *xs: af.extend.make(name, *xs, **attrs)


def between(low: float, high: float, shape: tuple[int, ...] = (2, 3)) -> Any:
    return RNG.uniform(low, high, shape)


# ── gradients ────────────────────────────────────────────────────────────────────────────────────────────────────────

UNARY = ["Neg", "Square", "Exp", "Expm1", "Sin", "Cos", "Sinh", "Cosh", "Tanh", "Sigmoid", "Asinh", "Atan", "Erf"]
UNARY += ["Erfc", "Abs", "Sign", "Reciprocal", "Inv", "Sqrt", "Rsqrt", "Log", "Lgamma", "Digamma", "Asin", "Acos"]
UNARY += ["Atanh", "Erfinv", "Log1p", "Tan", "Acosh", "Ndtri"]
BINARY = ["Add", "AddV2", "Sub", "Mul", "SquaredDifference", "Atan2", "Maximum", "Minimum", "Div", "RealDiv"]
BINARY += ["DivNoNan", "MulNoNan", "Xdivy", "Pow", "Xlogy", "Xlog1py", "FloorMod", "Mod", "TruncateMod"]
RESULT_GRADS = ["SqrtGrad", "RsqrtGrad", "ReciprocalGrad", "InvGrad", "TanhGrad", "SigmoidGrad"]


@pytest.mark.parametrize("build", [af.igamma, af.igammac])
def test_gradient_of_incomplete_gamma_functions(build: Any) -> None:
    for a, x in ((between(0.3, 4, (2, 3)), between(0.3, 6, (3,))), (between(5, 40, (3, 1)), between(5, 40, (4,)))):
        check_gradients(build, a, x)
    check_gradients(lambda x: af.gradients(build(2.5, x), x)[0], between(0.5, 4))


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3), (2, 3)), ((), (2, 3), ()), ((2, 3), (), ()), ((), (), (2, 3))])
def test_gradient_of_the_incomplete_beta_function(shapes: Any) -> None:
    a, b, x = (between(low, high, s) for (low, high), s in zip(((0.5, 4), (0.5, 4), (0.2, 0.8)), shapes, strict=True))
    check_gradients(lambda x: af.betainc(a, b, x), x)
    with af.Graph().as_default():
        p, q, x = (af.placeholder("float64", s) for s in shapes)
        assert af.gradients(af.betainc(p, q, x), [p, q]) == [None, None]


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (3,)), ((), (2, 3)), ((1, 3), ())])
@pytest.mark.parametrize("name", ["Mod", "TruncateMod"])
def test_gradient_of_truncating_remainders(name: str, shapes: Any) -> None:
    x, y = (between(2.1, 2.9, s) for s in shapes)
    # The factor keeps x / y away from whole numbers, at which the remainder jumps.
    check_gradients(op(name), x * 3, y)


def test_second_derivative_of_digamma() -> None:
    check_gradients(lambda x: af.gradients(af.digamma(x), x)[0], between(0.5, 0.9), rtol=1e-4)


def parts(z: Any) -> list[Any]:
    return [af.real(z), af.imag(z), af.abs(z), af.angle(z)]


@pytest.mark.parametrize("name", ["MulNoNan", "Xdivy", "Xlogy"])
def test_gradient_of_two_complex_operands(name: str) -> None:
    values = [between(0.4, 1.5, s) for s in ((2, 3), (2, 3), (3,), (3,))]
    check_gradients(lambda a, b, c, d: parts(af.extend.make(name, af.complex(a, b), af.complex(c, d))), *values)


def test_gradient_of_casts_to_complex() -> None:
    check_gradients(lambda a: af.real(af.cast(af.cast(a, "complex128") * (1 + 2j), "complex128")), between(-1, 1))


def test_ops_have_kernels_and_gradient_entries() -> None:
    names = {*UNARY, *BINARY, *RESULT_GRADS, "AddN", "Cast", "Complex", "Real", "Imag", "Angle", "ComplexAbs", "Conj"}
    names |= {
        "Floor",
        "Ceil",
        "Rint",
        "Round",
        "Polygamma",
        "Zeta",
        "Igamma",
        "Igammac",
        "Betainc",
        "NextAfter",
        "FloorDiv",
        "TruncateDiv",
    }
    names |= {"BitwiseAnd", "LeftShift", "Invert", "CheckNumerics", "BroadcastGradientArgs", "BroadcastArgs"}
    for name in names:
        assert name in OPS
        assert KERNELS.for_op(name), name
        assert name in GRADIENTS, name


# ── nodes of gradients ───────────────────────────────────────────────────────────────────────────────────────────────


def nodes_of_gradient(build: Callable[..., Any], *shapes: Any) -> Counter[str]:
    with af.Graph().as_default() as graph:
        xs = [af.placeholder("float32", s) for s in shapes]
        y = build(*xs)
        seed = af.placeholder("float32", y.shape)
        before = len(graph.get_operations())
        af.gradients(y, xs, grad_ys=seed)
        return Counter(o.type for o in graph.get_operations()[before:])


def test_gradients_of_equal_shapes_need_no_reductions() -> None:
    assert not nodes_of_gradient(lambda x, y: x + y, (3, 4), (3, 4))
    assert nodes_of_gradient(lambda x, y: x * y, (3, 4), (3, 4)) == {"Mul": 2}
    assert nodes_of_gradient(lambda x, y: x - y, (3, 4), (3, 4)) == {"Neg": 1}
    assert nodes_of_gradient(lambda x, y: x / y, (3, 4), (3, 4)) == {"RealDiv": 2, "Mul": 1, "Neg": 1}
    assert not nodes_of_gradient(lambda x: x + x, (None, 4)) - Counter({"AddN": 1})


def test_gradient_of_a_bias_is_one_sum() -> None:
    assert nodes_of_gradient(lambda x, b: x + b, (None, 4), (4,)) == {"Sum": 1, "Const": 1}
    assert nodes_of_gradient(lambda x, b: x + b, (3, 4), (1, 4)) == {"Sum": 1, "Const": 1}
    assert nodes_of_gradient(lambda x, b: x + b, None, ())["BroadcastGradientArgs"] == 1
    assert nodes_of_gradient(lambda x, b: x + b, (5, 3, 4), (3, 1)) == {"Sum": 2, "Const": 2}


def test_gradients_of_unknown_shapes_reduce_at_run_time() -> None:
    dynamic = nodes_of_gradient(lambda x, y: x + y, (None, 4), (None, 4))
    assert dynamic == {"Shape": 2, "BroadcastGradientArgs": 1, "Sum": 2, "Reshape": 2}
    with af.Graph().as_default():
        x, y = af.placeholder("float64", [None, None]), af.placeholder("float64")
        grads = [af.convert_to_tensor(g) for g in dense(af.gradients(x * y, [x, y]))]
        a, b = np.ones((1, 3)), np.full((2, 4, 1), 2.0)
        found = evaluate(grads, {x: a, y: b})
    assert [f.shape for f in found] == [(1, 3), (2, 4, 1)]
    assert found[0].tolist() == [[16.0, 16.0, 16.0]]
    assert found[1].ravel().tolist() == [3.0] * 8


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [*FLOATS, np.int8, np.uint8, np.int32, np.uint64, np.complex64])
def test_results_have_the_dtype_of_the_operands(dtype: Any) -> None:
    x = np.array([1, 2, 3]).astype(dtype)
    for build in (af.add, af.subtract, af.multiply):
        for y in (x, x[0], np.asarray(x[0])):
            assert value(build(x, y)).dtype == dtype
            assert value(build(y, y)).dtype == dtype


@pytest.mark.parametrize("dtype", FLOATS)
def test_fused_functions_keep_the_dtype(dtype: Any) -> None:
    x = np.array([0.25, 0.5, 0.75]).astype(dtype)
    for name in (*RESULT_GRADS, "SquaredDifference", "DivNoNan", "MulNoNan", "Xdivy", "Xlogy", "Xlog1py"):
        wide = value(af.extend.make(name, x.astype(np.float64), x.astype(np.float64)))
        for y in (x, x[1], np.asarray(x[1])):
            result = value(af.extend.make(name, y, y))
            assert (result.dtype, result.shape) == (dtype, y.shape)
        np.testing.assert_allclose(value(af.extend.make(name, x, x)).astype(float), wide, rtol=4 * EPSILON[dtype])
    for name in ("Sigmoid", "Rsqrt", "Erf", "Erfc", "Lgamma", "Digamma", "Erfinv", "Ndtri"):
        assert value(af.extend.make(name, x)).dtype == dtype
        assert value(af.extend.make(name, x[0])).shape == ()


OUT = sorted({k.op for k in KERNELS if k.takes_out} & {*UNARY, *BINARY, *RESULT_GRADS})
OUT += ["Pow:2", "Pow:3", "Pow:4", "Pow:-2"]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", OUT)
def test_kernels_write_into_any_operand(name: str, dtype: Any) -> None:
    # The contract of `takes_out`: `out` may be any of the operands.
    op_type, _, exponent = name.partition(":")
    count = len(OPS.get(op_type).inputs)
    operands = [between(0.2, 0.9, (7,)).astype(dtype) for _ in range(1 if exponent else count)]
    with af.Graph().as_default():
        xs = [af.placeholder(af.as_dtype(dtype), [7]) for _ in operands]
        y = af.extend.make(op_type, *xs, *([float(exponent)] if exponent else []))
        expected = value(y, dict(zip(xs, operands, strict=True)))
        graph = prune(StepRequest(tuple(xs), (y,), ()))
    (bound,) = (b for b in bind_graph(graph, host(), ResourceManager(), {}) if b.node.op == op_type)
    for shared in range(len(operands)):
        copies = [x.copy() for x in operands]
        given = [*copies, np.asarray(float(exponent), dtype)] if exponent else copies
        with np.errstate(all="ignore"):
            result = bound.call(*given, out=copies[shared])
        assert result is copies[shared]
        np.testing.assert_array_equal(result.astype(np.float32), expected.astype(np.float32))


def test_sigmoid_does_not_overflow() -> None:
    x = np.array([-1000.0, -50.0, 0.0, 50.0, 1000.0, np.inf, -np.inf, np.nan], np.float32)
    result = value(af.sigmoid(x))
    np.testing.assert_allclose(result, [0, math.exp(-50), 0.5, 1, 1, 1, 0, np.nan], rtol=1e-6)


@pytest.mark.parametrize("exponent", [2, 3, 4, 1, 0.5, -0.5, -1, -2, 0, 5, 1.5])
@pytest.mark.parametrize("dtype", [*FLOATS, np.complex64])
def test_powers_with_a_constant_exponent(exponent: float, dtype: Any) -> None:
    x = np.array([0.5, 1.0, 2.0, 4.0]).astype(dtype)
    expected = x.astype(np.complex128 if dtype is np.complex64 else np.float64) ** exponent
    for y in (x, x[2], np.asarray(x[2])):
        result = value(af.constant(y) ** exponent)
        assert (result.dtype, result.shape) == (dtype, y.shape)
    np.testing.assert_allclose(value(af.constant(x) ** exponent).astype(expected.dtype), expected, rtol=1e-2)


def test_power_of_one_does_not_alias_its_input() -> None:
    x = af.placeholder("float32", [2])
    fed = np.ones(2, np.float32)
    assert not np.shares_memory(value(x**1, {x: fed}), fed)


def test_integer_powers_reject_negative_exponents() -> None:
    x, y = af.placeholder("int32"), af.placeholder("int32")
    assert value(x**y, {x: [2, 3, -2], y: [10, 0, 3]}).tolist() == [1024, 1, -8]
    assert value(x**2, {x: [2, 3, -2]}).tolist() == [4, 9, 4]
    with pytest.raises(InvalidArgumentError) as caught:
        value(af.pow(x, y, name="power"), {x: [2, 2], y: [1, -3]})
    assert caught.value.node is not None
    assert caught.value.node.startswith("power")
    assert caught.value.actual == -3
    with pytest.raises(InvalidArgumentError):
        value(x**-1, {x: 2})


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_integer_division_of_every_sign(dtype: Any) -> None:
    x = np.array([7, -7, 7, -7, 6, 0]).astype(dtype)
    y = np.array([2, 2, -2, -2, 3, 5]).astype(dtype)
    assert value(af.floordiv(x, y)).tolist() == [3, -4, -4, 3, 2, 0]
    assert value(af.floormod(x, y)).tolist() == [1, 1, -1, -1, 0, 0]
    assert value(af.truncatediv(x, y)).tolist() == [3, -3, -3, 3, 2, 0]
    assert value(af.div(x, y)).tolist() == [3, -4, -4, 3, 2, 0]
    if dtype in (np.int32, np.int64):
        assert value(af.truncatemod(x, y)).tolist() == [1, -1, 1, -1, 0, 0]
    least = np.array(np.iinfo(dtype).min)
    assert value(af.truncatediv(least, dtype(1))) == least


DIVISIONS = ["FloorDiv", "FloorMod", "TruncateDiv", "Div", "TruncateMod", "Mod"]


@pytest.mark.parametrize("name", DIVISIONS)
def test_integer_division_by_zero_is_an_error_at_the_node(name: str) -> None:
    x, y = af.placeholder("int32"), af.placeholder("int32")
    z = af.extend.make(name, x, y, name="quotient")
    with pytest.raises(InvalidArgumentError, match="division by zero") as caught:
        value(z, {x: [1, 2], y: [1, 0]})
    assert caught.value.node == z.op.name
    with pytest.raises(InvalidArgumentError, match="division by zero"):
        value(z, {x: 1, y: 0})
    with pytest.raises(InvalidArgumentError, match="division by zero"):
        value(af.extend.make(name, x, 0), {x: [1]})
    assert value(z, {x: np.zeros(0, np.int32), y: 0}).shape == (0,)  # nothing was divided


def test_reciprocal_of_zero_without_nan_is_zero() -> None:
    assert value(af.math.reciprocal_no_nan([0.0, 2.0])).tolist() == [0.0, 0.5]


@pytest.mark.parametrize(
    ("source", "target"),
    [("int8", "float32"), ("uint16", "float32"), ("int32", "float64"), ("uint64", "float64"), ("float16", "float16")],
)
def test_true_division_of_integers(source: str, target: str) -> None:
    x = af.constant([7, 1], source)
    assert (x / 2).dtype.name == af.truediv(x, 2).dtype.name == af.divide(x, 2).dtype.name == target
    assert value(x / 2).tolist() == [3.5, 0.5]


def test_division_of_bools_is_refused() -> None:
    with pytest.raises(DTypeError):
        af.divide(af.constant(True), af.constant(True))


def test_python_values_take_the_dtype_of_the_tensor() -> None:
    for dtype in ("float16", "float32", "float64", "int64", "uint8"):
        x = af.constant([1, 2], dtype)
        for y in (x + 1, 1 + x, x * 2, x - 1, x // 1, x % 2, 2 - x, x + np.array([1, 2])):
            assert y.dtype.name == dtype
    with pytest.raises(DTypeError):
        af.constant(1) + 1.5
    with pytest.raises(DTypeError):
        af.constant(1.0) + af.constant(1)


def test_operators_name_their_nodes() -> None:
    with af.Graph().as_default():
        x = af.constant([2.0], name="x")
        names = [y.op.name for y in (x + 1, x - 1, x * 2, x / 2, x // 2, x % 2, x**2, -x, abs(x), x < 1)]
    assert names == ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "Neg", "Abs", "Less"]


def test_rounding_leaves_integers_as_they_are() -> None:
    integers = af.constant([1, 2])
    assert af.round(integers) is integers
    assert value(af.extend.make("Round", integers)).tolist() == [1, 2]


def test_sums() -> None:
    xs = [np.full((2, 2), i, np.float32) for i in range(1, 5)]
    kept = [x.copy() for x in xs]
    assert value(af.add_n(xs)).tolist() == [[10, 10], [10, 10]]
    assert all(np.array_equal(a, b) for a, b in zip(xs, kept, strict=True))
    one = af.constant(3.0)
    assert af.add_n([one]) is one
    assert af.add_n([one], name="copy").op.type == "Identity"
    assert value(af.extend.make("AddN", [one])) == 3.0
    assert value(af.add_n([1, 2, 3])) == 6
    with pytest.raises(InvalidArgumentError):
        af.add_n([])
    with pytest.raises(InvalidArgumentError):
        af.add_n([np.zeros(2), np.zeros(3)])
    with pytest.raises(InvalidArgumentError):
        af.accumulate_n([np.zeros(2)], shape=[3])
    x = af.placeholder("float32")
    with pytest.raises(InvalidArgumentError) as caught:
        value(af.add_n([x, af.constant([1.0, 2.0])]), {x: 1.0})
    assert (caught.value.expected, caught.value.actual) == ((), (2,))


def test_scaling_and_clipping() -> None:
    assert value(af.clip_by_value([-3.0, 0.5, 3.0], -1, 1)).tolist() == [-1, 0.5, 1]
    assert value(af.clip_by_value([[1, 5], [9, 3]], [2, 2], 6)).tolist() == [[2, 5], [6, 3]]
    with pytest.raises(InvalidArgumentError):
        af.clip_by_value(np.zeros(3), np.zeros((2, 3)), 1.0)
    with pytest.raises(InvalidArgumentError, match="scalar"):
        af.scalar_mul([1.0, 2.0], [1.0, 2.0])
    with af.Graph().as_default():
        slices = af.IndexedSlices(af.constant([[2.0]]), af.constant([4]))
        scaled, clipped = af.scalar_mul(3.0, slices), af.clip_by_value(slices, 0.0, 1.0)
        assert value(scaled.values).tolist() == [[6.0]]
        assert value(clipped.values).tolist() == [[1.0]]
        assert scaled.indices is slices.indices


def test_shapes_that_cannot_be_broadcast_are_refused() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        af.add(np.zeros((2, 3)), np.zeros(2), name="sum")
    assert caught.value.node == "sum"
    x = af.placeholder("float64")
    with pytest.raises(InvalidArgumentError) as caught:
        value(x + np.zeros(2), {x: np.zeros(3)})
    assert caught.value.node is not None
    assert __file__ in str(caught.value.source)


# ── casts and complex numbers ────────────────────────────────────────────────────────────────────────────────────────


def test_casts() -> None:
    x = np.array([-1.9, 0.0, 2.9], np.float32)
    assert value(af.cast(x, "int32")).tolist() == [-1, 0, 2]
    assert value(af.cast(x, bool)).tolist() == [True, False, True]
    assert value(af.cast([True, False], ml_dtypes.bfloat16)).astype(float).tolist() == [1.0, 0.0]
    assert value(af.cast(np.array([1 + 2j]), "float32")).tolist() == [1.0]
    assert value(af.cast(np.complex64(2 + 1j), "int8")).dtype == np.int8
    tensor = af.constant(1.0)
    assert af.cast(tensor, "float32") is tensor
    assert value(af.to_int64(2.9)).dtype == np.int64
    with pytest.raises(DTypeError):
        af.cast(tensor, "float99")


def test_truncating_cast_rounds_towards_zero() -> None:
    x = np.array([0.1, -0.1, 1 / 3, 1.0, np.inf, 1e300])
    result = value(af.extend.make("Cast", x, DstT="float32", Truncate=True))
    assert result.dtype == np.float32
    assert np.all(np.abs(result[:4].astype(float)) <= np.abs(x[:4]))
    np.testing.assert_allclose(result[:4], x[:4], rtol=2e-7)


@pytest.mark.parametrize("target", ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16"])
@pytest.mark.parametrize("source", ["float16", "float32", "float64", "int64", "uint64", "bfloat16"])
def test_saturating_casts_stay_within_the_dtype(source: str, target: str) -> None:
    kind, limits = af.as_dtype(source), af.as_dtype(target)
    x = np.array([kind.min, 0, kind.max], kind.np_dtype)
    low, zero, high = (float(v) for v in value(af.saturate_cast(x, target)))
    assert float(limits.min) <= low <= zero == 0 <= high <= float(limits.max)
    assert high >= min(float(kind.max), float(limits.max)) * 0.99
    assert low <= max(float(kind.min), float(limits.min)) * 0.99


def test_complex_numbers() -> None:
    z = af.complex(np.array([[3.0], [0.0]]), np.array([4.0, -1.0]))
    assert z.dtype.name == "complex128"
    assert value(z).tolist() == [[3 + 4j, 3 - 1j], [4j, -1j]]
    assert value(af.abs(z))[0, 0] == 5
    assert value(af.real(z)).tolist() == [[3, 3], [0, 0]]
    assert value(af.imag(z)).tolist() == [[4, -1], [4, -1]]
    assert value(af.conj(z)).tolist() == [[3 - 4j, 3 + 1j], [-4j, 1j]]
    np.testing.assert_allclose(value(af.angle(z))[1], [np.pi / 2, -np.pi / 2])
    assert value(af.complex(1.0, 2.0)) == 1 + 2j
    x = af.constant([-1.0, 2.0])
    assert af.real(x) is x
    assert af.conj(x) is x
    assert value(af.imag(x)).tolist() == [0, 0]
    np.testing.assert_allclose(value(af.angle(x)), [np.pi, 0])
    with pytest.raises(DTypeError):
        af.complex(1, 2)
    for refused in (af.real, af.imag, af.conj, af.angle):
        with pytest.raises(DTypeError):
            refused(af.constant("a"))


# ── bits ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [np.int8, np.int32])
def test_a_negative_shift_changes_nothing(dtype: Any) -> None:
    x = np.array([0, 5, 100]).astype(dtype)
    assert np.array_equal(value(af.bitwise.left_shift(x, dtype(-1))), x)


# ── special functions ────────────────────────────────────────────────────────────────────────────────────────────────


def test_error_function() -> None:
    x = np.concatenate([np.linspace(-6, 6, 241), [26.0, -0.0]])
    np.testing.assert_allclose(value(af.erf(x)), [math.erf(v) for v in x], rtol=2e-15)
    np.testing.assert_allclose(value(af.erfc(x)), [math.erfc(v) for v in x], rtol=5e-15)
    assert value(af.erf([np.inf, -np.inf])).tolist() == [1, -1]
    assert value(af.erfc([np.inf, -np.inf])).tolist() == [0, 2]
    assert np.isnan(value(af.erf(np.nan)))


def test_quantiles() -> None:
    p = np.concatenate([np.linspace(0.001, 0.999, 99), [1e-300, 1e-20, 1 - 1e-12]])
    normal = statistics.NormalDist()
    np.testing.assert_allclose(value(af.math.ndtri(p)), [normal.inv_cdf(v) for v in p], rtol=1e-14, atol=1e-15)
    x = np.concatenate([np.linspace(-0.999, 0.999, 99), [1e-12, -1e-300, 1 - 1e-14]])
    back = np.array([math.erf(v) for v in value(af.math.erfinv(x))])
    np.testing.assert_allclose(back, x, rtol=1e-14, atol=1e-16)
    np.testing.assert_array_equal(value(af.math.ndtri(np.array([0.0, 1.0, -1.0]))), [-np.inf, np.inf, np.nan])
    np.testing.assert_array_equal(value(af.math.erfinv(np.array([-1.0, 1.0, 2.0]))), [-np.inf, np.inf, np.nan])
    np.testing.assert_allclose(value(af.math.erfcinv(np.array([1.5]))), -value(af.math.erfinv(np.array([0.5]))))


def test_gamma() -> None:
    x = np.concatenate([np.linspace(0.05, 30, 200), [-0.5, -3.7, 1e-8, 1e10]])
    np.testing.assert_allclose(value(af.lgamma(x)), [math.lgamma(v) for v in x], rtol=1e-13, atol=1e-14)
    assert value(af.lgamma(np.array([0.0, -1.0, np.inf, -np.inf]))).tolist() == [np.inf] * 4
    euler = 0.57721566490153286
    found = value(af.digamma(np.array([1.0, 2.0, 0.5, -0.5])))
    np.testing.assert_allclose(found, [-euler, 1 - euler, -euler - 2 * math.log(2), 0.03648997397857652], rtol=1e-12)
    np.testing.assert_allclose(value(af.zeta(np.array([2.0, 4.0]), 1.0)), [math.pi**2 / 6, math.pi**4 / 90], rtol=1e-14)
    order = np.array([0.0, 1.0, 1.5, -1.0])
    np.testing.assert_allclose(value(af.polygamma(order, 1.0)), [-euler, math.pi**2 / 6, np.nan, np.nan], rtol=1e-13)
    poles = value(af.zeta(np.array([1.0, 0.5, 2.0]), np.array([1.0, 1.0, -3.0])))
    np.testing.assert_array_equal(poles, [np.inf, np.nan, np.inf])


def test_incomplete_functions() -> None:
    # For integer parameters these functions are sums of Poisson and binomial probabilities.
    n, x = np.arange(1, 40)[:, None], np.linspace(0.1, 60, 50)
    few = np.array([[math.fsum(math.exp(k * math.log(v) - v - math.lgamma(k + 1)) for k in range(m)) for v in x]
                    for m in range(1, 40)])  # fmt: skip
    np.testing.assert_allclose(value(af.igammac(n.astype(float), x)), few, rtol=1e-12)
    np.testing.assert_allclose(value(af.igamma(n.astype(float), x)), 1 - few, rtol=1e-9, atol=1e-14)
    p = np.linspace(0, 1, 21)
    most = [math.fsum(math.comb(9, k) * v**k * (1 - v) ** (9 - k) for k in range(4, 10)) for v in p]
    np.testing.assert_allclose(value(af.betainc(np.float64(4), np.float64(6), p)), most, rtol=1e-12)
    half = np.array(0.5, np.float32)
    assert value(af.igamma(half, half)).dtype == value(af.betainc(half, half, half)).dtype == np.float32


def test_the_incomplete_beta_function_does_not_broadcast() -> None:
    with pytest.raises(InvalidArgumentError, match="compatible"):
        af.betainc(np.ones((2, 3)), np.ones(3), np.ones(()))
    a, b = af.placeholder("float64"), af.placeholder("float64")
    with pytest.raises(InvalidArgumentError, match="differ in shape"):
        value(af.betainc(a, b, a), {a: np.ones((2, 3)), b: np.ones(3)})


@pytest.mark.parametrize("a", [1e-3, 0.5, 3.0, 200.0, 3e4, 9.9e4, 1.1e5, 1e7])
def test_random_gamma_grad_matches_differences_of_the_inverse(a: float) -> None:
    # RandomGammaGrad is the derivative by a of the inverse of igamma. It is compared with finite differences of the
    # inverse, on both sides of the median and far from it.
    probability = np.array([1e-9, 0.01, 0.3, 0.49])
    for inverse, function in ((special.gammaincinv, special.gammainc), (special.gammainccinv, special.gammaincc)):
        x = inverse(a, probability)
        known, step = function(a, x), 1e-4 * a
        expected = (inverse(a + step, known) - inverse(a - step, known)) / (2 * step)
        inside = x > 1e-200  # at 0 the inverse has no slope to compare
        found = value(af.extend.make("RandomGammaGrad", np.full(4, a), x))
        np.testing.assert_allclose(found[inside], expected[inside], rtol=1e-3 if a < 0.1 else 1e-5)


@pytest.mark.parametrize("a", [0.5, 30.0, 2e5])
def test_igamma_grad_does_not_depend_on_other_elements(a: float) -> None:
    orders = np.concatenate([[a], np.geomspace(1e-3, 9e4, 30)])
    x = orders * 1.001
    together = value(af.extend.make("IgammaGradA", orders, x))
    np.testing.assert_allclose(value(af.extend.make("IgammaGradA", orders[0], x[0])), together[0], rtol=1e-13)


@pytest.mark.parametrize("a", [0.5, 2.0])
def test_random_gamma_grad_does_not_depend_on_other_elements(a: float) -> None:
    # Elements converge after different numbers of iterations, which must not change the others.
    x = np.random.default_rng(0).gamma(a, size=5000)
    together = value(af.extend.make("RandomGammaGrad", np.full(5000, a), x))
    some = np.argsort(x)[-1000::20]
    alone = [value(af.extend.make("RandomGammaGrad", np.float64(a), one)) for one in x[some]]
    np.testing.assert_allclose(together[some], alone, rtol=1e-14)


async def test_missing_scipy_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    x = af.placeholder("float64", [])
    async with af.Session() as session:
        for tensor in (af.igamma(1.0, x), af.igammac(x, 2.0), af.betainc(x, x, x), af.igamma(2.0, 3.0)):
            with pytest.raises(UnimplementedError, match=r"pip install 'aioflow-engine\[special\]'"):
                await session.run(tensor, {x: 0.5})
        (slope,) = dense(af.gradients(af.igamma(2.0, x), x, 1.0))  # needs no SciPy
        assert await session.run(slope, {x: 0.5}) == pytest.approx(0.5 * math.exp(-0.5))


def test_zero_factors_hide_infinities_and_nan() -> None:
    zero, bad = np.zeros(3), np.array([0.0, np.inf, np.nan])
    for name in ("xdivy", "xlogy", "xlog1py"):
        assert value(getattr(af.math, name)(zero, bad)).tolist() == [0, 0, 0]
    assert value(af.math.multiply_no_nan(bad, zero)).tolist() == [0, 0, 0]


# ── infinite slopes ──


@pytest.mark.parametrize(
    "build",
    [
        af.sqrt,
        af.rsqrt,
        af.reciprocal,
        lambda x: af.norm(af.stack([x, x], 1), axis=1),
        lambda x: af.math.reduce_std(af.stack([x, af.zeros([3])], 1), 1),
    ],
)
def test_zero_gradient_stays_zero_at_an_infinite_slope(build: Any) -> None:
    # Typical case: a mask over rows whose norm is 0.
    x = af.placeholder("float32", [3])
    (grad,) = af.gradients(af.where([True, False, True], build(x), af.zeros([3])), x)
    found = value(grad, {x: [4.0, 0.0, 9.0]})
    assert found[1] == 0
    assert np.isfinite(found).all()


def test_gradients_of_square_and_quotient_are_finite_if_slopes_overflow() -> None:
    x, y = af.placeholder("float16", []), af.placeholder("float16", [])
    found = evaluate(
        dense(af.gradients(af.squared_difference(x, y), [x, y], grad_ys=np.float16(0.25))), {x: 4e4, y: 0.0}
    )
    np.testing.assert_allclose(found, [2e4, -2e4], rtol=2e-3)
    found = evaluate(dense(af.gradients(x / y, [y], grad_ys=np.float16(1000))), {x: 0.0, y: 2.0**-10})
    assert found == [0.0]


# ── check_numerics ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("bad", "kinds"), [([np.nan], "NaN"), ([-np.inf], "Inf"), ([np.inf, np.nan], "Inf and NaN"), (np.nan, "NaN")]
)
def test_check_numerics_error_names_the_node_and_the_kind(bad: Any, kinds: str) -> None:
    x = af.placeholder("float32")
    y = af.check_numerics(x, "the weights", name="guard")
    assert value(y, {x: [1.0, 2.0]}).tolist() == [1, 2]
    with pytest.raises(InvalidArgumentError) as caught:
        value(y, {x: bad})
    assert caught.value.node == y.op.name
    assert caught.value.message == f"the weights : Tensor had {kinds} values"
    assert caught.value.actual == kinds


def test_gradient_of_check_numerics_is_checked() -> None:
    x = af.placeholder("float32", [1])
    grad = af.gradients(af.sqrt(af.check_numerics(x, "x")), x)[0]
    with pytest.raises(InvalidArgumentError, match="gradient"):
        value(grad, {x: [0.0]})


def test_verify_tensor_all_finite() -> None:
    assert value(af.verify_tensor_all_finite(x=1.0, message="m")) == 1
    with pytest.raises(InvalidArgumentError):
        af.verify_tensor_all_finite(msg="m")


# ── shapes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_broadcast_shapes() -> None:
    assert af.broadcast_static_shape([None, 1], [3]).as_list() == [None, 3]
    assert value(af.broadcast_dynamic_shape([2, 1], [3])).tolist() == [2, 3]
    with pytest.raises(InvalidArgumentError):
        af.broadcast_static_shape([2], [3])
    with pytest.raises(InvalidArgumentError):
        value(af.broadcast_dynamic_shape([2], [3]))
