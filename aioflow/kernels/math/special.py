"""Special functions in float64, from published approximations; results of narrower floats are rounded once.

Sources: W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969), for erf, erfc;
M. J. Wichura, "Algorithm AS 241: the percentage points of the normal distribution", Appl. Statist. 37 (1988), for the
quantiles; Abramowitz and Stegun, "Handbook of Mathematical Functions", 6.1.17, 6.1.41, 6.3.7, 6.3.18 (reflection and
asymptotic series of log gamma and digamma), 6.4.10 (polygamma) and 23.2.9 (zeta by Euler-Maclaurin summation), 6.5.29
and 6.5.31 (series and continued fraction of the incomplete gamma function, here with their derivatives). SciPy computes
the incomplete functions themselves.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np

from aioflow.concurrency.stopping import blocks, checkpoint
from aioflow.errors import InvalidArgumentError
from aioflow.kernels.blockwise import is_large
from aioflow.kernels.convert import broadcast_shape
from aioflow.kernels.registry import HOST, Binding, KernelBody, binder
from aioflow.loading.later import not_installed
from aioflow.memory.values import Array, Namespace, NpDType

_PART: Final = 1 << 14  # elements of a block, at up to microseconds each


def in_float64(*ops: str) -> Callable[[KernelBody], KernelBody]:
    """Register `f(xp, *arrays)` over float64 arrays of rank >= 1."""

    def register(body: KernelBody) -> KernelBody:
        def bind(binding: Binding) -> KernelBody:
            return partial(_widened, body, binding.xp, binding.output_dtypes[0].np_dtype)

        for op in ops:
            binder(op, fresh=True, synchronises=True)(bind)
        return body

    return register


def by_scipy(op: str, one_shape: bool = False) -> Callable[[KernelBody], KernelBody]:
    """Register `f(special, *arrays)` over float64 arrays of rank >= 1; `special` is SciPy's module.

    Args:
        op: The op.
        one_shape: Whether only scalars are broadcast.
    """

    def register(body: KernelBody) -> KernelBody:
        def bind(binding: Binding) -> KernelBody:
            special, dtype = _scipy_special(), binding.output_dtypes[0].np_dtype

            def call(*inputs: Array) -> Array:
                if one_shape:
                    _check_one_shape(inputs)
                return _widened(lambda _, *arrays: body(special, *arrays), np, dtype, *inputs)

            return call

        binder(op, device=HOST, fresh=True)(bind)
        return body

    return register


def _check_one_shape(inputs: Sequence[Array]) -> None:
    shapes = {np.shape(value) for value in inputs} - {()}
    if len(shapes) > 1:
        raise InvalidArgumentError(
            "the operands differ in shape", expected="one shape, or scalars", actual=[np.shape(v) for v in inputs]
        )


def _scipy_special() -> Namespace:
    """Import SciPy's special functions when the first kernel that needs them is bound."""
    # Not imported with this module, because the import takes some tenths of a second.
    try:
        return importlib.import_module("scipy.special")
    except ImportError as error:
        raise not_installed("an incomplete gamma or beta function", "SciPy", error, "special") from error


def _widened(body: KernelBody, xp: Namespace, dtype: NpDType, *inputs: Array) -> Array:
    arrays = [xp.asarray(value) for value in inputs]
    if len(arrays) > 1:
        shape = broadcast_shape(*(array.shape for array in arrays))
        arrays = [xp.broadcast_to(array, shape) for array in arrays]
    if not is_large(arrays[0]):
        result = body(xp, *(xp.atleast_1d(a.astype(np.float64)) for a in arrays)).astype(dtype)
        found: Array = result.reshape(arrays[0].shape)[()]
        return found
    made = np.empty(arrays[0].shape, dtype)
    into, flat = made.reshape(-1), [array.reshape(-1) for array in arrays]
    for part in blocks(made.size, _PART):
        into[part] = body(np, *(a[part].astype(np.float64) for a in flat))
    return made


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    """Return the polynomial with these coefficients, that of the highest power first."""
    result = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        result *= x
        result += coefficient
    return result


def _piecewise(x: Array, pieces: Sequence[tuple[Array, Callable[[Array], Array]]]) -> Array:
    """Return each piece's function over the elements that its mask selects; NaN where no mask does."""
    result = x * np.nan
    for mask, function in pieces:
        if mask.any():
            result[mask] = function(x[mask])
    return result


# ── error function ────────────────────────────────────────────────────────────────────────────────────────────────────

_NEAR: Final = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
_MIDDLE: Final = (
    (
        *(2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1),
        *(2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3),
        1.23033935479799725e3,
    ),
    (
        *(1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3),
        *(3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
    ),
)
_FAR: Final = (
    (
        *(1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1),
        *(1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4),
    ),
    (
        *(1.0, 2.56852019228982242, 1.87295284992346725),
        *(5.27905102951428412e-1, 6.05183413124413191e-2, 2.33520497626869185e-3),
    ),
)
_NEAR_LIMIT: Final = 0.46875
_LAST: Final = 27.3  # beyond it erfc is below the least subnormal


def _ratio(x: Array, coefficients: tuple[Sequence[float], Sequence[float]]) -> Array:
    return _polynomial(x, coefficients[0]) / _polynomial(x, coefficients[1])


def _erf_near(x: Array) -> Array:
    return x * _ratio(x * x, _NEAR)


def _bell(xp: Namespace, y: Array) -> Array:
    """Return exp(-y²), with the square split so that its rounding error is not magnified."""
    head = xp.trunc(y * 16) / 16
    return xp.exp(-head * head) * xp.exp((head - y) * (y + head))


def _erfc_far(xp: Namespace, y: Array) -> Array:
    inverse = 1 / (y * y)
    return _bell(xp, y) * (1 / math.sqrt(math.pi) - inverse * _ratio(inverse, _FAR)) / y


def _erfc_positive(xp: Namespace, y: Array) -> Array:
    """Return erfc for y > 0.46875."""
    middle = y <= 4
    return _piecewise(
        y,
        [
            (middle, lambda v: _bell(xp, v) * _ratio(v, _MIDDLE)),
            (~middle & (y < _LAST), partial(_erfc_far, xp)),
            (y >= _LAST, xp.zeros_like),
        ],
    )


@in_float64("Erf")
def erf(xp: Namespace, x: Array) -> Array:
    size = xp.absolute(x)
    return _piecewise(
        x,
        [
            (size <= _NEAR_LIMIT, _erf_near),
            (size > _NEAR_LIMIT, lambda v: xp.copysign(1 - _erfc_positive(xp, xp.absolute(v)), v)),
        ],
    )


@in_float64("Erfc")
def erfc(xp: Namespace, x: Array) -> Array:
    return _piecewise(
        x,
        [
            (xp.absolute(x) <= _NEAR_LIMIT, lambda v: 1 - _erf_near(v)),
            (x > _NEAR_LIMIT, partial(_erfc_positive, xp)),
            (x < -_NEAR_LIMIT, lambda v: 2 - _erfc_positive(xp, -v)),
        ],
    )


# ── normal quantiles ──────────────────────────────────────────────────────────────────────────────────────────────────

_CENTRE: Final = (
    (
        *(2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4),
        *(1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080),
    ),
    (
        *(5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4),
        *(5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
    ),
)
_TAIL: Final = (
    (
        *(7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258),
        *(3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734),
    ),
    (
        *(1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1),
        *(6.89767334985100004550e-1, 1.67638483018380384940, 2.05319162663775882187, 1.0),
    ),
)
_FAR_TAIL: Final = (
    (
        *(2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2),
        *(2.96560571828504891230e-1, 1.78482653991729133580, 5.46378491116411436990, 6.65790464350110377720),
    ),
    (
        *(2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4),
        *(1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
    ),
)


def _quantile(xp: Namespace, offset: Array, tail: Array) -> Array:
    """Return the normal quantile of a probability p, given p - ½ and the smaller of p and 1 - p, both exact."""

    def outside(smaller: Array) -> Array:
        r = xp.sqrt(-xp.log(smaller))
        far = r > 5
        return _piecewise(
            r,
            [
                (~far, lambda v: _ratio(v - 1.6, _TAIL)),
                (far & (r < np.inf), lambda v: _ratio(v - 5, _FAR_TAIL)),
                (r == np.inf, lambda v: v),
            ],
        )

    # AS 241: a rational function of 0.425² - q² in the center, and of √(-log p) in two parts of the tails.
    central = xp.absolute(offset) <= 0.425
    result = _piecewise(offset, [(central, lambda q: q * _ratio(0.180625 - q * q, _CENTRE))])
    outer = ~central & (tail >= 0)
    if outer.any():
        result[outer] = xp.copysign(outside(tail[outer]), offset[outer])
    return result


@in_float64("Ndtri")
def ndtri(xp: Namespace, x: Array) -> Array:
    return _quantile(xp, x - 0.5, xp.minimum(x, 1 - x))


@in_float64("Erfinv")
def erfinv(xp: Namespace, x: Array) -> Array:
    return _quantile(xp, x / 2, (1 - xp.absolute(x)) / 2) / math.sqrt(2)


# ── gamma ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_SHIFT: Final = 10  # arguments from which the asymptotic series below are accurate to float64
_LGAMMA_SERIES: Final = (1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_DIGAMMA_SERIES: Final = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)


def _lgamma_positive(xp: Namespace, x: Array) -> Array:
    small = x < _SHIFT
    # Γ(x) = Γ(x + 10) / (x (x + 1) … (x + 9)) moves small arguments to where the series holds.
    product = xp.ones_like(x)
    for step in range(_SHIFT):
        product = xp.where(small, product * (x + step), product)
    z = xp.where(small, x + _SHIFT, x)
    series = _polynomial(1 / (z * z), _LGAMMA_SERIES) / z
    # Stirling: log Γ(z) = (z - ½) log z - z + ½ log 2π + the series in 1 / z.
    result = (z - 0.5) * xp.log(z) - z + 0.5 * math.log(2 * math.pi) + series - xp.log(product)
    return xp.where(x == np.inf, np.inf, result)


@in_float64("Lgamma")
def lgamma(xp: Namespace, x: Array) -> Array:
    def reflected(v: Array) -> Array:
        sine = xp.absolute(xp.sin(math.pi * (v - xp.rint(v))))  # reduced first, since π v would lose the fraction
        # log |Γ(v)| = log(π / |sin πv|) - log Γ(1 - v).
        result = xp.log(math.pi / sine) - _lgamma_positive(xp, 1 - v)
        return xp.where(v == -np.inf, np.inf, result)

    return _piecewise(x, [(x > 0, partial(_lgamma_positive, xp)), (x <= 0, reflected)])


def _digamma_positive(xp: Namespace, x: Array) -> Array:
    small = x < _SHIFT
    # ψ(x) = ψ(x + 10) - (1 / x + … + 1 / (x + 9)).
    total = xp.zeros_like(x)
    for step in range(_SHIFT):
        total = xp.where(small, total + 1 / (x + step), total)
    z = xp.where(small, x + _SHIFT, x)
    inverse = 1 / (z * z)
    return xp.log(z) - 0.5 / z - inverse * _polynomial(inverse, _DIGAMMA_SERIES) - total


@in_float64("Digamma")
def digamma(xp: Namespace, x: Array) -> Array:
    def reflected(v: Array) -> Array:
        # ψ(v) = ψ(1 - v) - π / tan πv. The tangent has the period 1, so the fraction of v suffices.
        fraction = v - xp.rint(v)
        return _digamma_positive(xp, 1 - v) - math.pi / xp.tan(math.pi * fraction)

    return _piecewise(x, [(x > 0, partial(_digamma_positive, xp)), (x <= 0, reflected)])


# B₂ⱼ / (2j)! are the coefficients of Euler-Maclaurin summation.
_BERNOULLI: Final = (
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66),
    *(-691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330),
)
_EULER_MACLAURIN: Final = tuple(b / math.factorial(2 * j) for j, b in enumerate(_BERNOULLI, start=1))
_MOST_TERMS: Final = 100_000


def _hurwitz(xp: Namespace, x: Array, q: Array) -> Array:
    """Return ζ(x, q) for x > 1: a sum of terms until the base is at least 10, then the integral and corrections."""
    terms = int(min(max(10.0, 11 - float(q.min())), _MOST_TERMS))
    total, base = xp.zeros_like(q), q.copy()
    for _ in range(terms):
        active = base < 10
        total = xp.where(active, total + base**-x, total)
        base = xp.where(active, base + 1, base)
    power = base**-x
    total = total + base * power / (x - 1) + 0.5 * power
    # Correction j is B₂ⱼ / (2j)! times x (x + 1) … (x + 2j - 2) / base^(x + 2j - 1).
    factor, power = x, power / base
    for j, coefficient in enumerate(_EULER_MACLAURIN):
        total = total + coefficient * factor * power
        factor = factor * (x + 2 * j + 1) * (x + 2 * j + 2)
        power = power / (base * base)
    # A base that the loop did not raise to 10 has no accurate sum.
    return xp.where(base < 10, np.nan, total)


@in_float64("Zeta")
def zeta(xp: Namespace, x: Array, q: Array) -> Array:
    usable = (x > 1) & (q > -_MOST_TERMS) & ((q > 0) | ((q != xp.floor(q)) & (x == xp.floor(x))))
    result = x * np.nan
    if usable.any():
        result[usable] = _hurwitz(xp, x[usable], q[usable])
    result = xp.where((x > 1) & (q == np.inf), 0.0, result)
    pole = (x == 1) | ((x > 1) & (q <= 0) & (q == xp.floor(q)))
    return xp.where(pole, np.inf, result)


@in_float64("Polygamma")
def polygamma(xp: Namespace, a: Array, x: Array) -> Array:
    """Return (-1)^(a+1) a! ζ(a + 1, x), and digamma for order 0."""
    order = a + 1
    sign = xp.where(order % 2 == 0, 1.0, -1.0)
    result = sign * xp.exp(lgamma(xp, order)) * zeta(xp, order, x)
    result = xp.where((a == xp.floor(a)) & (a >= 0), result, np.nan)
    return xp.where(a == 0, digamma(xp, x), result)


# ── incomplete functions, with TensorFlow's values outside their domains ──────────────────────────────────────────────


@by_scipy("Igamma")
def igamma(special: Namespace, a: Array, x: Array) -> Array:
    return np.where(x == 0, 0.0, np.where(a > 0, special.gammainc(a, x), np.nan))


@by_scipy("Igammac")
def igammac(special: Namespace, a: Array, x: Array) -> Array:
    return np.where(a > 0, special.gammaincc(a, x), np.nan)


@by_scipy("Betainc", one_shape=True)
def betainc(special: Namespace, a: Array, b: Array, x: Array) -> Array:
    return np.where((a > 0) & (b > 0), special.betainc(a, b, x), np.nan)


# The following functions compute two derivatives by a: that of P(a, x) at constant x, and that of x at constant
# P(a, x), which is the derivative of a gamma sample. They differ by the factor of the density. Both are computed from
# one number, which does not overflow or underflow where they do.
_EPSILON: Final = 2.0**-52
_BIG: Final = 1 / _EPSILON
_MOST_STEPS: Final = 10_000
_LARGE: Final = 1e5  # above it the two expansions take thousands of steps, and the limit's error is below 1e-8


def _drift_by_series(xp: Namespace, a: Array, x: Array) -> Array:
    """Return the drift for x <= max(a, 1), by a series.

    P is xᵃ exp(-x) / Γ(a + 1) times the sum of xⁿ / ((a + 1) … (a + n)).
    """
    term, total = xp.ones_like(x), xp.ones_like(x)
    harmonic, slope = xp.zeros_like(x), xp.zeros_like(x)  # -d/da of a term's logarithm, and of the total
    for n in range(1, _MOST_STEPS):
        term = term * x / (a + n)
        harmonic = harmonic + 1 / (a + n)
        total, slope = total + term, slope + term * harmonic
        if bool((term * harmonic <= _EPSILON * slope).all()):
            break
        checkpoint()
    drift: Array = (slope - (xp.log(x) - _digamma_positive(xp, a + 1)) * total) / a
    return drift


def _drift_by_fraction(xp: Namespace, a: Array, x: Array) -> Array:
    """Return the drift for x > max(a, 1), by a continued fraction.

    1 - P is xᵃ exp(-x) / Γ(a) times the fraction, whose convergents are p / q.
    """
    one, zero = xp.ones_like(x), xp.zeros_like(x)
    y, z = 1 - a, x - a + 2
    p0, q0, p1, q1 = one, x, x + 1, z * x
    dp0, dq0, dp1, dq1 = zero, zero, zero, -x
    total = p1 / q1
    slope = -total * dq1 / q1
    rests = xp.zeros(x.shape, bool)
    for n in range(1, _MOST_STEPS):
        y, z = y + 1, z + 2
        w = y * n
        p0, p1, dp0, dp1 = p1, p1 * z - p0 * w, dp1, dp1 * z - p1 - dp0 * w + p0 * n
        q0, q1, dq0, dq1 = q1, q1 * z - q0 * w, dq1, dq1 * z - q1 - dq0 * w + q0 * n
        value = p1 / q1
        growth = (dp1 - value * dq1) / q1
        error = xp.absolute(growth - slope) + xp.absolute(value - total)
        # Numbers that have converged stay fixed: rounding could move them while others still converge.
        total, slope = xp.where(rests, total, value), xp.where(rests, slope, growth)
        rests = rests | (error <= 4 * _EPSILON * (xp.absolute(slope) + xp.absolute(total)))
        if bool(rests.all()):
            break
        # Numerators and denominators grow without bound. A common factor leaves their quotients as they are.
        factor = xp.where(xp.absolute(p1) > _BIG, _EPSILON, 1.0)
        p0, p1, q0, q1, dp0, dp1, dq0, dq1 = (v * factor for v in (p0, p1, q0, q1, dp0, dp1, dq0, dq1))
        checkpoint()
    drift: Array = (xp.log(x) - _digamma_positive(xp, a)) * total + slope
    return drift


def _drift_in_the_limit(xp: Namespace, a: Array, x: Array) -> Array:
    """Return the drift for large a.

    P is the normal distribution function of a number that grows as √(x - a - a log(x / a)). The omitted terms are
    about 1 / 6a of the result for every x; the last factor adds them.
    """
    gap = x - a
    ratio = xp.where(xp.absolute(gap) < a / 2, xp.log1p(gap / a), xp.log(x) - xp.log(a))
    return xp.where(gap == 0, 1 / a, ratio / gap) * (1 + 1 / (6 * a))


def _drift(xp: Namespace, a: Array, x: Array) -> Array:
    """Return (dx/da) / x at constant P(a, x), for finite positive numbers."""
    large, left = a > _LARGE, x <= xp.maximum(a, 1.0)
    pieces = [
        (large, _drift_in_the_limit),
        (~large & left, _drift_by_series),
        (~large & ~left, _drift_by_fraction),
    ]
    result = xp.empty_like(x)
    for mask, function in pieces:
        if bool(mask.any()):
            result[mask] = function(xp, a[mask], x[mask])
    return result


def _where_gamma_is(xp: Namespace, a: Array, x: Array, function: Callable[[Array, Array], Array]) -> Array:
    """Return the function for positive finite numbers, 0 at the ends of the distribution, and NaN outside it."""
    result = xp.where(((a > 0) & (x >= 0)) | (x == 0), 0.0, np.nan)
    inside = (a > 0) & (x > 0) & xp.isfinite(a) & xp.isfinite(x)
    if bool(inside.any()):
        result[inside] = function(a[inside], x[inside])
    return result


@in_float64("IgammaGradA")
def igamma_grad_a(xp: Namespace, a: Array, x: Array) -> Array:
    def slope(a: Array, x: Array) -> Array:
        return -xp.exp(a * xp.log(x) - x - _lgamma_positive(xp, a)) * _drift(xp, a, x)

    return _where_gamma_is(xp, a, x, slope)


@in_float64("RandomGammaGrad")
def random_gamma_grad(xp: Namespace, alpha: Array, sample: Array) -> Array:
    return _where_gamma_is(xp, alpha, sample, lambda a, x: x * _drift(xp, a, x))
