"""Calls of the assert functions, with what follows: nothing, or an error of the call or of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

PASSES, STEP, CALL, DTYPE = "passes", "the step fails", "the call fails", "the call fails with a TypeError"


class AssertionCase(NamedTuple):
    """A call.

    Attributes:
        build: The call, given the module and its arguments as constants or placeholders.
        values: Values of the arguments.
        known: What follows if the arguments are constants.
        fed: What follows if they are placeholders of known shapes.
        open: What follows if they are placeholders of unknown shapes; None for what follows with known shapes.
    """

    build: Callable[..., Any]
    values: tuple[Any, ...]
    known: str
    fed: str
    open: str | None = None


def _pairs(name: str, good: Any, bad: Any) -> dict[str, AssertionCase]:
    def build(m: Any, x: Any, y: Any) -> Any:
        return getattr(m, name)(x, y, message="the sizes")

    return {
        f"{name} holds": AssertionCase(build, good, PASSES, PASSES),
        f"{name} does not hold": AssertionCase(build, bad, CALL, STEP),
        f"{name} of nothing": AssertionCase(build, ([], []), PASSES, PASSES),
    }


def _signs(name: str, good: Any, bad: Any) -> dict[str, AssertionCase]:
    def build(m: Any, x: Any) -> Any:
        return getattr(m, name)(x)

    return {
        f"{name} holds": AssertionCase(build, (np.float32(good),), PASSES, PASSES),
        f"{name} of integers": AssertionCase(build, (np.int64(good),), PASSES, PASSES),
        f"{name} does not hold": AssertionCase(build, (np.float32(bad),), CALL, STEP),
        f"{name} of nothing": AssertionCase(build, (np.zeros(0, np.float32),), PASSES, PASSES),
    }


def _near_bfloat16(m: Any, x: Any, y: Any) -> Any:
    return m.assert_near(m.cast(x, m.bfloat16), m.cast(y, m.bfloat16))


_A: Final = np.array([1.0, 2.0], np.float32)
_ONE: Final = np.float32(1.0)
_GRID: Final = np.zeros((2, 3), np.float32)

CASES: Final[dict[str, AssertionCase]] = {
    **_pairs("assert_equal", (_A, _A), (_A, _ONE)),
    **_pairs("assert_none_equal", (_A, np.float32(3)), (_A, _ONE)),
    **_pairs("assert_less", (_A, np.float32(3)), (_A, np.float32(2))),
    **_pairs("assert_less_equal", (_A, np.float32(2)), (_A, _ONE)),
    **_pairs("assert_greater", (_A, np.float32(0)), (_A, _ONE)),
    **_pairs("assert_greater_equal", (_A, _ONE), (_A, np.float32(2))),
    **_signs("assert_negative", [-1, -2], [-1, 0]),
    **_signs("assert_positive", [1, 2], [1, 0]),
    **_signs("assert_non_negative", [1, 0], [1, -1]),
    **_signs("assert_non_positive", [-1, 0], [-1, 1]),
    "strings are equal": AssertionCase(
        lambda m, x, y: m.assert_equal(x, y), (np.array([b"a"], object), np.array([b"a"], object)), PASSES, PASSES
    ),
    "near": AssertionCase(lambda m, x, y: m.assert_near(x, y), (_A, _A + np.float32(1e-7)), PASSES, PASSES),
    "not near": AssertionCase(lambda m, x, y: m.assert_near(x, y), (_A, _A + np.float32(1e-3)), STEP, STEP),
    "near by a tolerance": AssertionCase(
        lambda m, x, y: m.assert_near(x, y, rtol=0.0, atol=0.01), (_A, _A + np.float32(1e-3)), PASSES, PASSES
    ),
    "doubles are not near": AssertionCase(
        lambda m, x, y: m.assert_near(x, y), (np.float64(1), np.float64(1 + 1e-12)), STEP, STEP
    ),
    "complex numbers are near": AssertionCase(
        lambda m, x, y: m.assert_near(x, y), (np.complex64(1 + 2j), np.complex64(1 + 2j)), PASSES, PASSES
    ),
    "bfloat16 is near": AssertionCase(_near_bfloat16, (_A, _A * np.float32(1.1)), PASSES, PASSES),
    "bfloat16 is not near": AssertionCase(_near_bfloat16, (_A, _A * np.float32(1.2)), STEP, STEP),
    "integers are not near": AssertionCase(
        lambda m, x, y: m.assert_near(x, y, rtol=1, atol=1), (np.int32(1), np.int32(1)), CALL, CALL
    ),
    "strings are not near": AssertionCase(
        lambda m, x, y: m.assert_near(x, y), (np.array([b"a"], object), np.array([b"a"], object)), CALL, CALL
    ),
    "rank": AssertionCase(lambda m, x: m.assert_rank(x, 2), (_GRID,), PASSES, PASSES),
    "another rank": AssertionCase(lambda m, x: m.assert_rank(x, 1), (_GRID,), CALL, CALL, STEP),
    "a fed rank": AssertionCase(lambda m, x, r: m.assert_rank(x, r), (_GRID, np.int32(2)), PASSES, PASSES),
    "another fed rank": AssertionCase(lambda m, x, r: m.assert_rank(x, r), (_GRID, np.int32(1)), CALL, STEP),
    "a rank of floats": AssertionCase(lambda m, x: m.assert_rank(x, 0.5), (_ONE,), DTYPE, DTYPE),
    "a rank that is a vector": AssertionCase(lambda m, x: m.assert_rank(x, [1, 2]), (_ONE,), CALL, CALL),
    "rank at least": AssertionCase(lambda m, x: m.assert_rank_at_least(x, 1), (_GRID,), PASSES, PASSES),
    "a smaller rank": AssertionCase(lambda m, x: m.assert_rank_at_least(x, 3), (_GRID,), CALL, CALL, STEP),
    "one of the ranks": AssertionCase(lambda m, x: m.assert_rank_in(x, [1, 2]), (_GRID,), PASSES, PASSES),
    "none of the ranks": AssertionCase(lambda m, x: m.assert_rank_in(x, (0, 1)), (_GRID,), CALL, CALL, STEP),
    "integers": AssertionCase(lambda m, x: m.assert_integer(x), (np.int32(1),), PASSES, PASSES),
    "no integers": AssertionCase(lambda m, x: m.assert_integer(x, message="ids"), (_ONE,), DTYPE, DTYPE),
    "a type": AssertionCase(lambda m, x: m.assert_type(x, "float32"), (_ONE,), PASSES, PASSES),
    "another type": AssertionCase(lambda m, x: m.assert_type(x, m.int32), (_ONE,), DTYPE, DTYPE),
    "a scalar": AssertionCase(lambda m, x: m.assert_scalar(x), (_ONE,), PASSES, PASSES, CALL),
    "no scalar": AssertionCase(lambda m, x: m.assert_scalar(x), (_A,), CALL, CALL, CALL),
    "shapes": AssertionCase(
        lambda m, x, y: m.debugging.assert_shapes([(x, ("N", "Q")), (y, ("N",))]), (_GRID, _A), PASSES, PASSES
    ),
    "shapes that do not fit": AssertionCase(
        lambda m, x, y: m.debugging.assert_shapes([(x, ("N", "N")), (y, ("N",))]), (_GRID, _A), CALL, CALL, STEP
    ),
    "shapes with sizes": AssertionCase(
        lambda m, x: m.debugging.assert_shapes([(x, (2, None)), (x, (".", 3)), (x, None)]), (_GRID,), PASSES, PASSES
    ),
    "shapes with another size": AssertionCase(
        lambda m, x: m.debugging.assert_shapes([(x, (2, 4))]), (_GRID,), CALL, CALL, STEP
    ),
    "shapes with open ranks": AssertionCase(
        lambda m, x, y: m.debugging.assert_shapes([(x, (..., "D")), (y, ("*", 2))]), (_GRID, _A), PASSES, PASSES
    ),
    "shapes with open ranks that do not fit": AssertionCase(
        lambda m, x, y: m.debugging.assert_shapes([(x, ("*", "D")), (y, (..., "D"))]), (_GRID, _A), CALL, CALL, STEP
    ),
    "shapes with too few axes": AssertionCase(
        lambda m, x: m.debugging.assert_shapes([(x, (..., 1, 2))]), (_A,), CALL, CALL, STEP
    ),
    "a scalar as a vector": AssertionCase(
        lambda m, x, y: m.debugging.assert_shapes([(x, (1,)), (y, ("N",)), (x, ("N",))]),
        (_ONE, np.ones(1, np.float32)),
        PASSES,
        PASSES,
    ),
    "a star behind a size": AssertionCase(
        lambda m, x: m.debugging.assert_shapes([(x, (2, "*"))]), (_GRID,), CALL, CALL, CALL
    ),
    "a shape that is a number": AssertionCase(
        lambda m, x: m.debugging.assert_shapes([(x, 2)]), (_GRID,), CALL, CALL, CALL
    ),
}
