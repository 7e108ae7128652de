"""Custom gradients inside function bodies: kinds of gradient functions, and the values that they may read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients

X = np.array([0.3, -0.7, 1.2])


class Scaled:
    """A gradient function that keeps a tensor as an attribute."""

    def __init__(self, factor: Any) -> None:
        self._factor = factor

    def __call__(self, dy: Any) -> Any:
        return dy * self._factor

    def method(self, dy: Any) -> Any:
        return dy * self._factor


def scaled(factor: Any, dy: Any) -> Any:
    return dy * factor


@pytest.mark.parametrize(
    "of", [Scaled, lambda t: Scaled(t).method, lambda t: partial(scaled, t), lambda t: lambda dy: dy * t]
)
def test_gradient_function_may_be_any_callable(of: Callable[[Any], Callable[[Any], Any]]) -> None:
    @af.custom_gradient
    def square(t: Any) -> Any:
        return t * t, of(t * 2.0)

    f = af.function(lambda a: square(a * 3.0))
    check_gradients(f, X)
    check_gradients(af.function(lambda a: f(a) + 1.0), X)
    check_gradients(lambda a: af.gradients(f(a), a), X)


def branch(t: Any) -> Any:
    return af.cond(af.reduce_sum(t) > 0.0, lambda: af.sin(t) * t, lambda: af.exp(t))


def loop(t: Any) -> Any:
    return af.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, af.sin(s) * t + s), [0, t])[1]


@pytest.mark.parametrize("inner", [lambda t: af.sin(t) * t, branch, loop, lambda t: loop(branch(t))])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_gradient_function_may_differentiate(inner: Callable[[Any], Any], sign: int) -> None:
    # The gradient adds loop variables to the loops of the body after the body was copied.
    @af.custom_gradient
    def wrapped(t: Any) -> Any:
        made = inner(t)
        return made, lambda dy: af.gradients(made, t, dy)

    f = af.function(lambda a: wrapped(a) * a)
    check_gradients(f, sign * X)
    check_gradients(af.function(lambda a: f(a) + f(a * 2.0)), sign * X)
    check_gradients(lambda a: af.gradients(f(a), a), sign * X, rtol=1e-4)


@pytest.mark.parametrize("sign", [1, -1])
def test_function_body_is_copied_into_loops_and_branches(sign: int) -> None:
    @af.custom_gradient
    def cube(t: Any) -> Any:
        square = t * t
        return square * t, lambda dy: dy * square * 3.0

    f = af.function(lambda a: branch(cube(a)) + af.cond(a[0] > 0.0, lambda: cube(a), lambda: a))
    check_gradients(lambda a: af.while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, 0.1 * f(t)), [0, a])[1], sign * X)
    check_gradients(lambda a: af.cond(a[0] > 0.0, lambda: f(a), lambda: f(-a)), sign * X)


def test_custom_gradient_may_return_indexed_slices() -> None:
    table = af.placeholder(af.float64, [4, 2])

    @af.custom_gradient
    def looked_up(t: Any) -> Any:
        def grad(dy: Any) -> Any:
            return af.IndexedSlices(dy * 5.0, af.constant([1, 2]), af.shape(t))

        return af.gather(t, [1, 2]), grad

    f = af.function(lambda: looked_up(table))
    (found,) = af.gradients(f(), [table])
    assert isinstance(found, af.IndexedSlices)
    values, indices = evaluate([found.values, found.indices], {table: np.ones([4, 2])})
    np.testing.assert_array_equal(values, [[5.0, 5.0], [5.0, 5.0]])
    np.testing.assert_array_equal(indices, [1, 2])


async def test_effects_of_a_gradient_function_run_with_the_gradient() -> None:
    count = af.Variable(0.0)

    @af.custom_gradient
    def counted(t: Any) -> Any:
        def grad(dy: Any) -> Any:
            with af.control_dependencies([count.assign_add(1.0)]):
                return dy * 2.0

        return t * 2.0, grad

    x = af.constant(3.0)
    y = af.function(lambda a: counted(a))(x)
    (gradient,) = af.gradients(y, [x])
    assert isinstance(gradient, af.Tensor)
    async with af.Session() as session:
        await session.run(count.initializer)
        assert await session.run(y) == 6.0
        assert await session.run(count) == 0.0
        assert await session.run(gradient) == 2.0
        assert await session.run(count) == 1.0


def test_wrong_gradient_function_fails_when_differentiated_and_names_the_node() -> None:
    y = af.function(lambda a: af.custom_gradient(lambda t: (t * 2.0, lambda dy: (dy, dy)))(a))(af.constant(X))
    with pytest.raises(af.errors.InvalidArgumentError, match="wrong number of gradients") as raised:
        af.gradients(y, y.op.inputs[0])
    assert raised.value.node is not None
    assert raised.value.node.endswith("IdentityN")
