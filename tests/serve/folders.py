"""Models in folders, and their results in plain NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import aioflow as af

__all__ = ["SECONDS", "save_model", "scaled", "slow", "summed"]

SECONDS = 60.0  # the longest time that a test waits for anything

Build = Callable[[], tuple[Mapping[str, af.Tensor], Mapping[str, af.Tensor]]]


def scaled(by: float) -> Build:
    """Return a builder of y = x·by over rows of three, with `by` as a variable."""

    def build() -> tuple[Mapping[str, af.Tensor], Mapping[str, af.Tensor]]:
        x = af.placeholder("float32", [None, 3], name="x")
        return {"x": x}, {"y": x * af.Variable(np.float32(by))}

    return build


def summed() -> tuple[Mapping[str, af.Tensor], Mapping[str, af.Tensor]]:
    """Build total = Σ x, the scalar sum of a vector, whose output has no rows."""
    x = af.placeholder("float32", [None], name="x")
    return {"x": x}, {"total": af.reduce_sum(x)}


def slow(count: int) -> Build:
    """Return a builder of y = x over rows of one, after `count` kernels, between any two of which it can be stopped."""

    def build() -> tuple[Mapping[str, af.Tensor], Mapping[str, af.Tensor]]:
        x = af.placeholder("float32", [None, 1], name="x")
        _, y = af.while_loop(
            lambda i, _: i < count, lambda i, y: (i + 1, af.abs(y)), (0, x), shape_invariants=([], [None, 1])
        )
        return {"x": x}, {"y": y}

    return build


async def save_model(folder: Path, build: Build) -> Path:
    """Save a model to a folder in aioflow's own format, and return the folder."""
    with af.Graph().as_default() as graph:
        inputs, outputs = build()
        start = af.global_variables_initializer()
    async with af.Session(graph=graph) as session:
        await session.run(start)
        signature = af.saved.Signature(dict(inputs), dict(outputs))
        await af.saved.save(session, folder, {"serving_default": signature})
    return folder


def rows(count: int = 1, seed: int = 0) -> Any:
    """Return random inputs of `scaled`."""
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)
