"""The same queue programs in both systems: values, static shapes and kinds of errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import aioflow
from tests.parity.step_programs import Program, ours, steps, theirs


def fifo(m: Any) -> Any:
    q = m.FIFOQueue(5, ["float32", "int32"], shapes=[[2], []])
    rows = q.enqueue_many([[[3.0, 4.0], [5.0, 6.0]], [8, 9]])
    return steps(q.enqueue([[1.0, 2.0], 7]), rows, q.size(), q.dequeue(), q.dequeue_many(2), q.size())


def blocking(m: Any) -> Any:
    q = m.FIFOQueue(2, ["int32"], shapes=[[]])
    return steps(
        q.dequeue(), q.enqueue_many([[1, 2]]), q.enqueue(3), q.size(), q.enqueue_many([[5]]), q.size(),
        q.dequeue_many(2), q.dequeue_many(0), q.dequeue_up_to(0),
    )  # fmt: skip


# Missing here: a dequeue that times out while it holds some of its elements. TensorFlow returns from `run` before it
# puts them back, so the next step may or may not see them.


def partly_in(m: Any) -> Any:
    q = m.FIFOQueue(2, ["int32"], shapes=[[]])
    return steps(q.enqueue_many([[1, 2, 3]]), q.size(), q.dequeue_many(2))


def wider_than_its_capacity(m: Any) -> Any:
    q = m.FIFOQueue(2, ["int32"], shapes=[[]])
    return [([q.dequeue_many(5), q.enqueue_many([[1, 2, 3, 4, 5]])], {}), *steps(q.size())]


def closing(m: Any) -> Any:
    q = m.FIFOQueue(5, ["int32"], shapes=[[]])
    return steps(
        q.enqueue_many([[1, 2, 3]]), q.is_closed(), q.close(), q.is_closed(), q.close(), q.close(True), q.enqueue(1),
        q.enqueue_many([[1]]), q.dequeue_many(5), q.size(), q.dequeue(), q.dequeue_up_to(5), q.dequeue_up_to(5),
        q.dequeue(), q.dequeue_many(1), q.dequeue_many(0),
    )  # fmt: skip


def padding(m: Any) -> Any:
    q = m.PaddingFIFOQueue(9, ["int32", "string"], shapes=[[None], []])
    wrong = m.placeholder("int32")
    return [
        *steps(q.enqueue([[1], "a"]), q.enqueue([[1, 2, 3], "b"]), q.enqueue([[4, 5], "c"])),
        (q.enqueue([wrong, "d"]), {wrong: [[1]]}),
        *steps(q.dequeue_many(2), q.close(), q.dequeue_up_to(4)),
    ]


def priority(m: Any) -> Any:
    q = m.PriorityQueue(9, ["string"], shapes=[[]])
    puts = [q.enqueue((m.constant(p, "int64"), v)) for p, v in ((3, "c"), (1, "a"), (3, "d"), (2, "b"), (0, "z"))]
    return steps(*puts, q.size(), q.dequeue(), q.dequeue_many(2), q.dequeue(), q.dequeue(), q.dequeue())


def shuffled(m: Any) -> Any:
    q = m.RandomShuffleQueue(9, 2, ["int32"], shapes=[[]], seed=4)
    total = m.reduce_sum(m.stack([q.dequeue(), q.dequeue(), q.dequeue()]))
    q2 = m.RandomShuffleQueue(2, 3, ["int32"])
    return steps(
        q.enqueue_many([[1, 1, 1, 1, 1]]), total, q.dequeue(), q.size(), q.close(), q.dequeue_many(2), q.dequeue(),
        q2.size(),
    )  # fmt: skip


def names(m: Any) -> Any:
    q = m.FIFOQueue(3, ["int32", "float32"], shapes=[[], [1]], names=["a", "b"])
    return steps(q.enqueue({"b": [2.0], "a": 1}), q.enqueue({"b": [4.0], "a": 3}), q.dequeue(), q.dequeue_many(1))


def wrong_values(m: Any) -> Any:
    q, free, value = m.FIFOQueue(2, ["float32"], shapes=[[2]]), m.FIFOQueue(2, ["float32"]), m.placeholder("float32")
    return [
        (q.enqueue(value), {value: [1.0, 2.0, 3.0]}),
        (q.enqueue_many(value), {value: [[1.0, 2.0, 3.0]]}),
        (q.enqueue_many(value), {value: 1.0}),
        (free.enqueue(value), {value: [1.0]}),
        (free.enqueue(value), {value: [[1.0]]}),
        *steps(free.dequeue(), free.dequeue_many(1), q.size()),
    ]


def shared(m: Any) -> Any:
    a = m.FIFOQueue(3, ["int32"], shapes=[[]], shared_name="s")
    b = m.FIFOQueue(3, ["int32"], shapes=[[]], shared_name="s")
    clash = m.FIFOQueue(3, ["float32"], shapes=[[]], shared_name="s")
    return steps(a.enqueue(1), b.size(), b.dequeue(), clash.size())


PROGRAMS = [
    fifo, blocking, partly_in, wider_than_its_capacity, closing, padding, priority, shuffled, names, wrong_values,
    shared,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_programs(tf: Any, program: Program) -> None:
    assert ours(program) == theirs(tf, program)


def test_static_shapes(tf: Any) -> None:
    def shapes(m: Any) -> list[Any]:
        with m.Graph().as_default():
            q = m.PaddingFIFOQueue(5, ["float32", "int32"], shapes=[[None, 2], []])
            free = m.FIFOQueue(5, ["float32"])
            many = m.placeholder("int32", [])
            batches = [*q.dequeue(), *q.dequeue_many(3), *q.dequeue_many(many), *q.dequeue_up_to(3)]
            tensors = [*batches, free.dequeue(), free.dequeue_many(2), q.size(), q.is_closed()]
            return [None if t.shape.ndims is None else t.shape.as_list() for t in tensors]

    assert shapes(aioflow) == shapes(tf)


@pytest.mark.parametrize(
    "build",
    [
        lambda m: m.FIFOQueue(2, ["float32", "int32"], shapes=[[2], []]).enqueue([[1.0, 2.0, 3.0], 1]),
        lambda m: m.FIFOQueue(2, ["float32", "int32"], shapes=[[2], []]).enqueue([1.0]),
        lambda m: m.FIFOQueue(2, ["float32"], shapes=[[2]]).enqueue_many([[[1.0]]]),
        lambda m: m.FIFOQueue(2, ["float32", "int32"]).enqueue_many([[1.0], [1, 2]]),
        lambda m: m.FIFOQueue(2, ["int32"], shapes=[[]]).dequeue_many(-1),
        lambda m: m.FIFOQueue(3, ["int32"], shapes=[[None]]),
        lambda m: m.FIFOQueue(3, ["int32"], shapes=[[], []]),
        lambda m: m.FIFOQueue(3, ["int32"], names=["a", "b"]),
        lambda m: m.FIFOQueue(3, ["int32"]).enqueue({"a": 1}),
        lambda m: m.FIFOQueue(3, ["int32"], names=["a"]).enqueue([1]),
    ],
)
def test_both_reject_wrong_arguments_while_the_graph_is_built(tf: Any, build: Callable[[Any], Any]) -> None:
    for module in (tf, aioflow):
        with module.Graph().as_default(), pytest.raises(ValueError):
            build(module)


def accumulated(m: Any) -> Any:
    a = m.ConditionalAccumulator("float32", shape=[2])
    value = m.placeholder("float32")
    total = m.ConditionalAccumulator("float64", shape=[], reduction_type="SUM")
    return [
        *steps(a.apply_grad([1.0, 2.0]), a.apply_grad([3.0, 5.0]), a.num_accumulated(), a.take_grad(2)),
        *steps(a.apply_grad([1.0, 1.0], local_step=0), a.num_accumulated(), a.take_grad(1)),
        *steps(a.apply_grad([1.0, 1.0], local_step=1), a.set_global_step(0), a.set_global_step(5), a.take_grad(1)),
        *steps(a.apply_grad([1.0, 1.0], local_step=5), a.num_accumulated(), a.take_grad(0), a.take_grad(-1)),
        (a.apply_grad(value, local_step=9), {value: [1.0, 1.0, 1.0]}),
        *steps(total.apply_grad(4.0), total.apply_grad(5.0), total.take_grad(1), total.num_accumulated()),
    ]


def test_accumulators(tf: Any) -> None:
    assert ours(accumulated) == theirs(tf, accumulated)
