"""Each optimization alone, and all together: the graph stays valid, with the same bits and effects.

The reference executor, run on the graph as the user wrote it, gives the expected results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.ir import ClientGraph
from aioflow.compiler.optimize.arithmetic import arithmetic
from aioflow.compiler.optimize.common_subexpressions import common_subexpressions
from aioflow.compiler.optimize.constant_folding import constant_folding
from aioflow.compiler.optimize.dead_code import dead_code
from aioflow.compiler.optimize.shapes import shapes
from aioflow.compiler.optimize.transposes import transposes
from tests.compiler.optimize.redundant_programs import redundant_program
from tests.compiler.optimize.steps import EXECUTORS, OptimizationPass, assert_same_bits, optimized, run, step
from tests.runtime.flow_programs import random_flow_program
from tests.runtime.programs import random_program
from tests.support.random_examples import examples

PASSES: list[OptimizationPass] = [
    shapes,
    constant_folding,
    arithmetic,
    transposes,
    common_subexpressions,
    dead_code,
]
CHOICES: list[list[OptimizationPass]] = [*([p] for p in PASSES), PASSES, PASSES[::-1], PASSES * 2]


async def _assert_equivalent(graph: ClientGraph, feeds: Sequence[Any], before: ClientGraph | None = None) -> None:
    feeds = [v[()] if np.ndim(v) == 0 else v for v in map(np.asarray, feeds)]
    expected = await run(graph, feeds, "reference", before)
    for passes in CHOICES:
        made = optimized(graph, *passes)
        assert len(made.nodes) <= len(graph.nodes) * 2
        for executor in EXECUTORS:
            found = await run(made, feeds, executor, before)
            what = [p.__name__ for p in passes], executor
            assert_same_bits(found.values, expected.values, what)
            assert found.effects == expected.effects, what


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 100_000))
async def test_programs_full_of_redundant_nodes(seed: int) -> None:
    with af.Graph().as_default():
        program = redundant_program(seed)
        graph = step(program.fetches, program.feeds, program.targets)
        before = step([], (), program.initializers)
    await _assert_equivalent(graph, list(program.feeds.values()), before)


@settings(max_examples=examples(8), deadline=None)
@given(seed=st.integers(0, 100_000), rows=st.sampled_from([None, 4, 3000]))
async def test_random_programs_keep_their_values(seed: int, rows: int | None) -> None:
    rows = None if rows is None else 3000 if seed % 3 == 0 else 4
    with af.Graph().as_default():
        program = random_program(seed, rows=rows)
        graph = step(program.fetches, program.feeds)
    await _assert_equivalent(graph, list(program.feeds.values()))


@settings(max_examples=examples(8), deadline=None)
@given(seed=st.integers(0, 100_000), loops=st.booleans())
async def test_random_branches_and_loops(seed: int, loops: bool) -> None:
    with af.Graph().as_default():
        program = random_flow_program(seed, loops)
        graph = step(program.fetches, program.feeds)
    await _assert_equivalent(graph, list(program.feeds.values()))
