"""Chains for the tests of compiled chains, and their operands."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.kernels.fused import Chain, chain_of
from aioflow.kernels.registry import Binding
from aioflow.runtime.device import host
from aioflow_numpy.fused_blocks import BlockChain

Array = np.ndarray[Any, Any]
Step = tuple[str, tuple[int, ...], DType]

compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler, as cc, gcc or clang"
)
F = dtypes.float32
# Ten operations of an activated, gated sum; inputs 2 to 5 are scalars.
GATE: Sequence[Step] = (
    *(("AddV2", (0, 1), F), ("Mul", (6, 2), F), ("Maximum", (7, 3), F), ("AddV2", (8, 1), F), ("Mul", (9, 0), F)),
    *(("Sub", (10, 4), F), ("Square", (11,), F), ("Minimum", (12, 5), F), ("Mul", (13, 1), F), ("AddV2", (14, 0), F)),
)


def chain(inputs: Sequence[DType], steps: Sequence[Step]) -> Chain:
    """Return a chain of the steps over inputs of these dtypes."""
    attrs = {
        "ops": tuple(op for op, _, _ in steps),
        "operands": tuple(i for _, operands, _ in steps for i in operands),
        "dtypes": tuple(dtype for _, _, dtype in steps),
        "nodes": tuple(f"node_{i}" for i in range(len(steps))),
        "sources": ("",) * len(steps),
    }
    unknown, made = (None,) * len(inputs), (steps[-1][2],)
    return chain_of(
        Binding(
            *("n", "_ElementwiseChain", attrs, tuple(inputs), unknown, made, (None,), unknown, host(), None, {}),
        )
    )


def gate() -> BlockChain:
    return BlockChain(chain([F] * 6, GATE))


def gate_inputs(*shape: int, seed: int = 0) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    x, y = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    return (x, y, *(np.float32(number) for number in (0.5, 0.0, 0.3, 4.0)))


def compiled(blocks: BlockChain, inputs: Sequence[Any], out: Array | None = None) -> bool:
    """Compile the chain for inputs of these shapes at once, and return whether it now uses machine code."""
    place = next((i for i, value in enumerate(inputs) if value is out), None)
    plan = blocks._plan(tuple(inputs[i].shape for i in blocks._asked), place)
    if plan is None or plan.compiled is None:
        return False
    plan.compiled.prepare()
    return plan.compiled.function is not None


def same(one: Any, other: Any) -> bool:
    """Return whether the arrays are bitwise equal, except that all NaNs are equal."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind == "f":
        one, other = (np.where(np.isnan(each), np.nan, each) for each in (one, other))
    return bool(one.tobytes() == other.tobytes())
