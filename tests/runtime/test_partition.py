"""Steps on several devices return the same bits as on one, in both executors."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.ir import ClientGraph
from aioflow.graph.boundary import RECV, SEND
from tests.runtime.flow_programs import random_flow_program
from tests.runtime.programs import random_program
from tests.runtime.split import CPU, run_split, split_plan
from tests.support.outcomes import bits
from tests.support.random_examples import examples

TWO = af.SessionConfig(device_count={"CPU": 2})


@pytest.mark.parametrize("executor", ["strands", "reference"])
@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 100_000), devices=st.integers(2, 4), kind=st.sampled_from(["plain", "branches", "loops"]))
def test_random_partition_equals_the_whole_step(executor: str, seed: int, devices: int, kind: str) -> None:
    async def compare() -> None:
        with af.Graph().as_default():
            program = random_program(seed) if kind == "plain" else random_flow_program(seed, loops=kind == "loops")
            fetches = list(program.fetches)
            config = af.SessionConfig(executor="reference", optimizations=False)
            async with af.Session(config=config) as session:
                whole = await session.run(fetches, program.feeds)
            async with asyncio.timeout(120):
                parts = await run_split(fetches, program.feeds, seed, devices, executor)
            assert bits(parts) == bits(whole)

    asyncio.run(compare())


def subgraphs(fetches: list[af.Tensor], feeds: list[af.Tensor]) -> dict[str, ClientGraph]:
    with af.Session(config=TWO) as session:
        plan = session.plan(fetches, feeds)
    return dict(plan.by_device())


def ops(graph: ClientGraph, op: str) -> list[str]:
    return [n.attrs["tensor_name"] for n in graph.nodes.values() if n.op == op]


def test_value_with_several_readers_is_sent_once_to_a_device() -> None:
    with af.device("/cpu:0"):
        x = af.placeholder("float32", [1000, 1000])
        a = af.matmul(x, x)
    with af.device("/cpu:1"):
        readers = [a + 1.0, a * 2.0, af.tanh(a)]
    cut = subgraphs(readers, [x])
    sent = ops(cut[CPU.format(0)], SEND)
    assert len(sent) == 1
    assert ops(cut[CPU.format(1)], RECV) == sent


def test_feeds_and_constants_are_not_sent() -> None:
    with af.device("/cpu:0"):
        x = af.placeholder("float32", [3])
        c = af.constant([1.0, 2.0, 3.0])
        a = x + c
    with af.device("/cpu:1"):
        b = x * c
    cut = subgraphs([a, b], [x])
    assert not any(ops(graph, SEND) for graph in cut.values())


def test_node_that_is_cheaper_than_its_transfer_is_computed_on_both_devices() -> None:
    x = af.placeholder("float32", [3])
    a = af.exp(x, name="a")
    with af.device("/cpu:0"):
        first = a * 3.0
    with af.device("/cpu:1"):
        second = a * 2.0
    cut = subgraphs([first, second], [x])
    assert all("a" in graph.nodes for graph in cut.values())
    assert not any(ops(graph, SEND) for graph in cut.values())


def test_explicitly_placed_node_is_not_duplicated() -> None:
    with af.device("/cpu:0"):
        x = af.placeholder("float32", [3])
        a = af.exp(x, name="a")
    with af.device("/cpu:1"):
        b = a * 2.0
    cut = subgraphs([b], [x])
    assert [device for device, graph in cut.items() if "a" in graph.nodes] == [CPU.format(0)]


def test_stateful_node_is_not_duplicated() -> None:
    with af.device("/cpu:0"):
        a = af.random_uniform([3])
    with af.device("/cpu:1"):
        b = a * 2.0
    assert len(ops(subgraphs([a, b], [])[CPU.format(0)], SEND)) == 1


def test_control_edge_sends_an_empty_tensor() -> None:
    with af.device("/cpu:0"):
        x = af.placeholder("float32", [3])
        first = af.exp(x)
    with af.device("/cpu:1"), af.control_dependencies([first]):
        second = x * 2.0
    cut = subgraphs([second], [x])
    (recv,) = [n for n in cut[CPU.format(1)].nodes.values() if n.op == RECV]
    assert recv.outputs[0].dims == (0,)


def test_control_edge_beside_a_value_adds_no_transfer() -> None:
    with af.device("/cpu:0"):
        x = af.placeholder("float32", [3])
        first = af.exp(x)
    with af.device("/cpu:1"), af.control_dependencies([first]):
        second = first * 2.0
    assert len(ops(subgraphs([second], [x])[CPU.format(0)], SEND)) == 1


def test_loop_over_two_devices_has_a_control_loop_on_the_receiver() -> None:
    plan = None
    for seed in range(200):
        with af.Graph().as_default():
            limit = af.placeholder("int32", [])
            out = af.while_loop(lambda i, v, limit=limit: i < limit, lambda i, v: (i + 1, v * 1.5), [0, 1.0])
            plan = split_plan(list(out), [limit], seed, 2)
        receiving = [g for _, g in plan.by_device() if any(n.op == RECV and n.control for n in g.nodes.values())]
        for graph in receiving:
            frames = {n.attrs["frame_name"] for n in graph.nodes.values() if n.op == "Enter"}
            assert len(frames) == 1
            clocks = [n for n in graph.nodes.values() if n.name.startswith("_clock") and n.op == "Merge"]
            assert len(clocks) == 1
            assert all(n.control == (clocks[0].name,) for n in graph.nodes.values() if n.op == RECV and n.control)
        if receiving:
            return
    pytest.fail("no seed put the loop on two devices")
