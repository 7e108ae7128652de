"""Which error comes of what is out of range, beside TensorFlow's; and what a queue runner makes of it."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow

GRID = np.arange(12, dtype=np.float32).reshape(4, 3)
Build = Callable[[Any, Any, Any], Any]


def variable(m: Any) -> Any:
    return m.get_variable("v", initializer=GRID)


def sparse(m: Any, index: Any) -> Any:
    return m.SparseTensor(m.cast([index], "int64"), [1.0], [4, 4])


# Of the grid x and an index vector i: the builder, and indices within and out of range.
INDEXED: dict[str, tuple[Build, list[list[int]]]] = {
    "gather": (lambda m, x, i: m.gather(x, i), [[3], [4], [-1], [0, 9]]),
    "gather of columns": (lambda m, x, i: m.gather(x, i, axis=1), [[2], [3], [-1]]),
    "gather along": (lambda m, x, i: m.gather(x, [0], axis=i[0]), [[-2], [2], [-3]]),
    "gather of strings": (lambda m, x, i: m.gather(m.as_string(x), i), [[3], [4], [-1]]),
    "gather_nd": (lambda m, x, i: m.gather_nd(x, [i]), [[3, 2], [4, 0], [0, 3], [-1, 0], [0, 0, 0]]),
    "embedding_lookup": (lambda m, x, i: m.nn.embedding_lookup(x, i), [[3], [4], [-1]]),
    "slice": (lambda m, x, i: m.slice(x, i, [1, 1]), [[3, 2], [4, 0], [0, 3], [-1, 0], [0, 0, 0]]),
    "slice of a size": (lambda m, x, i: m.slice(x, [1, 1], i), [[3, 2], [4, 1], [1, 3], [-2, 1]]),
    "an index": (lambda m, x, i: x[i[0]], [[-4], [4], [-5]]),
    "an index of strings": (lambda m, x, i: m.as_string(x)[i[0]], [[-4], [4], [-5]]),
    "an index of columns": (lambda m, x, i: x[:, i[0]], [[-3], [3], [-4]]),
    "transpose": (lambda m, x, i: m.transpose(x, i), [[1, 0], [0, 2], [-1, 0], [0, 0], [0]]),
    "concat": (lambda m, x, i: m.concat([x, x], i[0]), [[-2], [2], [-3]]),
    "split": (lambda m, x, i: m.split(x, i, 0, num=2)[0], [[1, 3], [2, 3], [5, -1], [-1, -1], [-2, 6]]),
    "sum": (lambda m, x, i: m.reduce_sum(x, i), [[-2], [2], [-3], [0, 0]]),
    "argmax": (lambda m, x, i: m.argmax(x, i[0]), [[-2], [2], [-3]]),
    "cumsum": (lambda m, x, i: m.cumsum(x, i[0]), [[-2], [2], [-3]]),
    "reverse": (lambda m, x, i: m.reverse(x, i), [[-2], [2], [-3], [0, 0]]),
    "expand_dims": (lambda m, x, i: m.expand_dims(x, i[0]), [[-3], [3], [-4]]),
    "roll": (lambda m, x, i: m.roll(x, [1], i), [[-2], [2], [-3]]),
    "one_hot": (lambda m, x, i: m.one_hot([0], i[0]), [[2], [-1]]),
    "scatter_nd": (lambda m, x, i: m.scatter_nd([i], [1.0], [4, 3]), [[3, 2], [4, 0], [0, 3], [-1, 0]]),
    "scatter update": (lambda m, x, i: m.tensor_scatter_nd_update(x, [i], [1.0]), [[3, 2], [4, 0], [-1, 0]]),
    "segment_sum": (lambda m, x, i: m.segment_sum(x, i), [[0, 0, 1, 1], [0, 1, 2], [-1, 0, 0, 0], [1, 0, 0, 0]]),
    "segments": (lambda m, x, i: m.unsorted_segment_sum(x, i, 3), [[0, 1, 2, -1], [0, 1, 2, 3], [0, 1]]),
    "partition": (lambda m, x, i: m.dynamic_partition(x, i, 2)[0], [[0, 1, 1, 0], [0, 1, 2, 0], [-1, 0, 0, 0]]),
    "stitch": (lambda m, x, i: m.dynamic_stitch([i], [x]), [[0, 1, 3, 2], [0, 1, 2, -1], [0, 1]]),
    "top_k": (lambda m, x, i: m.nn.top_k(x, i[0])[0], [[3], [4], [-1]]),
    "reverse_sequence": (
        lambda m, x, i: m.reverse_sequence(x, i, seq_axis=1, batch_axis=0),
        [[3, 1, 1, 1], [4, 1, 1, 1], [-1, 1, 1, 1]],
    ),
    "rows of a variable": (lambda m, x, i: m.gather(variable(m), i), [[3], [4], [-1]]),
    "elements of a variable": (lambda m, x, i: m.gather_nd(variable(m), [i]), [[3, 2], [4, 0], [0, -1]]),
    "scatter_add": (lambda m, x, i: m.scatter_add(variable(m), i, m.ones([1, 3])), [[3], [4], [-1]]),
    "scatter_nd_update": (lambda m, x, i: m.scatter_nd_update(variable(m), [i], [1.0]), [[3, 2], [4, 0], [0, -1]]),
    "array write": (lambda m, x, i: m.TensorArray("float32", 2).write(i[0], 1.0).flow, [[1], [2], [-1]]),
    "array read": (lambda m, x, i: m.TensorArray("float32", 2, element_shape=[]).read(i[0]), [[1], [2], [-1]]),
    "array gather": (lambda m, x, i: m.TensorArray("float32", 2, element_shape=[]).gather(i), [[1], [2], [-1]]),
    "sparse_to_dense": (lambda m, x, i: m.sparse_to_dense([i], [4, 3], [1.0]), [[3, 2], [4, 0], [-1, 0]]),
    "sparse to dense": (lambda m, x, i: m.sparse.to_dense(sparse(m, i)), [[3, 2], [4, 0], [-1, 0]]),
    "sparse product": (lambda m, x, i: m.sparse.sparse_dense_matmul(sparse(m, i), x), [[3, 3], [4, 0], [0, 4]]),
    "invert_permutation": (lambda m, x, i: m.invert_permutation(i), [[1, 0], [0, 2], [-1, 0], [0, 0]]),
    "pad": (lambda m, x, i: m.pad(x, [i, [0, 0]]), [[1, 0], [-1, 0]]),
    "mirror": (lambda m, x, i: m.pad(x, [i, [0, 0]], "REFLECT"), [[3, 0], [4, 0], [-1, 0]]),
    "reshape": (lambda m, x, i: m.reshape(x, i), [[6, 2], [5], [-1, -1], [-2]]),
    "broadcast_to": (lambda m, x, i: m.broadcast_to(x, i), [[4, 3], [4, 2], [3], [-1, 3]]),
    "substr": (lambda m, x, i: m.strings.substr("abc", i[0], 1), [[2], [4], [-5]]),
    "in a loop": (lambda m, x, i: m.while_loop(lambda j: j < 3, lambda j: j + m.gather(i, j), [0]), [[4], [1], [2, 5]]),
    "in a branch": (lambda m, x, i: m.cond(m.reduce_sum(x) > 0, lambda: m.gather(x, i), lambda: x), [[3], [4]]),
    "in a function of rows": (lambda m, x, i: m.map_fn(lambda row: m.gather(row, i[0]), x), [[2], [3]]),
}


def outcome(m: Any, run: Any, build: Build, index: list[int], known: bool) -> str:
    """The error that a step comes to, by its name, or that there is none. What is known beforehand is a ValueError."""
    with m.Graph().as_default():
        x = m.placeholder("float32", GRID.shape if known else None)
        i = m.placeholder("int32", [len(index)])
        try:
            run(build(m, x, i), {x: GRID, i: index})
        except m.errors.OpError as error:
            return next(c.__name__ for c in type(error).__mro__ if c.__name__ in dir(m.errors))
        except ValueError:
            return "InvalidArgumentError"
    return "fine"


def theirs(tf: Any) -> Any:
    def run(fetches: Any, feeds: Any) -> Any:
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            return session.run(fetches, feeds)

    return run


def ours(fetches: Any, feeds: Any) -> Any:
    async def run() -> Any:
        async with aioflow.Session() as session:
            await session.run(aioflow.global_variables_initializer())
            return await session.run(fetches, feeds)

    return asyncio.run(run())


@pytest.mark.parametrize("known", [True, False], ids=["fixed", "open"])
@pytest.mark.parametrize("name", INDEXED)
def test_what_is_out_of_range(tf: Any, name: str, known: bool) -> None:
    build, indices = INDEXED[name]
    tf.disable_control_flow_v2()
    try:
        for index in indices:
            expected = outcome(tf, theirs(tf), build, index, known)
            assert expected != "OutOfRangeError"
            found = outcome(aioflow, ours, build, index, known)
            assert found.replace("DTypeError", "InvalidArgumentError") == expected, index
    finally:
        tf.enable_control_flow_v2()


# ── queue runners ────────────────────────────────────────────────────────────────────────────────────────────────────


def filled(m: Any, raised: Any) -> tuple[Any, Any]:
    """A queue that a function fills, which raises after two elements, and the runner."""
    left = [2.0, 1.0]

    def take() -> Any:
        if not left:
            raise raised("nothing there")
        return np.float32(left.pop())

    queue = m.FIFOQueue(5, ["float32"], [[]])
    runner = m.train.QueueRunner(queue, [queue.enqueue(m.reshape(m.py_func(take, [], "float32"), []))])
    return queue, runner


def read_there(tf: Any, raised: Any) -> str:
    with tf.Graph().as_default(), tf.Session() as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        queue, runner = filled(tf, raised)
        dequeue, coord = queue.dequeue(), tf.train.Coordinator()
        threads = runner.create_threads(session, coord, start=True)
        try:
            while True:
                session.run(dequeue)
        except tf.errors.OpError as error:
            last = type(error).__name__
        try:
            coord.request_stop()
            coord.join(threads)
        except tf.errors.OpError as error:
            return type(error).__name__
        return last


async def read_here(raised: Any) -> str:
    with aioflow.Graph().as_default():
        queue, runner = filled(aioflow, raised)
        dequeue, last = queue.dequeue(), ""
        async with aioflow.Session() as session:
            try:
                async with aioflow.train.Coordinator() as coord:
                    runner.create_threads(session, coord)
                    try:
                        while True:
                            await session.run(dequeue)
                    except aioflow.errors.OpError as error:
                        last = type(error).__name__
                        raise
            except aioflow.errors.OpError as error:
                return type(error).__name__
            return last


@pytest.mark.parametrize("raised", [IndexError, KeyError, EOFError, ValueError, StopIteration])
def test_what_ends_a_queue_and_what_breaks_it(tf: Any, raised: Any) -> None:
    expected = read_there(tf, raised)
    assert asyncio.run(read_here(raised)) == expected
    assert (expected == "OutOfRangeError") is (raised is StopIteration)
