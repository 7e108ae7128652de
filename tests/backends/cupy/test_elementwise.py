"""The C code of fused chains, compiled by a C++ compiler for the CPU and compared with the single ops.

CuPy puts the same text into a kernel with the same parameters, and compiles it for the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from aioflow.graph import dtypes
from aioflow.kernels.fused import chain_of
from aioflow.kernels.registry import Binding
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.device import host
from aioflow_cupy.kernels import elementwise_chain, program
from tests.backends.cupy.fakes import PlainDevice


def binding(
    inputs: Sequence[Any], ops: Sequence[str], operands: Sequence[int], made: Sequence[Any], backend: Any = None
) -> Binding:
    attrs = {
        "Tin": list(inputs),
        "Tout": made[-1],
        "ops": list(ops),
        "operands": list(operands),
        "dtypes": list(made),
        "nodes": [f"n{i}" for i in range(len(ops))],
        "sources": [""] * len(ops),
    }
    known = (None,) * len(inputs)
    return Binding(
        *("chain", "_ElementwiseChain", attrs, tuple(inputs), known, (made[-1],), (None,), known),
        backend or host(),
        ResourceManager(),
        {},
    )


def test_chain_with_an_unknown_op_has_no_program() -> None:
    chain = chain_of(binding([dtypes.float32] * 2, ["AddV2", "Pow"], [0, 1, 2, 0], [dtypes.float32] * 2))
    assert program(chain, [dtypes.float32] * 2) is None


class Kernels:
    """A namespace that records the kernels created with it."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.made: list[tuple[str, str, str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.xp, name)

    def ElementwiseKernel(self, inputs: str, outputs: str, text: str, name: str) -> Any:  # CuPy's name
        self.made.append((inputs, outputs, text, name))

        def kernel(a: Any, b: Any) -> Any:
            np.broadcast_shapes(a.shape, b.shape)
            return "fused"

        return kernel


def fused() -> tuple[Any, Kernels, Any]:
    backend = PlainDevice()
    kernels = backend.__dict__["xp"] = Kernels(backend.xp)
    body = elementwise_chain(binding([dtypes.float32] * 2, ["AddV2", "Relu"], [0, 1, 2], [dtypes.float32] * 2, backend))
    return body, kernels, backend.arrays


def test_whole_chain_is_one_kernel() -> None:
    body, kernels, xp = fused()
    assert body((xp.ones(3, np.float32), xp.ones(3, np.float32))) == "fused"
    ((inputs, outputs, text, _),) = kernels.made
    assert (inputs, outputs) == ("float32 a0, float32 a1", "float32 y")
    assert text.splitlines()[0] == "float v0 = a0 + a1;"
    assert text.splitlines()[1].startswith("y = ")


def test_broadcast_error_names_the_node() -> None:
    from aioflow.errors import InvalidArgumentError

    body, _, xp = fused()
    with pytest.raises(InvalidArgumentError) as caught:
        body((xp.ones(3, np.float32), xp.ones(4, np.float32)))
    assert caught.value.node == "n0"
