"""Raised branches and loops against the primitive form: equal values, and the same nodes run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.prune import StepRequest, prune
from aioflow.graph.opdef import traits_of
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.bind import BoundNode, bind_graph
from aioflow.runtime.branches import raise_branches
from aioflow.runtime.device import host
from aioflow.runtime.loop_raising import raise_loops
from tests.runtime.flow_programs import FlowProgram, random_flow_program
from tests.support.random_examples import examples

PRIMITIVE = af.SessionConfig(executor="reference")
FORMS = [af.SessionConfig(), af.SessionConfig(inline_budget=0), af.SessionConfig(inline_budget=10)]


def lifted(fetches: list[Any], feeds: Any = ()) -> tuple[set[str], list[BoundNode]]:
    """Return the control-flow ops that remain in the pruned graph after raising, and the bound nodes."""
    graph = prune(StepRequest(tuple(feeds), tuple(fetches)))
    bound = bind_graph(graph, host(), ResourceManager(), {})
    graph, nodes = raise_branches(*raise_loops(graph, bound))
    return {n.op for n in graph.nodes.values() if traits_of(n.op).is_control_flow}, nodes


async def run(fetches: Any, feeds: Any, config: af.SessionConfig, times: int = 1) -> Any:
    async with af.Session(config=config) as session:
        for _ in range(times):
            found = await session.run(fetches, feeds)
        return found


async def ran(program: FlowProgram, config: af.SessionConfig) -> tuple[list[Any], Counter[str]]:
    """Return the values of a traced step and how often each node ran.

    `Const` nodes are left out, since a strand builds constants in where it can.
    """
    metadata = af.RunMetadata()
    async with af.Session(config=config) as session:
        options = af.RunOptions(trace_level=af.RunOptions.FULL_TRACE)
        values = await session.run(program.fetches, program.feeds, options=options, run_metadata=metadata)
    nodes = [n for stats in metadata.step_stats for n in stats.nodes if n.op != "Const"]
    return values, Counter(n.node for n in nodes)


def assert_same(actual: list[Any], expected: list[Any]) -> None:
    for have, want in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(have, want)
        assert np.asarray(have).dtype == np.asarray(want).dtype


@example(seed=65535, loops=False)  # the sides of a predicate alternate
@example(seed=65560, loops=True)  # a predicate of unknown shape inside a branch
@settings(max_examples=examples(80), deadline=None)
@given(seed=st.integers(0, 100_000), loops=st.booleans())
async def test_raised_form_equals_primitive_form(seed: int, loops: bool) -> None:
    with af.Graph().as_default():
        program = random_flow_program(seed, loops)
        left, _ = lifted(program.fetches, program.feeds)
        assert not left
        before = {t: np.copy(v) for t, v in program.feeds.items()}
        expected = await run(program.fetches, program.feeds, PRIMITIVE)
        for config in FORMS:
            assert_same(await run(program.fetches, program.feeds, config, times=2), expected)
        for tensor, value in program.feeds.items():
            np.testing.assert_array_equal(value, before[tensor], err_msg="a feed was written to")


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 100_000), loops=st.booleans())
async def test_raised_form_runs_the_same_nodes(seed: int, loops: bool) -> None:
    with af.Graph().as_default():
        program = random_flow_program(seed, loops)
        expected, counted = await ran(program, PRIMITIVE)
        actual, mine = await ran(program, af.SessionConfig())
        assert_same(actual, expected)
        assert mine == counted
