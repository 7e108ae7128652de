"""Device functions as in published code: a setter that puts variables on parameter servers in turn."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest

import aioflow as af
from aioflow.graph.device_spec import DeviceSpec

_STATEFUL = frozenset({"VarHandleOp", "FIFOQueueV2"})


def setter(tasks: int, answer: Callable[[DeviceSpec], Any]) -> Callable[[af.Operation], Any]:
    """Return a device function like TensorFlow's `train.replica_device_setter`.

    State goes to /job:ps in turn, other nodes to /job:worker. The request of a node itself wins.
    """
    turns = cycle(range(tasks))

    def choose(op: af.Operation) -> Any:
        asked = DeviceSpec.from_string(op.device or "")
        if op.type in _STATEFUL:
            return answer(DeviceSpec(job="ps", task=next(turns)).make_merged_spec(asked))
        return answer(DeviceSpec(job="worker").make_merged_spec(asked))

    return choose


@pytest.mark.parametrize("answer", [lambda spec: spec, DeviceSpec.to_string], ids=["spec", "name"])
def test_state_is_placed_on_servers_in_turn_and_the_rest_on_the_worker(answer: Callable[[DeviceSpec], Any]) -> None:
    with af.device(setter(2, answer)):
        a, b, c = (af.Variable([1.0], name=name) for name in "abc")
        with af.device("/gpu:1"):
            y = af.multiply(a, b, name="y")
            d = af.Variable([1.0], name="d")
        with af.device(None):
            alone = af.constant(1.0, name="alone")
    assert [v.handle.op.device for v in (a, b, c)] == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]
    assert y.device == "/job:worker/device:GPU:1"
    assert d.handle.op.device == "/job:ps/task:1/device:GPU:1"
    assert alone.device == ""


def test_ops_of_a_variable_are_on_its_server() -> None:
    with af.device(setter(3, DeviceSpec.to_string)):
        af.Variable([0.0], name="first")
        v = af.Variable([1.0, 2.0], name="v")
        loss = af.reduce_sum(af.square(v))
        af.train.MomentumOptimizer(0.1, 0.9).minimize(loss, var_list=[v])
        read = v.read_value()
    graph = af.get_default_graph()
    touching = [op for op in graph.get_operations() if any(t.op is v.handle.op for t in op.inputs)]
    assert {op.type for op in touching} >= {"ReadVariableOp", "AssignVariableOp", "ResourceApplyMomentum"}
    assert {op.device for op in touching} == {"/job:ps/task:1"}
    assert read.op.colocation_groups() == [b"loc:@v"]
    assert loss.device == "/job:worker"


def test_device_functions_and_scopes_nest() -> None:
    def to_first_card(op: af.Operation) -> str:
        return "/gpu:0" if op.type == "AddV2" else op.device

    with af.device("/job:worker/task:2"), af.device(to_first_card), af.device("/cpu:3"):
        a, b = af.constant(1.0, name="a"), af.add(1.0, 2.0, name="b")
    assert a.device == "/job:worker/task:2/device:CPU:3"
    assert b.device == "/job:worker/task:2/device:GPU:0", "the answer takes the place of the inner scope"
