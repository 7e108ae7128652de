"""Barriers, sparse accumulators, staging areas, critical sections and stacks in both systems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import aioflow
from tests.parity.step_programs import Program, ours, steps, theirs


def flow(m: Any) -> Any:
    """Return the module of the data-flow classes, which TensorFlow does not export."""
    if m is aioflow:
        return m
    from tensorflow.python.ops import data_flow_ops

    return data_flow_ops


def barrier(m: Any) -> Any:
    b = flow(m).Barrier(["float32", "int32"], shapes=[[], [2]])
    return steps(
        b.insert_many(0, ["a", "b", "c"], [1.0, 2.0, 3.0]), b.incomplete_size(), b.ready_size(),
        b.insert_many(1, ["c", "a"], [[1, 2], [3, 4]]), b.ready_size(), b.incomplete_size(), b.take_many(2),
        b.insert_many(0, ["a", "d"], [5.0, 6.0]), b.insert_many(0, ["b"], [5.0]), b.incomplete_size(),
        b.insert_many(1, ["d", "b", "a"], [[1, 2], [3, 4], [5, 6]]), b.ready_size(), b.take_many(5),
        b.take_many(5, allow_small_batch=True), b.take_many(3), b.take_many(0), b.take_many(1),
    )  # fmt: skip


def closing_a_barrier(m: Any) -> Any:
    b = flow(m).Barrier(["float32", "float32"], shapes=[[], []])
    return steps(
        b.insert_many(0, ["a", "b", "c", "d"], [1.0, 2.0, 3.0, 4.0]), b.insert_many(1, ["c"], [1.0]), b.close(),
        b.close(), b.take_many(9), b.take_many(9, allow_small_batch=True), b.take_many(2, allow_small_batch=True),
        b.take_many(2), b.take_many(4), b.insert_many(0, ["new"], [1.0]), b.insert_many(1, ["a"], [1.0]),
        b.take_many(5, allow_small_batch=True), b.insert_many(1, ["b"], [9.0]), b.take_many(3), b.take_many(1),
        b.incomplete_size(), b.close(cancel_pending_enqueues=True), b.incomplete_size(),
        b.close(cancel_pending_enqueues=True), b.close(), b.insert_many(1, ["d"], [1.0]), b.take_many(1),
        b.take_many(0), b.take_many(5, allow_small_batch=True),
    )  # fmt: skip


def closing_a_whole_barrier(m: Any) -> Any:
    b = flow(m).Barrier(["float32"], shapes=[[]])
    return steps(b.insert_many(0, ["a", "b"], [1.0, 2.0]), b.close(), b.take_many(3), b.take_many(2))


def shapes_of_a_barrier(m: Any) -> Any:
    # TensorFlow's barriers without shapes accept only scalars, and check that when an element is complete.
    b, free = flow(m).Barrier(["float32"], shapes=[[]]), flow(m).Barrier(["float32", "int32"])
    keys, value = m.placeholder("string"), m.placeholder("float32")
    put = b.insert_many(0, keys, value)
    return [
        (put, {keys: ["a"], value: [[1.0]]}),
        (put, {keys: [["a"]], value: [[1.0]]}),
        (put, {keys: ["a"], value: [1.0]}),
        *steps(b.ready_size(), free.insert_many(0, ["x", "y"], [1.0, 3.0])),
        *steps(free.insert_many(1, ["x"], [1]), free.insert_many(1, ["y"], [2]), free.take_many(2)),
        (free.insert_many(0, ["p"], value), {value: [[]]}),
    ]


def _apply(m: Any, accumulator: Any, indices: Any, values: Any, shape: Any = None, step: int = 0) -> Any:
    return accumulator.apply_grad(m.constant(indices, "int64"), values, shape, local_step=step)


def sparse_means(m: Any) -> Any:
    a = flow(m).SparseConditionalAccumulator("float32", shape=[4, 2])
    return steps(
        _apply(m, a, [0, 2], [[1.0, 2.0], [3.0, 4.0]]), _apply(m, a, [2, 3], [[5.0, 6.0], [7.0, 8.0]]),
        a.num_accumulated(), a.take_grad(1), a.take_grad(1), _apply(m, a, [0], [[1.0, 1.0]]), a.num_accumulated(),
        _apply(m, a, [9], [[1.0, 1.0]], step=2), _apply(m, a, [1], [[1.0, 1.0]], [5, 2], step=2),
        _apply(m, a, [1], [[1.0, 1.0, 1.0]], step=2), _apply(m, a, [1, 2], [[1.0, 1.0]], step=2), a.num_accumulated(),
        _apply(m, a, [1], [[1.0, 1.0]], [4, 2], step=2), a.take_grad(1), a.take_grad(0),
    )  # fmt: skip


def steps_of_any_integers(m: Any) -> Any:
    a, dense = flow(m).SparseConditionalAccumulator("float64"), m.ConditionalAccumulator("float64", [])
    step, indices, row = m.constant(3, "int32"), m.constant([1], "int32"), m.constant([[1.0, 1.0]], "float64")
    return steps(
        a.set_global_step(step), dense.set_global_step(step), a.apply_grad(indices, row, local_step=m.constant(2)),
        a.apply_grad(indices, row, m.constant([4, 2]), m.constant(3)), dense.apply_grad(1.0, m.constant(2)),
        dense.apply_grad(1.0, step), a.num_accumulated(), dense.num_accumulated(), a.take_grad(1), dense.take_grad(1),
    )  # fmt: skip


def sparse_sums(m: Any) -> Any:
    a = flow(m).SparseConditionalAccumulator("float64", reduction_type="SUM")
    slices = m.IndexedSlices(m.constant([[1.0], [2.0]], "float64"), m.constant([0, 1], "int64"))
    ones, twos = m.constant([[1.0, 1.0, 1.0]], "float64"), m.constant([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]], "float64")
    return steps(
        _apply(m, a, [1], ones), _apply(m, a, [1], m.constant([[1.0, 1.0]], "float64")),
        _apply(m, a, [2], ones, [7, 3]),
        _apply(m, a, [0, 1], twos), a.num_accumulated(), a.take_grad(3), a.set_global_step(7),
        _apply(m, a, [1], ones, step=6), a.num_accumulated(), a.apply_indexed_slices_grad(slices, local_step=7),
        a.take_indexed_slices_grad(1).values, a.apply_indexed_slices_grad(slices, local_step=9),
        a.take_indexed_slices_grad(1).indices,
        a.apply_grad(m.zeros([0], "int64"), m.zeros([0, 2], "float64"), local_step=99), a.take_grad(1),
        _apply(m, a, [3], m.constant([5.0], "float64"), step=99), a.take_grad(1),
    )  # fmt: skip


def staging(m: Any) -> Any:
    # TensorFlow cannot interrupt a waiting put, so only tests/ops tests full areas.
    a = flow(m).StagingArea(["float32", "int32"], shapes=[[2], []])
    named = flow(m).StagingArea(["float32", "int32"], names=["x", "y"], capacity=2)
    small = flow(m).StagingArea(["float32"], memory_limit=16)

    def element(x: Any, y: Any) -> Any:
        return [m.constant(x), m.constant(y)]

    return steps(
        a.put(element([1.0, 2.0], 3)), a.size(), a.peek(0), a.put(element([4.0, 5.0], 6)), a.peek(1), a.size(),
        a.get(), a.get(), a.size(), a.put(element([4.0, 5.0], 6)), a.clear(), a.size(),
        named.put({"x": m.constant(1.0), "y": m.constant(2)}), named.get(), small.put([m.constant([1.0] * 5)]),
        small.put([m.constant([1.0] * 4)]), small.size(), small.get(),
    )  # fmt: skip


def critical_sections(m: Any) -> Any:
    section = m.CriticalSection()
    v = m.get_variable("v", initializer=0, use_resource=True)

    def count() -> Any:
        before = v.read_value()
        with m.control_dependencies([before]), m.control_dependencies([v.assign_add(1)]):
            return v.read_value()

    def fails() -> Any:
        with m.control_dependencies(
            [m.debugging.Assert(False, ["no"]) if m is not aioflow else m.Assert(False, ["no"])]
        ):
            return m.constant(1)

    counted = m.reduce_sum(m.stack([section.execute(count) for _ in range(4)]))
    return steps(
        m.global_variables_initializer(), counted, section.execute(fails), counted, counted,
        section.execute(lambda: [m.constant(1), (m.constant(2), v.assign_add(1).op)][:1]), section.execute(lambda: 5),
        section.execute(lambda: m.while_loop(lambda i: i < 3, lambda i: i + 1, [0])),
        section.execute(lambda: m.cond(m.constant(True), lambda: v.assign_add(100) + 0, lambda: 0)),
    )  # fmt: skip


def stacks(m: Any) -> Any:
    if m is aioflow:
        make, push, pop = m.raw_ops.StackV2, m.raw_ops.StackPushV2, m.raw_ops.StackPopV2
    else:
        from tensorflow.python.ops import gen_data_flow_ops as ops

        make, push, pop = ops.stack_v2, ops.stack_push_v2, ops.stack_pop_v2

    def chain(limit: int, *values: Any, pops: int = 0) -> Any:
        handle = make(max_size=limit, elem_type="float32")
        found: list[Any] = []
        for value in (*values, *[None] * pops):
            with m.control_dependencies(found[-1:]):
                if value is None:
                    found.append(pop(handle=handle, elem_type="float32"))
                else:
                    found.append(push(handle=handle, elem=value))
        return found

    # TensorFlow accepts one more value than max_size, and does not check it if nothing is popped.
    return steps(
        chain(2, 1.0, 2.0, pops=2), chain(1, 1.0, 2.0, 3.0, pops=1), chain(-1, [1.0, 2.0], 3.0, 4.0, pops=3),
        chain(2, 1.0, pops=2), chain(2, pops=1),
    )  # fmt: skip


def one_of_several(m: Any) -> Any:
    first, second = m.FIFOQueue(3, ["int32"], shapes=[[]]), m.FIFOQueue(3, ["int32"], shapes=[[]])
    index = m.placeholder("int32", [])
    queue = m.QueueBase.from_list(index, [first, second])
    taken = queue.dequeue()
    return [
        (first.enqueue(1), {}), (queue.enqueue(2), {index: 1}), (second.size(), {}), (taken, {index: 1}),
        (taken, {index: 0}), (taken, {index: 2}), (queue.size(), {index: 0}),
    ]  # fmt: skip


PROGRAMS = [
    barrier, closing_a_barrier, closing_a_whole_barrier, shapes_of_a_barrier, sparse_means, sparse_sums, staging,
    steps_of_any_integers, critical_sections, stacks, one_of_several,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_programs(tf: Any, program: Program) -> None:
    assert ours(program) == theirs(tf, program)


def test_static_shapes(tf: Any) -> None:
    def shapes(m: Any) -> list[Any]:
        with m.Graph().as_default():
            b = flow(m).Barrier(["float32", "int32"], shapes=[[], [2]])
            free = flow(m).Barrier(["float32"])
            single: list[Any] = [(), [2], (2, 3), m.TensorShape([2]), [[]]]
            alone = [flow(m).Barrier("float32", shapes=shape) for shape in single]
            accumulator = flow(m).SparseConditionalAccumulator("float32", shape=[4, 2])
            area = flow(m).StagingArea(["float32", "int32"], shapes=[[2], []])
            queues = [m.FIFOQueue(3, ["int32", "int32"], shapes=[[a, 3], []]) for a in (1, 2)]
            either = m.QueueBase.from_list(0, queues)
            takes = [b.take_many(2), b.take_many(2, allow_small_batch=True), free.take_many(3)]
            takes += [each.take_many(2) for each in alone]
            tensors = [t for take in takes for t in (take[0], take[1], *take[2])]
            tensors += [*accumulator.take_grad(1), accumulator.num_accumulated(), *area.get(), *area.peek(0)]
            tensors += [area.size(), b.ready_size(), b.incomplete_size(), *either.dequeue()]
            found = [None if t.shape.ndims is None else t.shape.as_list() for t in tensors]
            return [*found, [s.as_list() for s in either.shapes], either.names]

    assert shapes(aioflow) == shapes(tf)


@pytest.mark.parametrize(
    "build",
    [
        lambda m: flow(m).Barrier(["float32", "int32"], shapes=[[None], [2]]),
        lambda m: flow(m).Barrier(["float32", "int32"], shapes=[[0], [2]]),
        lambda m: flow(m).Barrier(["float32"], shapes=[[]]).insert_many(0, "a", 1.0),
        lambda m: flow(m).Barrier(["float32"], shapes=[[]]).insert_many(0, ["a", "b"], [1.0]),
        lambda m: flow(m).Barrier(["float32"], shapes=[[]]).take_many(-1),
        lambda m: flow(m).StagingArea(["float32"], names=["a", "b"]),
        lambda m: flow(m).StagingArea(["float32"], shapes=[[2]]).put([m.constant([1.0])]),
        lambda m: flow(m).StagingArea(["float32"], names=["a"]).put({"b": m.constant(1.0)}),
        lambda m: flow(m).StagingArea(["float32"], names=["a"]).put([m.constant(1.0)]),
    ],
)
def test_both_reject_wrong_arguments_while_the_graph_is_built(tf: Any, build: Callable[[Any], Any]) -> None:
    for module in (tf, aioflow):
        with module.Graph().as_default(), pytest.raises(ValueError):
            build(module)


def test_from_list_rejects_different_queues(tf: Any) -> None:
    for module in (tf, aioflow):
        with module.Graph().as_default():
            numbers, words = module.FIFOQueue(3, ["int32"]), module.FIFOQueue(3, ["string"])
            for queues in ([], [numbers, words], [numbers, 1]):
                with pytest.raises(TypeError):
                    module.QueueBase.from_list(0, queues)


def test_overlapping_critical_sections_are_rejected(tf: Any) -> None:
    for module in (tf, aioflow):
        with module.Graph().as_default():
            v = module.get_variable("v", initializer=0, use_resource=True)
            one, other = module.CriticalSection(name="one"), module.CriticalSection(name="other")
            one.execute(v.read_value)
            with pytest.raises(ValueError):
                one.execute(lambda inner=one: inner.execute(lambda: 1))
            for exclusive in (True, False):
                with pytest.raises(ValueError):
                    other.execute(v.read_value, exclusive_resource_access=exclusive)
