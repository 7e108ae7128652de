"""Every translation, as a part of a step: onnxruntime's results equal those of our kernels."""

from __future__ import annotations

import pytest

import aioflow as af
from aioflow_onnxruntime.kernels import Delegated
from tests.backends.onnxruntime.steps import BY_ONNXRUNTIME, run_twice
from tests.interop.onnx_out.cases import CASES, Case
from tests.interop.onnx_out.running import same


async def check_case(case: Case, dynamic: bool, parts: list[Delegated]) -> None:
    with af.Graph().as_default() as graph:
        af.set_random_seed(7)  # both sessions have the same variables
        shapes = [[None] * array.ndim if dynamic else array.shape for array in case.arrays]
        inputs = [af.placeholder(af.as_dtype(a.dtype), s) for a, s in zip(case.arrays, shapes, strict=True)]
        made = case.build(*inputs)
        initializer = af.global_variables_initializer()
    outputs = list(made) if isinstance(made, list | tuple) else [made]
    feeds = dict(zip(inputs, case.arrays, strict=True))
    async with af.Session(graph=graph) as ours, af.Session(graph=graph, config=BY_ONNXRUNTIME) as theirs:
        await ours.run(initializer)
        await theirs.run(initializer)
        wanted = await ours.run(outputs, feeds)
        first, second = await run_twice(theirs, parts, outputs, feeds)
    for expected, own, found in zip(wanted, first, second, strict=True):
        same(expected, own, case.tolerance)
        same(expected, found, case.tolerance)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_translation_equals_our_kernel(case: Case, parts: list[Delegated]) -> None:
    await check_case(case, False, parts)


@pytest.mark.parametrize("case", [c for c in CASES if not c.static_only], ids=lambda case: case.name)
async def test_translation_with_unknown_sizes_equals_our_kernel(case: Case, parts: list[Delegated]) -> None:
    await check_case(case, True, parts)
