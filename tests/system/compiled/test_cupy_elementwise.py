"""Tests of the kernel source for CuPy, compiled for the CPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioflow.graph import dtypes
from aioflow.graph.opdef import OPS
from aioflow.kernels.fused import Chain, chain_of
from aioflow_cupy.kernels import program
from tests.backends.cupy.test_elementwise import binding

COMPARING = ("Less", "LessEqual", "Greater", "GreaterEqual")
LOGICAL = ("LogicalAnd", "LogicalOr", "LogicalNot")
compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler, as c++")


NAMES = {np.dtype(np.float32): "float", np.dtype(np.float64): "double", np.dtype(np.bool_): "bool"}


class Compiled:
    """Chains as functions over arrays, all in one library."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._text = ["#include <cmath>", "using namespace std;"]
        self._calls: list[tuple[str, list[Any], Any]] = []

    def add(self, name: str, chain: Chain, kinds: Sequence[Any], arrays: Sequence[Any], out: Any) -> None:
        """Add a function that applies the chain to each element of the arrays, and writes to `out`."""
        text = program(chain, kinds)
        assert text is not None
        given = ", ".join(f"const {NAMES[a.dtype]}* p{i}" for i, a in enumerate(arrays))
        reads = " ".join(f"{NAMES[a.dtype]} a{i} = p{i}[k];" for i, a in enumerate(arrays))
        kind = NAMES[out.dtype]
        self._text.append(f'extern "C" void {name}(long n, {kind}* q, {given}) {{')
        self._text.append(f"for (long k = 0; k < n; k++) {{ {kind} y; {reads} {text} q[k] = y; }} }}")
        self._calls.append((name, list(arrays), out))

    def run(self) -> None:
        """Compile and call all functions."""
        source, library = self._folder / "chains.cc", self._folder / "chains.so"
        source.write_text("\n".join(self._text))
        subprocess.run(["c++", "-O1", "-shared", "-fPIC", str(source), "-o", str(library)], check=True, timeout=120)
        functions = ctypes.CDLL(str(library))
        for name, arrays, out in self._calls:
            pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (out, *arrays)]
            getattr(functions, name)(ctypes.c_long(out.size), *pointers)


VALUES = np.array([-np.inf, -2.5, -1.0, -0.25, 0.0, 0.3, 1.0, 2.5, 7.0, np.inf, np.nan])


@compiler
def test_every_op_in_c_matches_its_kernel(tmp_path: Path) -> None:
    """Run each op on every pair of some values, NaN and infinities among them."""
    left, right = (a.reshape(-1).astype(np.float64) for a in np.meshgrid(VALUES, VALUES))
    compiled = Compiled(tmp_path)
    expected: dict[str, tuple[Any, Any]] = {}
    for op in [op_def.name for op_def in OPS if op_def.traits.in_c]:
        logical = op in LOGICAL
        kind = dtypes.bool_ if logical else dtypes.float64
        made = dtypes.bool_ if logical or op in COMPARING else dtypes.float64
        count = len(OPS.get(op).inputs)
        arrays = [(a > 0 if logical else a) for a in (left, right)[:count]]
        chain = chain_of(binding([kind] * count, [op], range(count), [made]))
        with np.errstate(all="ignore"):
            expected[op] = np.empty(left.size, made.np_dtype), chain(arrays)
        compiled.add(op, chain, [kind] * count, arrays, expected[op][0])
    compiled.run()
    for op, (result, wanted) in expected.items():
        np.testing.assert_allclose(result, wanted, rtol=1e-13, atol=1e-300, err_msg=op)


@compiler
def test_chain_rounds_like_its_single_ops(tmp_path: Path) -> None:
    made = [dtypes.float32] * 4
    chain = chain_of(binding([dtypes.float32] * 2, ["Mul", "AddV2", "Tanh", "Mul"], [0, 1, 2, 0, 3, 4, 2], made))
    left, right = np.random.default_rng(0).normal(size=(2, 1000)).astype(np.float32)
    compiled, result = Compiled(tmp_path), np.empty(1000, np.float32)
    compiled.add("chain", chain, [dtypes.float32] * 2, [left, right], result)
    compiled.run()
    np.testing.assert_allclose(result, chain([left, right]), rtol=3e-7)
