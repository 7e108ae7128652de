"""The assignment of variables to parameter servers."""

from __future__ import annotations

from typing import Any

import pytest

import aioflow as af
from aioflow.graph.opdef import define_op
from aioflow.graph.traits import handle

SIZES = {"a": [100], "b": [10, 3], "c": [50], "d": [], "e": [60]}


def servers(strategy: Any, count: int = 2) -> dict[str, int]:
    """Return the server of each variable, created in the order of SIZES."""
    with af.Graph().as_default(), af.device(af.train.replica_device_setter(ps_tasks=count, ps_strategy=strategy)):
        made = {name: af.get_variable(name, shape) for name, shape in SIZES.items()}
    return {name: int(v.handle.op.device.rpartition(":")[2]) for name, v in made.items()}


def test_greedy_strategy_chooses_the_server_with_the_fewest_bytes() -> None:
    greedy = af.train.GreedyLoadBalancingStrategy(2, af.train.byte_size_load_fn)
    # In floats: a 100 | b 30, c 80, d 81. Then e goes to the server with 81.
    assert servers(greedy) == {"a": 0, "b": 1, "c": 1, "d": 1, "e": 1}
    assert servers(greedy)["a"] == 0, "it goes on from what it has placed: 100 are less than 141"


def test_greedy_strategy_accepts_any_load_function() -> None:
    by_name = {name: weight for weight, name in enumerate("abcde")}
    greedy = af.train.GreedyLoadBalancingStrategy(3, lambda op: by_name[op.name])
    assert servers(greedy, 3) == {"a": 0, "b": 0, "c": 1, "d": 2, "e": 0}


def test_random_strategy_does_not_depend_on_the_order() -> None:
    chosen = servers(af.train.RandomStrategy(5), 5)
    assert len(set(chosen.values())) > 1
    with af.Graph().as_default(), af.device(
        af.train.replica_device_setter(ps_tasks=5, ps_strategy=af.train.RandomStrategy(5))
    ):  # fmt: skip
        assert af.get_variable("e", [1]).handle.op.device == f"/job:ps/task:{chosen['e']}"
    assert servers(af.train.RandomStrategy(5, seed=1), 5) != chosen


def test_byte_size_of_a_handle_is_that_of_its_resource() -> None:
    size = af.train.byte_size_load_fn
    with af.Graph().as_default():
        assert size(af.get_variable("v", [4, 2], af.float64).handle.op) == 64
        assert size(af.ConditionalAccumulator("float32", [3]).accumulator_ref.op) == 12
        assert size(af.zeros([5], af.int16).op) == 10
        with pytest.raises(af.errors.InvalidArgumentError, match="size of 'x' is unknown"):
            size(af.placeholder("float32", [None], name="x").op)
        with pytest.raises(af.errors.InvalidArgumentError, match="one output"):
            size(af.unique([1, 1]).y.op)


def test_traits_of_an_op_declare_it_shared_by_replicas() -> None:
    define_op("TestSharedTable", "", "table: resource", shape=lambda ctx: (), traits=handle(is_shared=True))
    with af.Graph().as_default() as graph, af.device(af.train.replica_device_setter(ps_tasks=1)):
        table = graph.create_op("TestSharedTable", [], {}, [(af.resource, ())])
        accumulator = af.ConditionalAccumulator("float32", [3]).accumulator_ref
        queue = af.FIFOQueue(1, ["float32"]).queue_ref
    assert [n.device for n in (table, accumulator, queue)] == ["/job:ps/task:0", "/job:ps/task:0", "/job:worker"]


@pytest.mark.parametrize("count", [0, -1, 1.5, "2"])
def test_strategies_require_a_positive_number_of_servers(count: Any) -> None:
    for kind in (
        af.train.RandomStrategy,
        lambda n: af.train.GreedyLoadBalancingStrategy(n, af.train.byte_size_load_fn),
    ):
        with pytest.raises(af.errors.AioflowError):
            kind(count)
