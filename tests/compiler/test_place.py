"""Placement of whole programs: device requests, errors, soft placement and parts.

The rules of the constraints have their own cases in place/test_constraints.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.ir import ClientGraph, Node, Plan
from aioflow.compiler.partition import partition
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.colocation import is_everywhere
from aioflow.compiler.place.constraints import Group, feasible_groups
from aioflow.compiler.place.placement import place
from aioflow.compiler.prune import StepRequest, prune
from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.graph.opdef import OPS, define_op
from aioflow.kernels.registry import KERNELS, kernel
from aioflow.ops.apply import make
from tests.support.dense import dense
from tests.support.random_examples import examples

TASK = "/job:localhost/replica:0/task:0"
CPU0, CPU1, GPU0 = (f"{TASK}/device:{d}" for d in ("CPU:0", "CPU:1", "GPU:0"))


@pytest.fixture(scope="module", autouse=True)
def _ops() -> Iterator[None]:
    """Define an op with a kernel for GPUs only, and an op without a kernel."""
    if "TestPlaceGpu" not in OPS:
        define_op("TestPlaceGpu", "", "y: float32", shape=lambda ctx: ())
        define_op("TestPlaceNowhere", "", "y: float32", shape=lambda ctx: ())
        kernel("TestPlaceGpu", device="GPU")(lambda: 1.0)
    yield
    assert not KERNELS.for_op("TestPlaceNowhere")


def _placed(*fetches: af.Tensor, devices: tuple[str, ...] = (GPU0, CPU0, CPU1), soft: bool = False) -> ClientGraph:
    return place(prune(StepRequest((), fetches)), ClusterView(devices, soft))


def test_every_node_gets_a_full_device_name() -> None:
    x = af.placeholder("float32", [])
    graph = place(prune(StepRequest((x,), (x + 1.0,))), ClusterView((CPU0, CPU1)))
    assert {n.device for n in graph.nodes.values()} == {CPU0}


@pytest.mark.parametrize(
    ("request_", "device"),
    [("", GPU0), ("/cpu:1", CPU1), ("/cpu", CPU0), ("/device:CPU:*", CPU0), ("/job:localhost/task:0/cpu:1", CPU1)],
)
def test_a_request_selects_the_first_matching_device(request_: str, device: str) -> None:
    with af.device(request_):
        c = af.constant(1.0, name="c")
    assert _placed(c).nodes["c"].device == device


def test_a_device_without_a_kernel_is_passed_over() -> None:
    y = make("TestPlaceGpu", name="y")
    assert _placed(y, devices=(CPU0, GPU0)).nodes["y"].device == GPU0


def test_an_unsatisfiable_request_lists_the_devices() -> None:
    with af.device("/gpu:7"):
        c = af.constant(1.0, name="c")
    with pytest.raises(InvalidArgumentError) as caught:
        _placed(c)
    error = caught.value
    assert error.node == "c"
    assert error.actual == "/device:GPU:7"
    assert all(f"{device}: node 'c' asks for" in error.message for device in (CPU0, CPU1, GPU0))
    assert "allow_soft_placement" in error.expected
    assert error.source is not None
    assert error.source.filename == __file__


def test_a_kernel_for_other_device_types_only_is_reported() -> None:
    with af.device("/cpu:0"):
        y = make("TestPlaceGpu", name="y")
    with pytest.raises(UnimplementedError) as caught:
        _placed(y)
    assert caught.value.node == "y"
    assert "GPU" in str(caught.value.expected)
    assert "CPU" in str(caught.value.actual)
    assert _placed(y, soft=True).nodes["y"].device == GPU0, "soft placement goes where the kernel is"


def test_an_op_without_kernels_is_rejected() -> None:
    y = make("TestPlaceNowhere", name="y")
    for soft in (False, True):
        with pytest.raises(UnimplementedError, match="no kernel") as caught:
            _placed(y, soft=soft)
        assert caught.value.node == "y"


def test_soft_placement_ignores_only_unsatisfiable_requests() -> None:
    with af.device("/gpu:7"):
        lost = af.constant(1.0, name="lost")
    with af.device("/cpu:1"):
        kept = af.constant(1.0, name="kept")
    graph = _placed(lost, kept, soft=True)
    assert graph.nodes["lost"].device == GPU0
    assert graph.nodes["kept"].device == CPU1


# -- choosing ----------------------------------------------------------------------------------------------------------


def _last(graph: ClientGraph, groups: Sequence[Group], cluster: ClusterView) -> dict[str, str]:
    """Choose the last device of each group, the least preferred one."""
    return {name: group.devices[-1] for group in groups for name in group.members}


def _never(*_: Any) -> dict[str, str]:
    raise AssertionError("there is nothing to choose")


def test_a_strategy_chooses_among_the_devices_that_fit() -> None:
    with af.device("/cpu:0"):
        a = af.Variable(1.0, name="here")
    b = af.Variable(1.0, name="there")
    graph = prune(StepRequest((), (a + b,), (a.initializer, b.initializer)))
    placed = place(graph, ClusterView((CPU0, CPU1)), _last).nodes
    assert {n.device for n in placed.values() if n.name.startswith("here")} == {CPU0}
    assert {n.device for n in placed.values() if n.name.startswith("there")} == {CPU1}


def test_no_strategy_is_called_without_a_choice() -> None:
    x = af.placeholder("float32", [])
    graph = prune(StepRequest((x,), (x + 1.0,)))
    assert {n.device for n in place(graph, ClusterView((CPU0,)), _never).nodes.values()} == {CPU0}
    with af.device("/cpu:1"):
        y = af.add(x, 1.0, name="y")
    graph = prune(StepRequest((x,), (y,)))
    assert {n.device for n in place(graph, ClusterView((CPU0, CPU1)), _never).nodes.values()} == {CPU1}


def test_a_constant_joins_its_readers_wherever_these_are_put() -> None:
    c, d = af.constant(1.0, name="c"), af.constant(2.0, name="d")
    with af.device("/cpu:1"):
        left = af.identity(c + d, name="left")
    with af.device("/cpu:0"):
        other = af.identity(d, name="other")
    right = af.add(c, 1.0, name="right")  # `right` and `left` are in different groups, so `c` forms its own
    with af.device("/cpu:0"):
        e = af.constant(2.0, name="e")
    apart = [af.add(e, 1.0, name="apart"), af.add(e, 2.0, name="far")]

    def choose(graph: ClientGraph, groups: Sequence[Group], cluster: ClusterView) -> dict[str, str]:
        return {n: CPU0 if n in ("c", "d", "e") else g.devices[-1] for g in groups for n in g.members}

    graph = prune(StepRequest((), (left, other, right, *apart)))
    placed = place(graph, ClusterView((CPU0, CPU1)), choose).nodes
    assert placed["right"].device == CPU1
    assert placed["c"].device == CPU1
    assert placed["d"].device == CPU0, "one of its readers is there"
    assert placed["apart"].device == placed["far"].device == CPU1
    assert placed["e"].device == CPU0, "it asks to be there"


def test_a_single_device_must_satisfy_the_request() -> None:
    with af.device("/cpu:1"):
        c = af.constant(1.0, name="c")
    with pytest.raises(InvalidArgumentError, match="CPU:0: node 'c' asks for /device:CPU:1"):
        _placed(c, devices=(CPU0,))
    assert _placed(c, devices=(CPU0,), soft=True).nodes["c"].device == CPU0
    y = make("TestPlaceGpu", name="y")
    with pytest.raises(UnimplementedError, match="CPU:0: no kernel of op TestPlaceGpu for CPU"):
        _placed(y, devices=(CPU0,))


def test_only_the_device_of_a_node_changes() -> None:
    x = af.placeholder("float32", [2], name="x")
    with af.control_dependencies([af.no_op(name="first")]):
        y = af.add(x, 1.0, name="y")
    before = prune(StepRequest((x,), (y,)))
    for devices in ((CPU0,), (CPU0, CPU1)):
        after = place(before, ClusterView(devices))
        assert (after.feeds, after.fetches, after.targets) == (before.feeds, before.fetches, before.targets)
        for old, new in zip(before.nodes.values(), after.nodes.values(), strict=True):
            assert {f: getattr(new, f) for f in Node.__slots__ if f != "device"} == {
                f: getattr(old, f) for f in Node.__slots__ if f != "device"
            }


# -- whole programs ----------------------------------------------------------------------------------------------------


def test_users_of_a_variable_are_placed_with_it() -> None:
    with af.device("/cpu:1"):
        v = af.Variable([1.0, 2.0], name="v")
    with af.device("/cpu:0"):
        loss = af.reduce_sum(af.square(v - [3.0, 4.0]), name="loss")
        train = af.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    graph = prune(StepRequest((), (loss,), (train, v.initializer)))
    placed = place(graph, ClusterView((CPU0, CPU1, GPU0))).nodes
    touching = [n for n in placed.values() if any(graph.spec(e).dtype.name == "resource" for e in n.inputs)]
    assert {"ResourceApplyMomentum", "AssignVariableOp", "ReadVariableOp"} <= {n.op for n in touching}
    assert {n.device for n in touching} == {CPU1}
    assert placed["loss"].device == CPU0


def test_queue_ops_are_placed_with_their_queue() -> None:
    with af.device("/cpu:1"):
        queue = af.FIFOQueue(3, ["float32"], shapes=[[]], name="queue")
    with af.device("/gpu:0"):
        put, got = queue.enqueue(1.0, name="put"), queue.dequeue(name="got")
    placed = place(prune(StepRequest((), (got,), (put,))), ClusterView((CPU0, CPU1, GPU0))).nodes
    assert {placed[name].device for name in ("queue", "put", "got")} == {CPU1}


_SCOPES = st.sampled_from(["/cpu:0", "/cpu:1", "/device:CPU:*", "", None])
_PAIRS = (CPU0, CPU1, f"{TASK}/device:CPU:2")


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(_SCOPES, min_size=6, max_size=6), st.randoms(use_true_random=False))
def test_control_flow_is_placed_so_that_only_computed_values_cross(scopes: list[str | None], rng: Any) -> None:
    """For any device scopes and choices, a Switch is with its data, an Exit with its Switch, and so on."""
    with af.Graph().as_default(), ExitStack() as stack:
        at = [af.device(scope) for scope in scopes]
        x = af.placeholder("float32", [], name="x")

        def inner(i: Any, a: Any) -> Any:
            with at[2]:
                b = a * 1.5
            return i + 1, af.cond(b > 10.0, lambda: b - 9.0, lambda: b + x)

        def outer(i: Any, a: Any) -> Any:
            with at[3]:
                _, c = af.while_loop(lambda j, _: j < 3, inner, [0, a])
            with at[4]:
                return i + 1, c + x

        stack.enter_context(at[0])
        _, y = af.while_loop(lambda i, _: i < 4, outer, [0, x])
        with at[1]:
            z = af.cond(y > 1.0, lambda: y * 2.0, lambda: y)
        with at[5]:
            (gradient,) = dense(af.gradients(z, x))
        graph = prune(StepRequest((x,), (z, gradient)))
    cluster = ClusterView(_PAIRS)
    feasible = {name: group.devices for group in feasible_groups(graph, cluster) for name in group.members}

    def choose(graph: ClientGraph, groups: Sequence[Group], cluster: ClusterView) -> dict[str, str]:
        picked = [rng.choice(group.devices) for group in groups]
        return {name: d for group, d in zip(groups, picked, strict=True) for name in group.members}

    placed = place(graph, cluster, choose).nodes
    for node in placed.values():
        assert node.device in feasible[node.name] or node.op == "Const"
        if node.op in ("Switch", "Exit") and not is_everywhere(placed[node.inputs[0].node]):
            assert node.device == placed[node.inputs[0].node].device, node.name
        if node.op == "Merge":
            for source in (placed[edge.node] for edge in node.inputs):
                assert source.op not in ("Enter", "NextIteration") or source.device == node.device, node.name
        if node.op not in ("Switch", "Exit", "Enter", "NextIteration", "_Arg", "_Retval"):
            asked = graph.nodes[node.name].device.removesuffix(":*")
            assert asked in node.device, node.name


# -- parts -------------------------------------------------------------------------------------------------------------


def _parted(*devices: str) -> Plan:
    made = []
    for i, device in enumerate(devices):
        with af.device(device):
            made.append(af.constant(1.0, name=f"c{i}"))
    return partition(_placed(*made, devices=(CPU0, CPU1)))


def test_one_device_is_one_part() -> None:
    plan = _parted("/cpu:0", "")
    assert list(plan.parts) == [TASK]
    part = plan.parts[TASK]
    assert part.task == TASK
    assert list(part.subgraphs) == [CPU0]
    assert (plan.feeds, plan.fetches) == (0, 2)
    assert set(part.subgraphs[CPU0].nodes) == {"c0", "c1", "_retval_0", "_retval_1"}


def test_an_empty_step_has_a_plan() -> None:
    plan = partition(ClientGraph({}, 0, 0))
    assert (plan.feeds, plan.fetches, len(plan.parts)) == (0, 0, 1)
