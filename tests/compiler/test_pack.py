"""Packing of small values into shared messages between tasks: results keep their bits, and no cycle arises."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.ir import Node, Plan
from aioflow.compiler.pack import PackOptions, pack_sends
from aioflow.compiler.partition import partition
from aioflow.compiler.prune import StepRequest, prune
from aioflow.compiler.verify import verify
from aioflow.graph.arrays import to_array
from aioflow.graph.boundary import RECV, SEND
from aioflow.net.remote_cluster import RemoteCluster
from aioflow.runtime.step import Step
from tests.net.clusters import cluster
from tests.runtime.flow_programs import random_flow_program
from tests.runtime.programs import random_program
from tests.support.random_examples import examples

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"
TASKS = ("/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0")
ALL = PackOptions(most_bytes=1 << 40, most_seconds=float("inf"))


def sends(plan: Plan) -> list[Node]:
    return [node for node in plan.nodes() if node.op == SEND]


def scattered(fetches: Sequence[Any], feeds: Sequence[Any], seed: int) -> Plan:
    """Return a plan with nodes on random tasks; users of resources and random ops go to the first task."""
    rng = random.Random(seed)
    graph = prune(StepRequest(tuple(feeds), tuple(fetches)))
    nodes = {}
    for name, node in graph.nodes.items():
        specs = [*node.outputs, *(graph.spec(edge) for edge in node.inputs)]
        touches = any(spec.dtype is af.resource for spec in specs) or "seed" in node.attrs
        nodes[name] = replace(node, device=f"{TASKS[0 if touches else rng.randrange(2)]}/device:CPU:0")
    return partition(replace(graph, nodes=nodes))


def two_tasks(build: Callable[[], Sequence[Any]]) -> Plan:
    """Return the plan of the graph that `build` creates under the devices of two tasks."""
    with af.Graph().as_default():
        graph = prune(StepRequest((), tuple(build())))
    names = {PS: TASKS[0], WORKER: TASKS[1], "": TASKS[0]}
    nodes = {n.name: replace(n, device=f"{names[n.device]}/device:CPU:0") for n in graph.nodes.values()}
    return partition(replace(graph, nodes=nodes))


def waits(plan: Plan) -> dict[tuple[str, str], set[tuple[str, str]]]:
    """Return the nodes that each node of the plan waits for, without the back edges of loops."""
    at = {n.attrs["tensor_name"]: (n.device, n.name) for n in sends(plan)}
    found = {}
    for device, graph in plan.by_device():
        for name, n in graph.nodes.items():
            sources = {(device, s) for s in n.predecessors() if graph.nodes[s].op != "NextIteration"}
            found[device, name] = sources | ({at[n.attrs["tensor_name"]]} if n.op == RECV else set())
    return found


def at_once(node: Node) -> float:
    return 0.0


# ── grouping of values ───────────────────────────────────────────────────────────────────────────────────────────────


def read_three(*shapes: Sequence[int], dtypes: Sequence[Any] = ()) -> Callable[[], list[Any]]:
    def build() -> list[Any]:
        values = []
        for index, shape in enumerate(shapes):
            with af.device(PS):
                kept = af.Variable(np.zeros(shape, dtypes[index] if dtypes else np.float32))
                value = kept.read_value()
            with af.device(WORKER):
                values.append(af.identity(value))
        return values

    return build


def test_small_values_ready_at_the_same_time_share_a_message() -> None:
    plan = two_tasks(read_three([3], [2, 5], [], [0, 4]))
    packed = pack_sends(plan, at_once)
    assert (len(sends(plan)), len(sends(packed))) == (4, 1)
    for _, graph in packed.by_device():
        verify(graph, whole=False)


def test_large_values_and_other_dtypes_are_sent_separately() -> None:
    large = two_tasks(read_three([3], [20_000], [4]))
    assert len(sends(pack_sends(large, at_once))) == 2
    mixed = two_tasks(read_three([3], [3], [4], dtypes=[np.float32, np.int64, np.float32]))
    assert len(sends(pack_sends(mixed, at_once))) == 2
    strings = two_tasks(read_three([3], [3], dtypes=[str, str]))
    assert pack_sends(strings, at_once) is strings


def test_one_task_has_no_messages() -> None:
    with af.Graph().as_default():
        plan = partition(prune(StepRequest((), (af.identity(af.Variable(1.0)),))))
    assert pack_sends(plan, at_once) is plan


def test_a_value_does_not_wait_for_a_slow_one() -> None:
    def build() -> list[Any]:
        with af.device(PS):
            early = af.Variable(np.zeros(3, np.float32)).read_value()
            late = af.tanh(early)
        with af.device(WORKER):
            return [af.identity(early), af.identity(late)]

    plan = two_tasks(build)
    assert len(sends(pack_sends(plan, lambda n: 2e-4 if n.op == "Tanh" else 0.0))) == 2
    assert len(sends(pack_sends(plan, lambda n: 5e-5 if n.op == "Tanh" else 0.0))) == 1


def test_values_on_a_round_trip_between_tasks_are_not_packed() -> None:
    def build() -> list[Any]:
        with af.device(PS):
            question = af.Variable(np.zeros(3, np.float32)).read_value()
        with af.device(WORKER):
            answer = af.tanh(question)
        with af.device(PS):
            rest = af.negative(answer)
        with af.device(WORKER):
            return [af.identity(rest)]

    plan = two_tasks(build)
    packed = pack_sends(plan, at_once, ALL)
    assert len(sends(packed)) == len(sends(plan)) == 3


def test_a_ready_value_is_not_packed_with_a_dequeued_one() -> None:
    def build() -> list[Any]:
        with af.device(PS):
            there = af.Variable(np.zeros(3, np.float32)).read_value()
            queue = af.FIFOQueue(10, [af.float32], shapes=[[3]])
            comes = queue.dequeue()
        with af.device(WORKER):
            return [af.identity(there), af.identity(comes)]

    assert len(sends(pack_sends(two_tasks(build), at_once, ALL))) == 2


# ── unchanged results ────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 100_000), loops=st.booleans())
def test_a_packed_plan_has_no_cycle(seed: int, loops: bool) -> None:
    with af.Graph().as_default():
        program = random_flow_program(seed, loops=loops) if seed % 2 else random_program(seed, rows=4)
        plan = scattered(program.fetches, list(program.feeds), seed)
    packed = pack_sends(plan, at_once, ALL)
    assert len(sends(packed)) <= len(sends(plan))
    for _, graph in packed.by_device():
        verify(graph, whole=False)
    list(TopologicalSorter(waits(packed)).static_order())  # raises where there is a cycle


async def same_bits(seed: int, executor: str) -> None:
    with af.Graph().as_default():
        program = random_flow_program(seed) if seed % 3 == 0 else random_program(seed, rows=4)
        fetches, feeds = list(program.fetches), list(program.feeds)
        async with af.Session(config=af.SessionConfig(executor="reference", optimizations=False)) as session:
            whole = await session.run(fetches, program.feeds)
        async with cluster("ps", "worker") as servers:
            remote = RemoteCluster(servers[seed % 2].target)
            await remote.connect()
            packed = pack_sends(scattered(fetches, feeds, seed), at_once, ALL)
            plan = await remote.register(packed, 0, af.SessionConfig(executor=executor))
            step = Step(id=remote.next_step())
            try:
                async with asyncio.timeout(60):
                    parts = await plan.run([to_array(v, t.dtype) for t, v in program.feeds.items()], step)
            finally:
                step.finish()
                await remote.close()
    for part, expected in zip(parts, whole, strict=True):
        np.testing.assert_array_equal(part, expected, strict=True)


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 100_000), executor=st.sampled_from(["strands", "strands", "reference"]))
def test_a_packed_step_returns_the_same_bits(seed: int, executor: str) -> None:
    asyncio.run(same_bits(seed, executor))


@pytest.mark.parametrize("packs", [True, False])
async def test_a_session_packs_unless_disabled(packs: bool) -> None:
    values = read_three([3], [2, 2])()
    config = af.SessionConfig(optimizations={"pack_sends": packs})
    async with cluster("ps", "worker") as servers, af.Session(servers[1].target, config=config) as session:
        await session.run(af.global_variables_initializer())
        fetches = [value.op for value in values]
        assert len(sends(session.plan(fetches))) == (1 if packs else 2)
        first, second = await session.run(values)
    assert (first.shape, second.shape) == ((3,), (2, 2))
