"""Arithmetic and elementwise functions against TensorFlow: values, dtypes, static shapes and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

RNG = np.random.default_rng(20)
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
TOLERANCE = {"float16": 1e-2, "bfloat16": 3e-2, "float32": 2e-5, "complex64": 2e-5}

# Pairs of shapes: equal, each kind of broadcasting, scalars, size one, empty.
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((4,), (3, 4)),
    ((3, 1), (1, 4)),
    ((2, 1, 4), (3, 1)),
    ((), (3, 4)),
    ((2, 3), ()),
    ((), ()),
    ((1,), (1,)),
    ((1, 1), (5,)),
    ((0, 3), (1, 3)),
    ((0,), ()),
]


def dtype_of(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def values(shape: tuple[int, ...], dtype: str, low: float = -3.0, high: float = 3.0) -> Any:
    """Return random values away from 0, where quotients and kinks are ill-conditioned."""
    if dtype.startswith(("int", "uint")):
        whole = RNG.integers(1 if dtype.startswith("u") or low > 0 else -9, 10, shape)
        return np.where(whole == 0, 3, whole).astype(dtype)
    x = RNG.uniform(low, high, shape)
    x = np.where(np.abs(x) < 0.1, 0.5, x)
    if dtype.startswith("complex"):
        x = x + 1j * RNG.uniform(0.2, 2, shape)
    return x.astype(dtype_of(dtype))


def tolerance(dtype: str) -> dict[str, float]:
    found = TOLERANCE.get(dtype, 1e-9)
    return {"rtol": found, "atol": found}


def raw(name: str, *names: str) -> Callable[..., Any]:
    """Return a builder of the op itself: by `raw_ops` in TensorFlow, by `apply_op` here."""

    def build(m: Any, *xs: Any) -> Any:
        if m.__name__ == "aioflow":
            return m.extend.apply_op(name, *xs)
        return getattr(m.raw_ops, name)(**dict(zip(names, xs, strict=True)))

    return build


def binary_op(name: str) -> Callable[..., Any]:
    return raw(name, "x", "y")


BINARY: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "add": (lambda m, x, y: m.add(x, y), FLOATS + INTS + COMPLEX),
    "Add": (binary_op("Add"), ("float32", "int32", "complex64")),
    "subtract": (lambda m, x, y: m.subtract(x, y), FLOATS + INTS + COMPLEX),
    "multiply": (lambda m, x, y: m.multiply(x, y), FLOATS + INTS + COMPLEX),
    "multiply_no_nan": (lambda m, x, y: m.math.multiply_no_nan(x, y), FLOATS[2:] + COMPLEX),
    "divide": (lambda m, x, y: m.divide(x, y), FLOATS + INTS + COMPLEX),
    "truediv": (lambda m, x, y: m.truediv(x, y), ("float32", "int8", "uint16", "int64")),
    "div": (lambda m, x, y: m.div(x, y), ("float32", "int32", "int64", "uint8", "complex64")),
    "Div": (binary_op("Div"), ("float64", "int32", "int8")),
    "realdiv": (lambda m, x, y: m.realdiv(x, y), FLOATS + COMPLEX),
    "floordiv": (lambda m, x, y: m.floordiv(x, y), FLOATS[2:] + INTS),
    "floor_div": (lambda m, x, y: m.floor_div(x, y), ("float32", "int32")),
    "truncatediv": (lambda m, x, y: m.truncatediv(x, y), ("float32", "float64", *INTS)),
    "div_no_nan": (lambda m, x, y: m.div_no_nan(x, y), FLOATS + COMPLEX),
    "floormod": (lambda m, x, y: m.floormod(x, y), ("float32", "float64", *INTS)),
    "mod": (lambda m, x, y: m.mod(x, y), ("float64", "int32")),
    "Mod": (binary_op("Mod"), ("int32", "int64")),
    "truncatemod": (lambda m, x, y: m.truncatemod(x, y), ("int32", "int64")),
    "maximum": (lambda m, x, y: m.maximum(x, y), FLOATS + INTS),
    "minimum": (lambda m, x, y: m.minimum(x, y), FLOATS + INTS),
    "squared_difference": (lambda m, x, y: m.squared_difference(x, y), (*FLOATS, "int32", "int64", *COMPLEX)),
    "atan2": (lambda m, x, y: m.atan2(x, y), FLOATS),
    "nextafter": (lambda m, x, y: m.math.nextafter(x, y), ("float32", "float64")),
}

POSITIVE: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "pow": (lambda m, x, y: m.pow(x, y), ("float16", "float32", "float64", "int32", "int64", *COMPLEX)),
    "xdivy": (lambda m, x, y: m.math.xdivy(x, y), (*FLOATS, *COMPLEX)),
    "xlogy": (lambda m, x, y: m.math.xlogy(x, y), (*FLOATS, *COMPLEX)),
    "xlog1py": (lambda m, x, y: m.math.xlog1py(x, y), ("float32", "float64", *COMPLEX)),
}


def cases(table: dict[str, tuple[Callable[..., Any], tuple[str, ...]]]) -> list[Any]:
    return [pytest.param(build, dtype, id=f"{name}-{dtype}") for name, (build, dts) in table.items() for dtype in dts]


@pytest.mark.parametrize(("build", "dtype"), cases(BINARY))
def test_two_operands(parity: Any, build: Any, dtype: str) -> None:
    for a, b in SHAPES if dtype in ("float32", "int32") else SHAPES[:4]:
        parity(build, values(a, dtype), values(b, dtype), **tolerance(dtype))


@pytest.mark.parametrize(("build", "dtype"), cases(POSITIVE))
def test_two_positive_operands(parity: Any, build: Any, dtype: str) -> None:
    for a, b in SHAPES if dtype == "float32" else SHAPES[:4]:
        parity(build, values(a, dtype, 0.2), values(b, dtype, 0.2), **tolerance(dtype))


UNARY: dict[str, tuple[tuple[str, ...], float, float]] = {
    "negative": (("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", *COMPLEX), -3, 3),
    "abs": ((*FLOATS, "int8", "int16", "int32", "int64", *COMPLEX), -3, 3),
    "sign": ((*FLOATS, "int32", "int64", *COMPLEX), -3, 3),
    "square": ((*FLOATS, "int32", "int64", *COMPLEX), -3, 3),
    "sqrt": (FLOATS + COMPLEX, 0.2, 4),
    "rsqrt": (FLOATS + COMPLEX, 0.2, 4),
    "reciprocal": (FLOATS + COMPLEX, -3, 3),
    "exp": (FLOATS + COMPLEX, -3, 3),
    "expm1": (FLOATS + COMPLEX, -3, 3),
    "log": (FLOATS + COMPLEX, 0.2, 4),
    "log1p": (FLOATS + COMPLEX, -0.8, 4),
    "sin": (FLOATS + COMPLEX, -3, 3),
    "cos": (FLOATS + COMPLEX, -3, 3),
    "tan": (FLOATS + COMPLEX, -1.2, 1.2),
    "asin": (FLOATS + COMPLEX, -0.9, 0.9),
    "acos": (FLOATS + COMPLEX, -0.9, 0.9),
    "atan": (FLOATS + COMPLEX, -3, 3),
    "sinh": (FLOATS + COMPLEX, -3, 3),
    "cosh": (FLOATS + COMPLEX, -3, 3),
    "tanh": (FLOATS + COMPLEX, -3, 3),
    "asinh": (FLOATS + COMPLEX, -3, 3),
    "acosh": (FLOATS + COMPLEX, 1.2, 4),
    "atanh": (FLOATS + COMPLEX, -0.9, 0.9),
    "sigmoid": (FLOATS + COMPLEX, -9, 9),
    "floor": (FLOATS, -3, 3),
    "ceil": (FLOATS, -3, 3),
    "rint": (FLOATS[2:], -3, 3),
    "round": (("float16", "bfloat16", "float32", "float64", "int32", "uint8"), -3, 3),
    "erf": (FLOATS, -3, 3),
    "erfc": (FLOATS, -3, 3),
    "math.erfinv": (("float32", "float64"), -0.95, 0.95),
    "math.ndtri": (("float32", "float64"), 0.1, 0.95),
    "math.erfcinv": (("float32", "float64"), 0.2, 1.8),
    "lgamma": (("float16", "float32", "float64"), 0.2, 9),
    "digamma": (("float32", "float64"), 0.2, 9),
    "math.reciprocal_no_nan": (("float32", "float64"), -3, 3),
    "conj": (("float32", *COMPLEX), -3, 3),
    "real": (("float32", *COMPLEX), -3, 3),
    "imag": (("float32", *COMPLEX), -3, 3),
    "angle": (("float32", *COMPLEX), -3, 3),
}


def public(name: str) -> Callable[..., Any]:
    def build(m: Any, x: Any) -> Any:
        for part in name.split("."):
            m = getattr(m, part)
        return m(x)

    return build


@pytest.mark.parametrize(
    ("name", "dtype"), [pytest.param(n, d, id=f"{n}-{d}") for n, (ds, _, _) in UNARY.items() for d in ds]
)
def test_one_operand(parity: Any, name: str, dtype: str) -> None:
    _, low, high = UNARY[name]
    for shape in ((3, 4), (), (1,), (0, 3)):
        x = values(shape, dtype, low, high)
        parity(public(name), x, **tolerance(dtype))
        if dtype.startswith("complex"):  # the gradient through a complex function, by its real inputs
            re, im = (np.asarray(p) for p in (x.real, x.imag))
            build = public(name)
            parity(lambda m, a, b, f=build: m.abs(f(m, m.complex(a, b))), re, im, **tolerance(dtype))


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "div_no_nan", "pow", "squared_difference"])
def test_gradient_through_two_complex_operands(parity: Any, name: str, dtype: str) -> None:
    """Skip multiply_no_nan, whose conjugate TensorFlow forgets; tests/ops/test_math.py checks ours."""
    x, y = values((3, 4), dtype, 0.2), values((4,), dtype, 0.2)

    def build(m: Any, *parts: Any) -> Any:
        f = m
        for part in name.split("."):
            f = getattr(f, part)
        z = f(m.complex(parts[0], parts[1]), m.complex(parts[2], parts[3]))
        return [m.real(z), m.imag(z)]

    parity(build, *(np.asarray(p) for p in (x.real, x.imag, y.real, y.imag)), **tolerance(dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", *COMPLEX])
@pytest.mark.parametrize("name", ["SqrtGrad", "RsqrtGrad", "ReciprocalGrad", "InvGrad", "TanhGrad", "SigmoidGrad"])
def test_gradient_ops(parity: Any, name: str, dtype: str) -> None:
    y, dy = values((3, 4), dtype, 0.2), values((3, 4), dtype)
    parity(raw(name, "y", "dy"), y, dy, **tolerance(dtype))


@pytest.mark.parametrize(
    "name", ["tanh", "sigmoid", "sqrt", "rsqrt", "reciprocal", "exp", "log", "asinh", "erf", "lgamma"]
)
def test_second_derivatives(parity: Any, name: str) -> None:
    def build(m: Any, x: Any) -> Any:
        return m.gradients(getattr(m, name)(x), x)[0]

    parity(build, values((3, 4), "float64", 0.2, 2), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_truncating_remainders(parity: Any, dtype: str) -> None:
    """Skip gradients, which TensorFlow lacks; ours are checked by finite differences."""
    x, y = values((3, 4), dtype), values((4,), dtype)
    parity(binary_op("Mod"), x, y, grad=False, **tolerance(dtype))
    parity(binary_op("TruncateMod"), x, y, grad=False, **tolerance(dtype))


@pytest.mark.parametrize("dtype", FLOATS[1:])
def test_inv(parity: Any, dtype: str) -> None:
    parity(raw("Inv", "x"), values((3, 4), dtype), **tolerance(dtype))


EXPONENTS = (0, 1, 2, 3, 4, 5, 0.5, -0.5, -1, -2, 2.5)


@pytest.mark.parametrize(
    ("dtype", "exponent"),
    [(d, e) for d in ("float32", "float64", "complex64") for e in EXPONENTS] + [("int32", e) for e in EXPONENTS[:6]],
)
def test_constant_exponents(parity: Any, dtype: str, exponent: float) -> None:
    parity(lambda m, x: x**exponent, values((3, 4), dtype, 0.2), **tolerance(dtype))


def test_polygamma_and_zeta(parity: Any) -> None:
    order = np.array([[0.0], [1.0], [2.0], [5.0]])
    x = RNG.uniform(0.3, 9, (4, 3))
    parity(lambda m, x: m.polygamma(m.constant(order), x), x, rtol=1e-8)
    parity(lambda m, x: m.zeta(m.constant(order + 1.5), x), x, rtol=1e-8)
    parity(lambda m, x: m.polygamma(m.constant(order.astype("float32")), x), x.astype("float32"), rtol=1e-4)
    parity(lambda m, x: m.lbeta(x), x, rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["igamma", "igammac"])
def test_incomplete_gamma(parity: Any, name: str, dtype: str) -> None:
    """Skip 16-bit floats, of which TensorFlow's CPU has no kernel. Its float32 derivatives have three digits."""
    for a, b in SHAPES if dtype == "float64" else SHAPES[:4]:
        order, x = values(a, dtype, 0.2, 20), values(b, dtype, 0.1, 30)
        rtol = 1e-3 if dtype == "float32" else 1e-8
        parity(lambda m, a, x: getattr(m, name)(a, x), order, x, rtol=rtol)


def test_incomplete_functions_at_the_limits_of_their_domain(parity: Any) -> None:
    a = np.array([0.0, 0.0, -1.0, 1.0, 1.0, 1.0, np.inf, np.nan, -0.5, 1e-300, 2.0])
    x = np.array([0.0, 1.0, 1.0, 0.0, -1.0, np.inf, 1.0, 1.0, 0.0, 1.0, 1e-300])
    for name in ("igamma", "igammac"):
        parity(lambda m, a, x, n=name: getattr(m.math, n)(a, x), a, x, grad=False)
    parity(raw("IgammaGradA", "a", "x"), a, x, grad=False)
    a, b = np.array([0.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0, np.nan]), np.array([1.0, 0.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0])
    x = np.array([0.5, 0.5, 0.0, 0.5, 0.5, 1.0, 1.5, 0.5])
    parity(lambda m, a, b, x: m.math.betainc(a, b, x), a, b, x, grad=False)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_incomplete_beta(parity: Any, dtype: str) -> None:
    options = {"rtol": 1e-4 if dtype == "float32" else 1e-8}
    for shapes in (((3, 4), (3, 4), (3, 4)), ((3, 4), (3, 4), ()), ((), (), (3, 4)), ((), (), ()), ((0,), (0,), ())):
        a, b, x = (
            values(s, dtype, low, high) for s, low, high in zip(shapes, (0.2, 0.2, 0.1), (9, 9, 0.9), strict=True)
        )
        parity(lambda m, a, b, x: m.betainc(a, b, x), a, b, x, **options)
        parity(lambda m, a, b, x: m.betainc(a, b, x), a, b, x, shapes=[None, None, None], **options)


def test_derivatives_of_incomplete_gamma_functions(parity: Any) -> None:
    """Skip large `a` and the far tails, where TensorFlow's fail; tests/ops/test_math.py checks those."""
    a = np.geomspace(0.01, 100, 30)[:, None]
    x = a * np.array([0.3, 0.9, 1.0, 1.1, 2.0])
    for dtype, rtol in (("float64", 1e-6), ("float32", 1e-2)):
        parity(raw("IgammaGradA", "a", "x"), a.astype(dtype), x.astype(dtype), grad=False, rtol=rtol)
        parity(raw("RandomGammaGrad", "alpha", "sample"), a.astype(dtype), x.astype(dtype), grad=False, rtol=rtol)


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, 1.5, -0.5, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30])
LIMITS = [name for name, (dtypes, _, _) in UNARY.items() if "." not in name and "float64" in dtypes]
LIMITS = [name for name in LIMITS if name not in ("sign", "lgamma", "digamma")]  # tests/ops checks NaN and poles


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_functions(parity: Any, name: str, dtype: str) -> None:
    x = SPECIAL.astype(dtype)
    if (name, dtype) == ("erf", "float64"):
        x = x[np.isfinite(x)]  # TensorFlow returns NaN for infinities in float64, not in float32
    parity(public(name), x, grad=False, **tolerance(dtype))


@pytest.mark.parametrize("name", ["add", "multiply", "divide", "div_no_nan", "maximum", "minimum", "floordiv", "atan2"])
def test_limits_of_binary_functions(parity: Any, name: str) -> None:
    x = SPECIAL[:, None].astype("float32")
    parity(lambda m, x, y: getattr(m, name)(x, y), x, x.T.copy(), grad=False, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["xdivy", "xlogy", "xlog1py", "multiply_no_nan"])
def test_zero_factors_yield_zero(parity: Any, name: str) -> None:
    x = np.array([0.0, 0.0, 0.0, 1.0, 2.0, np.inf], "float32")
    y = np.array([0.0, np.inf, np.nan, 0.0, -1.0, 0.0], "float32")
    parity(lambda m, x, y: getattr(m.math, name)(x, y), x, y, grad=False)


def test_operators(parity: Any) -> None:
    x, y = values((3, 4), "float32", 0.3), values((4,), "float32", 0.3)
    parity(lambda m, x, y: [x + y, x - y, x * y, x / y, x**y, -x, abs(x), x % y, x // y], x, y, rtol=2e-5)
    parity(lambda m, x: [x + 1, 1 - x, 2 * x, 2 / x, 2**x, x % 2, 7 // x, x - np.ones(4)], x, rtol=2e-5)
    i, j = values((3, 4), "int32"), values((4,), "int32")
    parity(lambda m, i, j: [i + j, i // j, i % j, i / j, i & j, i | j, i ^ j, ~i, i < j, i >= 2], i, j)


def test_scalar_mul_and_sums(parity: Any) -> None:
    x, y, z = (values((3, 4), "float32") for _ in range(3))
    parity(lambda m, x: m.scalar_mul(2.5, x), x)
    parity(lambda m, x, y, z: [m.add_n([x, y, z]), m.add_n([x]), m.accumulate_n([x, y, z], shape=[3, 4])], x, y, z)
    parity(lambda m, x, y: m.add_n([x, y]), values((2,), "int32"), values((2,), "int32"))
    parity(lambda m, x: m.clip_by_value(x, -1.0, 1.5), x)
    parity(lambda m, x: m.math.polyval([1.0, -2.0, 3.0], x), x)
    parity(lambda m, x: m.log_sigmoid(x), x)
    parity(lambda m, x: m.add_n([x, x, m.constant(1.0)]), values((), "float32"))
    parity(lambda m, x: [m.check_numerics(x, "bad"), m.verify_tensor_all_finite(x, "bad")], x)


CASTABLE = (*FLOATS, *INTS, *COMPLEX, "bool")


@pytest.mark.parametrize("target", CASTABLE)
@pytest.mark.parametrize("source", CASTABLE)
def test_casts(parity: Any, source: str, target: str) -> None:
    if source == "bool":
        x: Any = RNG.integers(0, 2, (3, 4)).astype(bool)
    else:
        x = values((3, 4), source, 1, 9)
    complex_source = source.startswith("complex")  # no gradient by a complex tensor
    parity(lambda m, x: m.cast(x, target), x, grad=not complex_source, **tolerance("bfloat16"))


def test_cast_shorthands(parity: Any) -> None:
    x = values((3,), "float64")
    names = ("to_float", "to_double", "to_int32", "to_int64", "to_bfloat16", "to_complex64", "to_complex128")
    parity(lambda m, x: [getattr(m, n)(x) for n in names], x, grad=False)


@pytest.mark.parametrize(
    "target", ["uint8", "int8", "int16", "int32", "int64", "uint64", "float16", "bfloat16", "float64"]
)
def test_saturate_cast(parity: Any, target: str) -> None:
    x = np.array([-1e30, -300.7, -1.5, 0.0, 1.5, 300.7, 70000.0, 3e9, 1e30], "float32")
    if target.endswith("int64"):
        x = x[:-1]  # TensorFlow clips to 2**63, which overflows; aioflow clips to the next lower float
    parity(lambda m, x: m.saturate_cast(x, target), x, grad=False)
    if "float" not in target:
        parity(lambda m, x: m.saturate_cast(x, target), np.array([-(2**31), -129, -1, 0, 255, 2**31 - 1], "int32"))


def test_complex_parts(parity: Any) -> None:
    a, b = values((3, 1), "float32"), values((4,), "float32")

    def build(m: Any, a: Any, b: Any) -> Any:
        z = m.complex(a, b)
        return [z, m.real(z), m.imag(z), m.angle(z), m.abs(z), m.real(m.conj(z) * z)]

    parity(build, a, b, rtol=1e-4)
    parity(lambda m, a, b: m.complex(a, b), a.astype("float64"), b.astype("float64"))


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"])
@pytest.mark.parametrize("dtype", INTS)
def test_bits(parity: Any, name: str, dtype: str) -> None:
    x = values((3, 4), dtype)
    y = np.array([0, 3, 7, 100]).astype(dtype)
    parity(lambda m, x, y: getattr(m.bitwise, name)(x, y), x, y)
    parity(lambda m, x: m.bitwise.invert(x), x)


@pytest.mark.parametrize(("a", "b"), [*SHAPES, ((3, 1, 5), (4, 1)), ((1, 4), (3, 4)), ((2, 1), (1, 1))])
def test_broadcast_gradient_args(parity: Any, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    s0, s1 = np.array(a, np.int32), np.array(b, np.int32)

    def build(m: Any, x: Any, y: Any) -> Any:
        return list(raw("BroadcastGradientArgs", "s0", "s1")(m, x, y))

    parity(build, s0, s1)
    parity(lambda m, x, y: m.broadcast_dynamic_shape(x, y), s0, s1)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([None, 4], [4]),
        ([None, 4], [None, 4]),
        ([None, 4], [1, 4]),
        ([None, 1], [None, 4]),
        (None, [4]),
        (None, []),
        (None, None),
        ([None, None], []),
    ],
)
@pytest.mark.parametrize("actual", [((3, 4), (3, 4)), ((1, 4), (1, 4))])
def test_gradients_with_open_shapes(parity: Any, a: Any, b: Any, actual: Any) -> None:
    """Check that each gradient has the shape of its operand, for any partly known shapes."""
    rng = np.random.default_rng(3)

    def fitting(shape: Any, full: tuple[int, ...]) -> Any:
        if shape is None:
            return rng.standard_normal(full)
        sizes = [f if s is None else s for s, f in zip(shape, full[len(full) - len(shape) :], strict=True)]
        return rng.standard_normal(sizes)

    x, y = fitting(a, actual[0]), fitting(b, actual[1])
    parity(lambda m, x, y: x * y - y, x, y, shapes=[a, b], rtol=1e-9)


# ── infinite slopes ──────────────────────────────────────────────────────────────────────────────────────────────────

STEEP_UNARY: dict[str, Any] = {
    "square": lambda m, x: m.square(x),
    "sqrt": lambda m, x: m.sqrt(x),
    "rsqrt": lambda m, x: m.rsqrt(x),
    "reciprocal": lambda m, x: m.reciprocal(x),
    "log": lambda m, x: m.log(x),
    "digamma": lambda m, x: m.cast(m.digamma(m.cast(x, "float64")), x.dtype),
    "acosh": lambda m, x: m.acosh(x),
    "standard deviation": lambda m, x: m.math.reduce_std(m.stack([x], 1), 1),
    "norm": lambda m, x: m.norm(m.stack([x, 0 * x], 1), axis=1),
}
STEEP_BINARY = ("multiply", "divide", "pow", "squared_difference", "div_no_nan", "atan2", "maximum")


def steep(dtype: str) -> Any:
    """Return the largest values and those near them, infinities and NaN, but no values that TensorFlow treats as 0."""
    top = float(np.finfo(dtype).max)
    small = [0.0, 0.5, 1.0, 2.0, 6.0, 30.0, top**0.25, 2 * top**0.5, top / 2, top, np.inf]
    return np.array([*small, *(-v for v in small), np.nan], dtype)


def flowing(m: Any, y: Any, xs: Any, into: Any) -> Any:
    return m.gradients([y], xs, grad_ys=[into])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("into", [0.0, 2.0**-9, 1.0])
@pytest.mark.parametrize("name", STEEP_UNARY)
def test_gradients_through_infinite_slopes(parity: Any, name: str, into: float, dtype: str) -> None:
    x = steep(dtype)
    grads = np.full(x.shape, into, dtype)
    with np.errstate(all="ignore"):
        parity(lambda m, x, g: flowing(m, STEEP_UNARY[name](m, x), [x], g), x, grads, grad=False, **tolerance(dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("into", [0.0, 2.0**-9, 1.0])
@pytest.mark.parametrize("name", STEEP_BINARY)
def test_gradients_of_two_operands_through_infinite_slopes(parity: Any, name: str, into: float, dtype: str) -> None:
    """Include cases such as x ** y by y, where the power is finite and its product with log x overflows."""
    x, y = (v.ravel() for v in np.meshgrid(steep(dtype), steep(dtype)))
    grads = np.full(x.shape, into, dtype)
    with np.errstate(all="ignore"):
        parity(
            lambda m, x, y, g: flowing(m, getattr(m, name)(x, y), [x, y], g),
            x,
            y,
            grads,
            grad=False,
            **tolerance(dtype),
        )
