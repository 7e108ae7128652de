"""Two custom ops in a module outside of aioflow: definition, gradient, kernel and builder of each.

`SoftSquare` is √(1 + scale·x²) − 1: a parabola near zero, linear far from zero. `Delayed` returns its input after a
delay. Its kernel is a coroutine, so a step may wait for many of them concurrently without blocking the event loop.

    python examples/custom_op/softsquare.py
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np

import aioflow as af
from aioflow import extend, traits
from aioflow.testing.gradcheck import check_gradients

# ── SoftSquare ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _same_shape(ctx: extend.ShapeContext) -> extend.Dims:
    return ctx.dims("x")


extend.define_op(
    "SoftSquare", "x: T", "y: T", ["T: {floats}", "scale: float = 1.0"], shape=_same_shape, traits=traits.elementwise()
)


@extend.kernel("SoftSquare", fresh=True)
def _soft_square_kernel(xp: Any, x: Any, *, scale: float) -> Any:
    return xp.sqrt(x * x * x.dtype.type(scale) + x.dtype.type(1)) - x.dtype.type(1)


@extend.gradient("SoftSquare")
def _soft_square_gradient(op: af.Operation, grad: af.Tensor) -> af.Tensor:
    scale: float = op.get_attr("scale")
    return grad * scale * op.inputs[0] / (op.outputs[0] + 1.0)


def soft_square(x: Any, scale: float = 1.0, name: str | None = None) -> af.Tensor:
    """Compute √(1 + scale·x²) − 1, elementwise.

    Args:
        x: Floating-point tensor of any shape.
        scale: Curvature at zero.
        name: Name of the node.
    """
    return extend.make("SoftSquare", x, scale=scale, name=name)


# ── Delayed ──────────────────────────────────────────────────────────────────────────────────────────────────────────

extend.define_op("Delayed", "x: T", "y: T", ["T: type", "seconds: float"], shape=_same_shape, traits=traits.passes_on())


@extend.kernel("Delayed")
async def _delayed_kernel(x: Any, *, seconds: float) -> Any:
    await asyncio.sleep(seconds)
    return x


@extend.gradient("Delayed")
def _delayed_gradient(op: af.Operation, grad: af.Tensor) -> af.Tensor:
    return grad


def delayed(x: Any, seconds: float, name: str | None = None) -> af.Tensor:
    """Return `x` after a delay of `seconds`."""
    return extend.make("Delayed", x, seconds=seconds, name=name)


# ── usage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def fit(steps: int = 60) -> float:
    """Return the center of a few points with an outlier, as the minimum of the soft squares."""
    points = af.constant([1.0, 1.1, 0.9, 50.0])
    middle = af.Variable(0.0, name="middle")
    loss = af.reduce_sum(soft_square(points - middle, scale=4.0))
    train = af.train.GradientDescentOptimizer(0.05).minimize(loss)
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        for _ in range(steps):
            await session.run(train)
        return float(await session.run(middle))


async def wait_for_many(count: int = 50, seconds: float = 0.05) -> float:
    """Return the duration of one step that waits for `count` delays."""
    total = af.add_n([delayed(float(i), seconds) for i in range(count)])
    async with af.Session() as session:
        begin = time.perf_counter()
        value = await session.run(total)
        if value != sum(range(count)):
            raise RuntimeError(f"the sum is {value}")
        return time.perf_counter() - begin


async def main() -> None:
    """Check the gradients, then use both ops."""
    await asyncio.to_thread(check_gradients, lambda x: soft_square(x, scale=3.0), np.linspace(-2.0, 2.0, 7))
    await asyncio.to_thread(check_gradients, lambda x: delayed(x * x, 0.0), np.linspace(-2.0, 2.0, 3))
    print(f"middle of 1.0, 1.1, 0.9 and 50.0: {await fit():.2f}")
    print(f"50 pauses of 50 ms in one step: {1000 * await wait_for_many():.0f} ms")


if __name__ == "__main__":
    asyncio.run(main())
