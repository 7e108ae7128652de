"""`group` over devices: control dependencies, and the number of messages between tasks."""

from __future__ import annotations

import pytest

import aioflow as af
from aioflow.graph.boundary import SEND
from tests.net.clusters import cluster

PS, OTHER, WORKER = "/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0"


def variables(device: str, count: int) -> list[af.Variable]:
    with af.device(device):
        return [af.Variable(float(i), name="v") for i in range(count)]


def test_group_is_placed_on_the_common_device_of_its_inputs() -> None:
    updates = [af.assign_add(v, 1.0).op for v in variables(PS, 2)]
    with af.device(WORKER):
        assert af.group(*updates, name="all").device == PS
        with af.colocate_with(variables(OTHER, 1)[0].handle):
            assert af.group(updates).device == PS
    assert af.group(*[af.constant(1.0) for _ in range(2)]).device == ""


def test_group_of_unplaced_inputs_uses_the_device_scope() -> None:
    values = [af.constant(1.0), af.constant(2.0)]
    with af.device(WORKER):
        assert af.group(*values).device == WORKER


def test_group_has_one_gate_per_device() -> None:
    first, second = ([af.assign_add(v, 1.0).op for v in variables(d, 2)] for d in (PS, OTHER))
    alone = variables(WORKER, 1)[0].initializer
    with af.device(WORKER):
        whole = af.group(first, second, alone, name="whole")
    assert (whole.name, whole.device) == ("whole", WORKER)
    *gates, last = whole.control_inputs
    assert last is alone
    assert [(gate.type, gate.device, list(gate.control_inputs)) for gate in gates] == [
        ("NoOp", PS, first),
        ("NoOp", OTHER, second),
    ]


@pytest.mark.parametrize("servers", [1, 2])
async def test_group_sends_one_message_per_server(servers: int) -> None:
    kept = [v for task in range(servers) for v in variables(f"/job:ps/task:{task}", 3)]
    with af.device(PS):
        count = af.Variable(0, name="count")
    updates = [af.assign_add(v, 1.0).op for v in kept]
    with af.device(WORKER), af.control_dependencies([af.group(*updates)]), af.colocate_with(count.handle):
        step = af.assign_add(count, 1).op
    async with cluster(*["ps"] * servers, "worker") as running, af.Session(running[-1].target) as session:
        await session.run(af.global_variables_initializer())
        for _ in range(2):
            await session.run(step)
        assert await session.run([kept, count]) == [[float(i % 3) + 2 for i in range(3 * servers)], 2]
        sends = [node.attrs["recv_device"] for node in session.plan(step).nodes() if node.op == SEND]
    # With two servers, each sends to the worker, which sends to the first. With one, no message is needed.
    assert len(sends) == (0 if servers == 1 else 3)


async def test_tuple_gates_indexed_slices(graph: af.Graph) -> None:
    # Values, indices and shape all wait for the slowest component.
    count = af.get_variable("count", initializer=0)
    slices = af.IndexedSlices(af.constant([[1.0]]), af.constant([2]), af.constant([4, 1]))
    with af.control_dependencies([count.assign_add(1, read_value=False)]):
        late = af.identity(5.0)
    gated, nothing, other = af.tuple([slices, None, late])
    assert isinstance(gated, af.IndexedSlices)
    assert nothing is None
    assert gated.dense_shape is not None
    async with af.Session() as session:
        await session.run(count.initializer)
        for done, part in enumerate((gated.values, gated.indices, gated.dense_shape), start=1):
            await session.run(part)
            assert await session.run(count) == done
        assert await session.run([*gated.components, other]) == [[[1.0]], [2], pytest.approx([4, 1]), 5.0]
