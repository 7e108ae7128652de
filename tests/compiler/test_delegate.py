"""Delegation of parts of a step to another engine: how nodes are grouped, and that results stay the same.

The engine here computes the nodes that a seed chooses. Its parts run node by node, so results are equal to the bit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.delegate import delegated, regions
from aioflow.compiler.ir import ClientGraph, Node
from aioflow.compiler.partition import partition
from aioflow.compiler.prune import StepRequest, prune
from aioflow.compiler.verify import verify
from aioflow.config import SessionConfig
from aioflow.graph.arrays import to_array
from aioflow.ops.delegated import DELEGATED
from aioflow.runtime.step import Step
from aioflow.runtime.worker import Worker
from tests.runtime.flow_programs import random_flow_program
from tests.runtime.programs import random_program
from tests.runtime.split import CPU, scattered
from tests.support.outcomes import bits
from tests.support.random_examples import examples


class Engine:
    """An engine that computes every node except those in `refuses`; with a seed it also refuses 30 % at random."""

    name = "test"

    def __init__(self, refuses: Mapping[str, str] | None = None, seed: int | None = None, call_seconds: float = 0.0):
        self.call_seconds = call_seconds
        self._refuses = refuses or {}
        self._seed = seed

    def refused(self, graph: ClientGraph) -> dict[str, str]:
        found = {name: why for name, why in self._refuses.items() if name in graph.nodes}
        if self._seed is not None:
            names = (n for n in graph.nodes if not n.startswith("_"))
            by_chance = (n for n in names if random.Random(f"{self._seed} {n}").random() < 0.3)
            found |= dict.fromkeys(by_chance, "by chance")
        return found


def second(_: Node) -> float:
    return 1.0


def members(graph: ClientGraph, engine: Engine) -> list[tuple[str, ...]]:
    found, _ = regions(CPU.format(0), graph, engine, second)
    return [region.members for region in found]


def pruned(*fetches: af.Tensor, feeds: tuple[af.Tensor, ...] = ()) -> ClientGraph:
    return prune(StepRequest(feeds, fetches))


async def run_delegated(program: Any, seed: int, devices: int) -> tuple[list[Any], int]:
    """Return the fetched values of a randomly partitioned step, and the number of delegated parts."""
    config = SessionConfig(device_count={"CPU": devices}, inline_budget=0.0 if seed % 3 == 0 else 2e-4)
    worker = Worker(config)
    plan = partition(scattered(pruned(*program.fetches, feeds=tuple(program.feeds)), seed, devices))
    engine = Engine(seed=seed)
    plan = plan.changed(lambda device, graph: verify(delegated(device, graph, engine, second), whole=False))
    (part,) = plan.parts.values()
    handle = worker.register_now(part, 1, config)
    step = Step()
    try:
        fetches = await worker.run(handle, [to_array(v, t.dtype) for t, v in program.feeds.items()], step)
    finally:
        step.finish()
    return fetches, sum(node.op == DELEGATED for node in plan.nodes())


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 100_000), devices=st.integers(1, 3), kind=st.sampled_from(["plain", "branches", "loops"]))
@example(seed=168, devices=1, kind="loops")  # one part feeds a loop and reads a variable of it
@example(seed=135, devices=1, kind="loops")
@example(seed=49, devices=2, kind="branches")  # a value from another device may be dead
def test_delegating_parts_does_not_change_results(seed: int, devices: int, kind: str) -> None:
    async def compare() -> None:
        with af.Graph().as_default():
            program: Any = random_program(seed) if kind == "plain" else random_flow_program(seed, loops=kind == "loops")
            config = af.SessionConfig(executor="reference", optimizations=False)
            async with af.Session(config=config) as session:
                whole = await session.run(list(program.fetches), program.feeds)
            async with asyncio.timeout(120):
                parts, count = await run_delegated(program, seed, devices)
            assert bits(parts) == bits(whole)
            assert count or kind != "plain"

    asyncio.run(compare())


def test_adjacent_supported_nodes_form_one_part() -> None:
    x = af.placeholder("float32", [3])
    y = af.tanh(af.exp(x, name="a"), name="b") + af.constant([1.0, 2.0, 3.0], name="c")
    assert members(pruned(y, feeds=(x,)), Engine()) == [("a", "b", y.op.name)]


def test_a_refused_node_splits_the_parts_around_it() -> None:
    x = af.placeholder("float32", [3])
    a = af.exp(x, name="a")
    beside = af.tanh(a, name="beside")
    z = af.add(af.square(a, name="between"), beside, name="z")
    assert members(pruned(z, feeds=(x,)), Engine({"between": "no translation"})) == [("a", "beside"), ("z",)]


def test_a_dequeue_splits_parts() -> None:
    queue = af.FIFOQueue(3, "float32", shapes=[[3]])
    x = af.placeholder("float32", [3])
    z = af.add(af.exp(x, name="a"), af.tanh(queue.dequeue(), name="b"), name="z")
    assert members(pruned(z, feeds=(x,)), Engine()) == [("a",), ("b", "z")]


def test_every_undelegated_node_has_a_reason() -> None:
    x = af.placeholder("float32", [3])
    variable = af.Variable([1.0, 2.0, 3.0])
    texts = af.as_string(x, name="texts")
    size = af.placeholder("int32", [])
    filled = af.fill(size[None], 1.0, name="filled")
    looped = af.while_loop(lambda y: af.reduce_sum(y) < 9.0, lambda y: af.add(y, 1.0, name="inside"), [x])
    random_numbers = af.random_uniform([3], name="numbers")
    square = af.square(variable + random_numbers, name="square")
    graph = pruned(texts, filled, looped, square, feeds=(x, size))
    _, stays = regions(CPU.format(0), graph, Engine({"square": "no translation"}), second)
    inside = next(name for name in graph.nodes if name.endswith("inside"))
    assert stays[inside] == "in a loop"
    assert stays["texts"] == "non-numeric values"
    assert stays["filled"] == "its output size depends on values"
    assert stays["square"] == "no translation"
    reads = {name for name, node in graph.nodes.items() if node.op == "ReadVariableOp"}
    assert {stays[name] for name in reads} == {"a variable; its value is passed to the engine"}


def test_each_branch_forms_its_own_part() -> None:
    x = af.placeholder("float32", [3])
    shifted = af.add(x, 1.0, name="before")

    def one() -> af.Tensor:
        return af.tanh(af.exp(shifted, name="a") * af.constant([1.0, 2.0, 3.0]), name="b")

    side = af.cond(x[0] > 0, one, lambda: af.square(shifted, name="c"))
    graph = pruned(af.tanh(side, name="behind"), feeds=(x,))
    found = [[name.split("/")[-1] for name in part] for part in members(graph, Engine())]
    assert ["a", "mul", "b"] in found
    assert ["c"] in found
    assert ["behind"] in found


def test_a_part_keeps_the_control_inputs_of_its_constants() -> None:
    """The constant becomes a member of the part, so the part must wait for the control inputs of the constant."""
    x, variable = af.placeholder("float32", [3]), af.Variable([0.0, 0.0, 0.0])
    with af.control_dependencies([variable.assign(x)]):
        late = af.constant([1.0, 2.0, 3.0], name="late")
    y = af.tanh(x * late, name="y")
    before = pruned(y, feeds=(x,))
    after = delegated(CPU.format(0), before, Engine(), second)
    assert after.nodes["y"].op == DELEGATED
    assert after.nodes["y"].control == before.nodes["late"].control != ()


def test_nodes_with_sizes_derived_from_input_shapes_are_delegated() -> None:
    rows, columns = af.placeholder("float32", [None, 1]), af.placeholder("float32", [1, None])
    grown = af.add(rows, columns, name="grown")
    gradient = af.raw_ops.TanhGrad(y=grown, dy=grown, name="gradient")
    size = af.shape(gradient, name="size")
    zeros = af.fill(size * 2, 0.0, name="zeros")
    graph = pruned(zeros, feeds=(rows, columns))
    computing = tuple(n for n, node in graph.nodes.items() if node.op not in ("_Arg", "_Retval", "Const"))
    assert members(graph, Engine()) == [computing]


def test_a_part_cheaper_than_a_call_is_not_delegated() -> None:
    x = af.placeholder("float32", [3])
    a = af.exp(x, name="a")
    graph = pruned(af.tanh(a, name="b"), feeds=(x,))
    assert members(graph, Engine(call_seconds=1.5)) == [("a", "b")]
    assert members(graph, Engine(call_seconds=2.5)) == []


def test_values_used_outside_a_part_are_its_outputs() -> None:
    x = af.placeholder("float32", [3])
    a = af.exp(x, name="a")
    b = af.tanh(a, name="b")
    with af.control_dependencies([a.op]):
        c = af.identity(x, name="c")
    graph = delegated(CPU.format(0), pruned(b, a, c, feeds=(x,)), Engine({"c": "no translation"}), second)
    (part,) = [node for node in graph.nodes.values() if node.op == DELEGATED]
    assert len(part.outputs) == 2
    assert graph.nodes["c"].control == (part.name,)


@pytest.mark.parametrize("executor", ["strands", "reference"])
async def test_an_error_names_the_node_inside_the_part(executor: str) -> None:
    x = af.placeholder("float32", [None])
    y = af.exp(af.gather(x, [0, 7], name="picked"), name="after")
    graph = delegated(CPU.format(0), scattered(pruned(y, feeds=(x,)), 0, 1), Engine(), second)
    worker = Worker(SessionConfig(executor=executor))
    (part,) = partition(graph).parts.values()
    handle = worker.register_now(part, 1, SessionConfig(executor=executor))
    step = Step()
    with pytest.raises(af.errors.InvalidArgumentError) as raised:
        await worker.run(handle, [to_array([1.0, 2.0], af.float32)], step)
    step.finish()
    assert raised.value.node == "picked"
