"""Outcomes of steps: the error of a failing run, and values bit by bit."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

import numpy as np
import pytest

from aioflow.errors import OpError

__all__ = ["bits", "failure"]


async def failure(run: Awaitable[Any]) -> Any:
    """Return the engine's error that a run raises."""
    with pytest.raises(OpError) as raised:
        await run
    return raised.value


def bits(values: Sequence[object]) -> list[tuple[object, ...]]:
    """Return dtype, shape and bytes of each value: NaN is equal to itself, and 0.0 differs from -0.0."""
    arrays = [np.asarray(value) for value in values]
    return [(a.dtype, a.shape, a.tobytes()) for a in arrays]
