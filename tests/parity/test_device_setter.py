"""Placement of a model's nodes by `train.replica_device_setter`, in both systems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import aioflow


def greedy() -> Callable[[Any], int]:
    """Return a strategy that picks the server with the fewest elements. It accepts the ops of both systems."""
    loads = [0, 0, 0]

    def choose(op: Any) -> int:
        task = loads.index(min(loads))
        shape = op.get_attr("shape")
        dims = shape.dim if hasattr(shape, "dim") else shape.as_list()
        count = 1
        for dim in dims:
            count *= getattr(dim, "size", dim)
        loads[task] += count
        return task

    return choose


SETTERS: dict[str, Callable[[], dict[str, Any]]] = {
    "in turn": lambda: {"ps_tasks": 3},
    "greedy": lambda: {"ps_tasks": 3, "ps_strategy": greedy()},
    "another worker": lambda: {"ps_tasks": 2, "worker_device": "/job:trainer/task:7/cpu:0"},
    "a device of the server": lambda: {"ps_tasks": 2, "ps_device": "/job:state/cpu:0"},
    "no job of servers": lambda: {"ps_tasks": 2, "ps_device": "/cpu:0"},
    "left alone": lambda: {"ps_tasks": 2, "merge_devices": False},
    "a cluster": lambda: {"cluster": {"ps": ["a:1", "b:1"], "worker": ["c:1"]}},
    "only accumulators": lambda: {"ps_tasks": 2, "ps_ops": ["ResourceConditionalAccumulator"]},
}


def devices(m: Any, arguments: dict[str, Any]) -> list[str]:
    """Return the devices of a model's variables, of the optimizer's slots, and of some other nodes."""
    with m.Graph().as_default(), m.device(m.train.replica_device_setter(**arguments)):
        x = m.placeholder("float32", [None, 4], name="x")
        w = m.get_variable("w", [4, 6])
        b = m.get_variable("b", [6])
        with m.device("/job:ps/task:1"):
            pinned = m.get_variable("pinned", [6])
        with m.device("/cpu:0"):
            half = m.get_variable("half", [6])
        step = m.train.get_or_create_global_step()
        y = m.matmul(x, w) + b + pinned + half
        loss = m.reduce_mean(m.square(y))
        sums = m.ConditionalAccumulator("float32", [6], name="sums")
        adam = m.train.AdamOptimizer()
        adam.minimize(loss, step)
        slots = [adam.get_slot(v, name) for v in (w, b, pinned, half) for name in ("m", "v")]
        handles = [v.handle.op.device for v in (w, b, pinned, half, step, *slots)]
        return [*handles, y.op.device, loss.op.device, sums._accumulator_ref.op.device]


@pytest.mark.parametrize("name", SETTERS)
def test_device_setter_places_nodes_like_tensorflow(tf: Any, name: str) -> None:
    assert devices(aioflow, SETTERS[name]()) == devices(tf, SETTERS[name]())
