"""A check of gradients against central differences in float64, independent of the gradient functions under test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aioflow.autodiff.gradients import gradients
from aioflow.errors import InternalError
from aioflow.graph.graph import Graph, Tensor
from aioflow.memory.values import Array
from aioflow.ops.apply import convert_to_tensor
from aioflow.ops.core import placeholder
from aioflow.testing.evaluate import Evaluation, evaluate

__all__ = ["check_gradients"]


def check_gradients(
    build: Callable[..., Any],
    *inputs: npt.ArrayLike,
    wrt: Sequence[int] | None = None,
    delta: float = 1e-5,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    seed: int = 0,
) -> None:
    """Compare `gradients` of `build(*tensors)` with central differences.

    Args:
        build: Function that returns one tensor, or a sequence of them, from placeholders that have the dtypes and
            shapes of `inputs`.
        *inputs: Values at which the gradients are compared.
        wrt: Positions of the inputs to differentiate with respect to; by default all floating ones (pass them as
            float64).
        delta: Distance of each of the two points from the input.
        rtol: Relative tolerance of the comparison.
        atol: Absolute tolerance of the comparison.
        seed: Seed of the random gradients of the outputs.

    Raises:
        InternalError: the gradients differ; the error shows both.
    """
    arrays = [np.asarray(a) for a in inputs]
    positions = list(wrt) if wrt is not None else [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    rng = np.random.default_rng(seed)
    with Graph().as_default():
        xs = [placeholder(a.dtype, a.shape) for a in arrays]
        made = build(*xs)
        ys: list[Tensor] = list(made) if isinstance(made, list | tuple) else [made]
        # Only floating outputs have a gradient.
        ys = [y for y in ys if y.dtype.is_floating]
        weights: list[Any] = [rng.standard_normal(v.shape) for v in evaluate(ys, dict(zip(xs, arrays, strict=True)))]
        # Random weights: with equal ones, errors of opposite sign could cancel out.
        seeds = [convert_to_tensor(w.astype(y.dtype.np_dtype)) for w, y in zip(weights, ys, strict=True)]
        symbolic = gradients(ys, [xs[i] for i in positions], grad_ys=seeds)
        dense = [None if g is None else convert_to_tensor(g) for g in symbolic]
        computed = evaluate([g for g in dense if g is not None], dict(zip(xs, arrays, strict=True)))

    evaluation = Evaluation(ys, xs)

    async def loss(values: list[Array]) -> float:
        outputs = await evaluation.run(values)
        return float(sum((o * w).sum() for o, w in zip(outputs, weights, strict=True)))

    async def all_differences() -> list[Array]:
        return [await _differences(loss, arrays, position, delta) for position in positions]

    differences = asyncio.run(all_differences())
    found = iter(computed)
    for position, gradient, numeric in zip(positions, dense, differences, strict=True):
        # No path to the input means a gradient of zero, and the differences must show it.
        actual = np.zeros_like(numeric) if gradient is None else next(found)
        if actual.shape != numeric.shape or not np.allclose(actual, numeric, rtol=rtol, atol=atol):
            raise InternalError(
                f"the gradient with respect to input {position} is wrong", expected=numeric, actual=actual
            )


async def _differences(
    loss: Callable[[list[Array]], Awaitable[float]],
    arrays: list[Array],
    position: int,
    delta: float,
) -> Array:
    result = np.zeros_like(arrays[position])
    for index in np.ndindex(result.shape):
        sides = []
        for step in (delta, -delta):
            moved = [a.copy() for a in arrays]
            # Fresh copies: all other elements stay at their values.
            moved[position][index] += step
            sides.append(await loss(moved))
            # A stateful graph is bound again by each evaluation. For a large one that takes long.
            await asyncio.sleep(0)
        # (f(x + δ) − f(x − δ)) / 2δ, whose error falls with δ².
        result[index] = (sides[0] - sides[1]) / (2 * delta)
    return result
