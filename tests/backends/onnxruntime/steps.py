"""Steps with parts that are delegated to onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import aioflow as af
from aioflow_onnxruntime.kernels import Delegated

BY_ONNXRUNTIME = af.SessionConfig(delegate="onnxruntime")
GENERATOR = np.random.default_rng(3)
SEEDED = GENERATOR.bit_generator.state


async def run_twice(
    session: af.Session, parts: Sequence[Delegated], fetches: Any, feeds: Any = None
) -> tuple[Any, Any]:
    """Return the results of the parts' own nodes, and then those of onnxruntime.

    The parts of a branch that is not taken are not prepared.
    """
    before = await session.run(fetches, feeds)
    await session.prepared()
    assert all(part.part is not None for part in parts if part._begun.locked())
    return before, await session.run(fetches, feeds)


def floats(*shape: int) -> NDArray[np.float32]:
    """Return random numbers. Each test begins with the same ones, whatever ran before it."""
    return GENERATOR.standard_normal(shape).astype(np.float32)


def layers(x: af.Tensor, *sizes: int) -> af.Tensor:
    for size in sizes:
        weights = floats(int(x.shape[-1]), size) / np.float32(np.sqrt(int(x.shape[-1])))
        x = af.tanh(af.matmul(x, af.constant(weights)) + af.constant(floats(size)))
    return x
