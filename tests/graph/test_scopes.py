"""Scopes: names, devices, control inputs, colocation, gradients; each task and each thread has its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import aioflow as af
from aioflow.errors import InvalidArgumentError
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.scopes import current_scope


def _waits_for(op: Any) -> list[str]:
    return sorted(c.name for c in getattr(op, "op", op).control_inputs)


# -- names ---------------------------------------------------------------------------------------------------------


def test_name_scopes_nest_and_are_unique() -> None:
    names = []
    for _ in range(2):
        with af.name_scope("a") as a:
            names.append(a)
            with af.name_scope("b") as b:
                names += [b, af.no_op(name="n").name]
    assert names == ["a/", "a/b/", "a/b/n", "a_1/", "a_1/b/", "a_1/b/n"]


def test_a_scope_and_a_node_do_not_share_a_name() -> None:
    af.no_op(name="x")
    with af.name_scope("X") as scope:
        assert scope == "X_1/"
    assert af.no_op(name="x_1").name == "x_1_1"


def test_a_scope_is_reentered_by_its_full_name() -> None:
    with af.name_scope("a") as a:
        af.no_op(name="n")
    with af.name_scope("other"), af.name_scope(a) as again:
        assert again == a
        assert af.no_op(name="n").name == "a/n_1"
        with af.name_scope(a):
            assert af.no_op(name="n").name == "a/n_2"
    assert af.no_op(name=a).name == "a", "the scope's own node"


@pytest.mark.parametrize("name", [None, "", "/"])
def test_an_empty_name_returns_to_the_root(name: str | None) -> None:
    with af.name_scope("a"):
        with af.name_scope(name) as scope:
            assert scope == ""
            assert af.no_op(name="n").name == "n"
        assert af.no_op(name="n").name == "a/n"


def test_name_takes_precedence_over_default_name(graph: af.Graph) -> None:
    x = af.constant(1)
    with af.name_scope(None, "default", [x]) as scope:
        assert scope == "default/"
    with af.name_scope("given", "default", [x]) as scope:
        assert scope == "given/"
    with pytest.raises(InvalidArgumentError), af.name_scope(None, None, [x]):
        pass


def test_a_scope_takes_the_graph_of_its_values(graph: af.Graph) -> None:
    with af.Graph().as_default() as other:
        there = af.constant(1)
    with af.name_scope("s", values=[there, 3.0]):
        assert af.get_default_graph() is other
        assert af.no_op().name == "s/NoOp"
    assert af.get_default_graph() is graph
    with pytest.raises(InvalidArgumentError, match="another graph"), af.name_scope("s", values=[there, af.no_op()]):
        pass


BUILDERS_OF_TWO: Mapping[str, Callable[[Any, Any], Any]] = {
    "a node": af.add,
    "a node of a list": lambda a, b: af.stack([a, b]),
    "several nodes": lambda a, b: af.nn.weighted_moments(a, [0], b),
    "a matrix product": lambda a, b: af.tensordot(a, b, 1),
    "a group": af.group,
    "a tuple": lambda a, b: af.tuple([a, b]),
    "a norm": lambda a, b: af.global_norm([a, b]),
    "a loop": lambda a, b: af.while_loop(lambda x, y: af.reduce_all(x > y), lambda x, y: (x, y), [a, b]),
    "a function": lambda a, b: af.function(lambda x, y: x)(a, b),
    "a Python function": lambda a, b: af.py_func(lambda x, y: x, [a, b], af.float32),
    "a gradient": lambda a, b: af.gradients(a, b),
}


@pytest.mark.parametrize("build", BUILDERS_OF_TWO.values(), ids=BUILDERS_OF_TWO)
def test_builders_reject_values_of_several_graphs(build: Callable[[Any, Any], Any], graph: af.Graph) -> None:
    here = af.constant([1.0, 2.0])
    with af.Graph().as_default() as other:
        there = af.constant([3.0, 4.0], name="there")
    made = len(other.get_operations())
    with pytest.raises(InvalidArgumentError, match="tensor 'there:0' is from another graph"):
        build(here, there)
    assert len(other.get_operations()) == made


def test_builders_work_in_the_graph_of_their_values(graph: af.Graph) -> None:
    with af.Graph().as_default():
        there = af.constant([3.0, 4.0])
    for build in BUILDERS_OF_TWO.values():
        build(there, there)
    assert graph.get_operations() == []


def test_an_empty_name_is_the_root_for_builders_too(graph: af.Graph) -> None:
    x = af.constant([1.0, 2.0])
    with af.name_scope("outer"):
        assert af.nn.moments(x, [0], name="")[0].name == "Squeeze:0"
        assert af.norm(x, name="").name == "Sqrt:0"
        assert af.clip_by_norm(x, 1.0, name="").name == "Identity:0"
        (gradient,) = af.gradients(x * 2.0, x, name="")
        assert gradient is not None
        assert gradient.name == "outer/mul_grad/Mul:0"
        assert af.count_nonzero(x, name="").name == "Sum_2:0"
        assert af.matmul([[1.0]], [[2.0]], name="").name == "MatMul:0"


@pytest.mark.parametrize("name", ["_x", "a b", "-x", "x:y"])
def test_malformed_scope_names_are_rejected(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not a valid scope name"), af.name_scope(name):
        pass


def test_a_scope_that_raises_is_left(graph: af.Graph) -> None:
    before = current_scope(graph)
    with pytest.raises(KeyError), af.name_scope("a"), af.device("/cpu:0"), af.control_dependencies([]):
        raise KeyError
    assert current_scope(graph) is before
    assert af.no_op(name="n").name == "n"


def test_each_graph_has_scopes_of_its_own(graph: af.Graph) -> None:
    with af.name_scope("a"), af.device("/gpu:0"):
        with af.Graph().as_default(), af.name_scope("b"):
            other = af.constant(1, name="n")
            with graph.as_default():
                assert af.no_op(name="n").name == "a/n"
        assert (other.name, other.device) == ("b/n:0", "")


# -- devices -------------------------------------------------------------------------------------------------------


def test_device_scopes_merge_part_by_part() -> None:
    with af.device("/job:worker/gpu:0"):
        assert af.no_op().device == "/job:worker/device:GPU:0"
        with af.device("/cpu:1"):
            assert af.no_op().device == "/job:worker/device:CPU:1"
        with af.device("/task:3"):
            assert af.no_op().device == "/job:worker/task:3/device:GPU:0"
        with af.device(DeviceSpec(job="ps")):
            assert af.no_op().device == "/job:ps/device:GPU:0"
        with af.device(""):
            assert af.no_op().device == "/job:worker/device:GPU:0"
        with af.device(None):
            assert af.no_op().device == ""
            with af.device("/cpu:0"):
                assert af.no_op().device == "/device:CPU:0"
    assert af.no_op().device == ""
    assert af.constant(1).device == ""


def test_a_device_function_sees_the_node_and_inner_requests() -> None:
    seen = []

    def choose(op: af.Operation) -> str | DeviceSpec | None:
        seen.append((op.type, op.name, op.device))
        if op.type == "NoOp":
            return None
        return "/gpu:7" if op.name == "a" else DeviceSpec(job="x", device_type="CPU", device_index=2)

    with af.device("/job:outer/task:1"), af.device(choose):
        a = af.constant(1, name="a")
        with af.device("/cpu:1"):
            b = af.constant(1, name="b")
            c = af.no_op(name="c")
    assert seen == [("Const", "a", ""), ("Const", "b", "/device:CPU:1"), ("NoOp", "c", "/device:CPU:1")]
    assert a.device == "/job:outer/task:1/device:GPU:7"
    assert b.device == "/job:x/task:1/device:CPU:2", "the answer takes the place of what is asked for inside"
    assert c.device == "/job:outer/task:1/device:CPU:1", "None leaves it as it is"


@pytest.mark.parametrize("target", ["/gpux", "nonsense", lambda op: "/gpux", lambda op: 3, 3])
def test_malformed_devices_are_rejected(graph: af.Graph, target: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught, af.device(target):
        af.no_op(name="n")
    assert caught.value.expected is not None
    assert graph.version == 0
    assert af.no_op(name="after").device == ""


# -- control inputs ------------------------------------------------------------------------------------------------


def test_nodes_wait_for_the_blocks_around_them() -> None:
    a, b = af.constant(1, name="a"), af.no_op(name="b")
    with af.control_dependencies([a]):
        outer = af.no_op(name="outer")
        with af.control_dependencies([b, "a:0", "b"]):
            inner = af.no_op()
        with af.control_dependencies([]):
            same = af.no_op()
    assert _waits_for(outer) == ["a"]
    assert _waits_for(inner) == ["a", "b"]
    assert _waits_for(same) == ["a"]
    assert _waits_for(af.no_op()) == []


def test_none_clears_the_control_inputs_of_outer_blocks() -> None:
    a, b = af.no_op(name="a"), af.no_op(name="b")
    with af.control_dependencies([a]):
        with af.control_dependencies(None):
            assert _waits_for(af.no_op()) == []
            with af.control_dependencies([b]):
                assert _waits_for(af.no_op()) == ["b"]
        with af.init_scope():
            assert _waits_for(af.no_op()) == []
        assert _waits_for(af.no_op()) == ["a"]


def test_a_reader_of_a_block_member_gets_no_control_input() -> None:
    a, b = af.constant(1, name="a"), af.no_op(name="b")
    before = af.constant(1)
    with af.control_dependencies([a]):
        first = af.constant(2)
        assert _waits_for(first) == ["a"]
        assert _waits_for(af.identity(first)) == []
        assert _waits_for(af.identity(before)) == ["a"]
        assert _waits_for(af.identity(a)) == [], "it reads the control input itself"
        with af.control_dependencies([b]):
            second = af.no_op()
            assert _waits_for(second) == ["a", "b"]
            assert _waits_for(af.identity(first)) == ["b"], "the inner block is not waited for yet"
            inside = af.identity(before)
            assert _waits_for(af.add(first, inside)) == []


def test_each_control_block_has_its_own_members() -> None:
    a = af.no_op(name="a")
    with af.control_dependencies([a]):
        first = af.constant(1)
    with af.control_dependencies([a]):
        assert _waits_for(af.identity(first)) == ["a"]


@pytest.mark.parametrize("item", ["nothing", 3.5, None])
def test_invalid_control_inputs_are_rejected(item: Any) -> None:
    with pytest.raises(af.errors.OpError), af.control_dependencies([item]):
        pass


def test_variables_and_groups_can_be_waited_for() -> None:
    v = af.Variable(1.0, name="v")
    with af.control_dependencies([v, af.group(af.no_op(name="x"), name="g")]):
        assert "g" in _waits_for(af.no_op())
        assert len(_waits_for(af.no_op())) == 2


# -- colocation ----------------------------------------------------------------------------------------------------


def _group(op: Any) -> Any:
    return getattr(op, "op", op).attrs.get("_class")


def test_colocated_nodes_share_group_and_device() -> None:
    with af.device("/gpu:0"):
        a = af.constant(1, name="a")
    with af.device("/cpu:1"):
        b = af.constant(1, name="b")
    with af.device("/cpu:9"), af.colocate_with(a):
        c = af.constant(1, name="c")
        with af.device("/cpu:3"):
            d = af.constant(1, name="d")
        with af.colocate_with(b):
            e = af.constant(1, name="e")
        with af.colocate_with(b, ignore_existing=True):
            f = af.constant(1, name="f")
        with af.colocate_with(None):
            g = af.constant(1, name="g")
    with af.colocate_with(c.op):
        h = af.constant(1, name="h")
    assert [_group(t) for t in (a, c, d, e, f, g, h)] == [
        None,
        ("loc:@a",),
        ("loc:@a",),
        ("loc:@a", "loc:@b"),
        ("loc:@b",),
        None,
        ("loc:@a",),
    ]
    assert [t.device for t in (c, d, e, f, g, h)] == [
        "/device:GPU:0",
        "/device:GPU:0",
        "/device:CPU:1",
        "/device:CPU:1",
        "",
        "/device:GPU:0",
    ]


def test_a_node_without_constraints_is_a_group_of_its_own() -> None:
    a = af.no_op(name="a")
    assert a.colocation_groups() == [b"loc:@a"]
    with af.colocate_with(a):
        assert af.no_op().colocation_groups() == [b"loc:@a"]


# -- gradients, containers -----------------------------------------------------------------------------------------


def test_the_gradient_override_map(graph: af.Graph) -> None:
    with graph.gradient_override_map({"Identity": "Outer", "Neg": "Outer"}):
        with graph.gradient_override_map({"Identity": "Inner"}):
            inner = [af.identity(1.0).op, af.negative(1.0).op]
        outer = af.identity(1.0).op
    after = af.identity(1.0).op
    found = [op.attrs.get("_gradient_op_type") for op in (*inner, outer, after)]
    assert found == ["Inner", "Outer", "Outer", None]


def test_containers_nest(graph: af.Graph) -> None:
    with graph.container("a"):
        with graph.container("b") as name:
            assert (name, current_scope(graph).container) == ("b", "b")
        assert current_scope(graph).container == "a"
    assert current_scope(graph).container == ""


# -- tasks and threads ---------------------------------------------------------------------------------------------


async def test_scopes_do_not_leak_between_tasks(graph: af.Graph) -> None:
    turns = asyncio.Barrier(2)
    a, b = af.no_op(name="wait_a"), af.no_op(name="wait_b")

    async def build(name: str, device: str, control: af.Operation) -> af.Operation:
        with af.name_scope(name), af.device(device), af.control_dependencies([control]):
            await turns.wait()  # both tasks are inside their scopes
            made = af.no_op(name="n")
            await turns.wait()
        assert current_scope(graph).name == "outer"
        return made

    with af.name_scope("outer"):
        async with asyncio.TaskGroup() as group:
            first = group.create_task(build("one", "/cpu:1", a))
            second = group.create_task(build("two", "/cpu:2", b))
    for task, name, device, control in ((first, "one", 1, "wait_a"), (second, "two", 2, "wait_b")):
        op = task.result()
        assert (op.name, op.device) == (f"outer/{name}/n", f"/device:CPU:{device}")
        assert _waits_for(op) == [control]
    assert current_scope(graph).name == ""


async def test_a_task_keeps_the_scopes_that_it_was_started_in(graph: af.Graph) -> None:
    async def build() -> str:
        await asyncio.sleep(0)
        return af.no_op(name="n").name

    async with asyncio.TaskGroup() as group:
        with af.name_scope("a"):
            task = group.create_task(build())
    assert task.result() == "a/n"


def test_scopes_do_not_leak_into_threads(graph: af.Graph) -> None:
    names: list[str] = []

    def build() -> None:
        with graph.as_default(), af.name_scope("thread"):
            names.append(af.no_op(name="n").name)

    with af.name_scope("main"), af.device("/gpu:0"):
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
        assert af.no_op(name="n").name == "main/n"
    assert names == ["thread/n"]
    assert graph.get_operation_by_name("thread/n").device == ""


async def test_to_thread_carries_the_scopes_along(graph: af.Graph) -> None:
    with af.name_scope("a"):
        assert (await asyncio.to_thread(lambda: af.no_op(name="n"))).name == "a/n"
