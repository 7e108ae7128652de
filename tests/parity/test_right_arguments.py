"""Valid edge cases: empty tensors, shapes in tuples, slices and sparse tensors in branches and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow

Program = Callable[[Any], Any]


def _slices(m: Any, values: Any, indices: Any, dtype: str) -> Any:
    return m.IndexedSlices(m.constant(values), m.constant(indices, dtype))


def _fed(m: Any, value: Any) -> Any:
    return m.placeholder_with_default(value, [])


def _through(m: Any, queue: Any, element: Any) -> Any:
    with m.control_dependencies([queue.enqueue(element)]):
        return queue.dequeue()


def _conv(m: Any, image: Any, kernel: Any, **options: Any) -> Any:
    """Return a convolution and its gradients."""
    x, f = m.ones(image), m.ones(kernel)
    y = m.nn.conv2d(x, f, [1, 1, 1, 1], "SAME", **options)
    return [y, *m.gradients(y, [x, f])]


def _growing(m: Any, **options: Any) -> Any:
    start = m.SparseTensor([[0, 0]], [1.0], [2, 2])
    more = m.SparseTensor([[1, 1]], [1.0], [2, 2])
    return m.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, m.sparse_add(s, more)), [0, start], **options)[1]


def _nested(m: Any) -> Any:
    start = m.SparseTensor([[0, 0]], [1.0], [2, 2])
    return m.while_loop(
        lambda i, d: i < 3,
        lambda i, d: (i + 1, {"s": m.sparse_add(d["s"], d["s"]), "t": d["t"] * 2.0}),
        [0, {"s": start, "t": m.constant(1.0)}],
    )[1]["s"]


def _gradient_through_sparse(m: Any) -> Any:
    x = m.constant([1.0])
    start = m.SparseTensor([[0, 0]], x, [2, 2])
    made = m.while_loop(
        lambda i, s: i < 3,
        lambda i, s: (i + 1, m.SparseTensor(s.indices, s.values * 2.0, s.dense_shape)),
        [0, start],
    )[1]
    return m.gradients(made.values, x)


def _reshaped_variable(m: Any) -> Any:
    v = m.Variable([1.0, 2.0], use_resource=False)
    with m.control_dependencies([v.initializer]):
        return m.identity(m.assign(v, [1.0, 2.0, 3.0], validate_shape=False))


PROGRAMS: dict[str, Program] = {
    "reduce_all of nothing": lambda m: [m.reduce_all([]), m.reduce_any([]), m.reduce_all([], keepdims=True)],
    "reshape nothing": lambda m: [
        m.reshape(m.zeros([0, 6]), [0, -1, 3]),
        m.reshape(m.zeros([0, 6]), [-1, 0]),
        m.reshape(m.zeros([2, 0, 6]), [0, -1, 0, 3]),
        m.reshape(m.zeros([0, 5]), [0, -1, 3]),
        m.reshape(m.zeros([0, 6]), [-1, 3]),
    ],
    "reshape nothing by a fed shape": lambda m: m.reshape(
        m.zeros([0, 6]), m.placeholder_with_default(m.constant([0, -1, 3]), [3])
    ),
    "conv2d without outputs": lambda m: _conv(m, [1, 4, 4, 2], [2, 2, 2, 0]),
    "conv2d without images": lambda m: _conv(m, [0, 4, 4, 2], [2, 2, 2, 3]),
    # TensorFlow returns uninitialized memory as the gradients of these.
    "conv2d without rows": lambda m: _conv(m, [1, 0, 4, 2], [2, 2, 2, 3])[0],
    "depthwise without outputs": lambda m: m.nn.depthwise_conv2d(
        m.ones([1, 4, 4, 2]), m.ones([2, 2, 2, 0]), [1, 1, 1, 1], "SAME"
    ),
    "separable without outputs": lambda m: m.nn.separable_conv2d(
        m.ones([1, 4, 4, 2]), m.ones([2, 2, 2, 1]), m.ones([1, 1, 2, 0]), [1, 1, 1, 1], "SAME"
    ),
    "transposed without inputs": lambda m: m.nn.conv2d_transpose(
        m.ones([1, 4, 4, 0]), m.ones([2, 2, 3, 0]), [1, 4, 4, 3], [1, 1, 1, 1], "SAME"
    ),
    "queue shapes, a scalar and a size": lambda m: _through(
        m, m.FIFOQueue(3, [m.float32, m.float32], ((), 2)), [1.0, [2.0, 3.0]]
    ),
    "queue shapes, a size and a tuple": lambda m: _through(
        m, m.FIFOQueue(3, [m.float32, m.float32], (2, (3,))), [[1.0, 2.0], [3.0, 4.0, 5.0]]
    ),
    "queue shapes, lists": lambda m: _through(m, m.FIFOQueue(3, [m.float32, m.float32], ([], [])), [1.0, 2.0]),
    "queue shapes, one": lambda m: _through(m, m.RandomShuffleQueue(3, 0, m.float32, [2]), [[1.0, 2.0]]),
    "queue shapes, one scalar": lambda m: _through(m, m.FIFOQueue(3, m.float32, ()), [1.0]),
    "queue shapes, open": lambda m: _through(
        m, m.PaddingFIFOQueue(3, [m.float32, m.float32], ([None], ())), [[1.0, 2.0], 3.0]
    ),
    "queue shapes, with priorities": lambda m: _through(
        m, m.PriorityQueue(3, [m.float32, m.float32], ((), 2)), [m.constant(1, "int64"), 1.0, [2.0, 3.0]]
    ),
    "a value of another shape": _reshaped_variable,
    "cond, indices of two dtypes": lambda m: m.cond(
        _fed(m, True), lambda: _slices(m, [1.0], [0], "int32"), lambda: _slices(m, [1.0, 2.0], [0, 1], "int64")
    ),
    "cond, indices of two dtypes, in lists": lambda m: m.cond(
        _fed(m, False),
        lambda: [_slices(m, [1.0], [0], "int64"), m.constant(1)],
        lambda: [_slices(m, [1.0, 2.0], [0, 1], "int32"), m.constant(2)],
    ),
    "case, indices of two dtypes": lambda m: m.case(
        [(_fed(m, True), lambda: _slices(m, [1.0], [0], "int64"))], lambda: _slices(m, [1.0, 2.0], [0, 1], "int32")
    ),
    "switch_case, indices of two dtypes": lambda m: m.switch_case(
        _fed(m, 1), [lambda: _slices(m, [1.0], [0], "int64"), lambda: _slices(m, [1.0, 2.0], [0, 1], "int32")]
    ),
    "a sparse tensor grows in a loop": _growing,
    "a sparse tensor grows, as said": lambda m: _growing(m, shape_invariants=[m.TensorShape([]), m.TensorShape([2])]),
    "a sparse tensor in a dictionary": _nested,
    "a gradient through a sparse loop variable": _gradient_through_sparse,
}


def _tensors(m: Any, made: Any) -> list[Any]:
    if isinstance(made, m.SparseTensor):
        return [made.indices, made.values, made.dense_shape]
    if isinstance(made, m.IndexedSlices):
        return [made.values, made.indices]
    if isinstance(made, list | tuple):
        return [tensor for item in made for tensor in _tensors(m, item)]
    return [made]


def _found(m: Any, program: Program) -> tuple[list[Any], list[Any]]:
    """Return the dtypes with the static ranks, and the values."""
    with m.Graph().as_default():
        tensors = _tensors(m, program(m))
        known = [(t.dtype.base_dtype.name, t.get_shape().ndims) for t in tensors]
        with m.Session() as session:
            run = getattr(session, "run_sync", session.run)
            return known, run(tensors)


@pytest.mark.parametrize("name", PROGRAMS)
def test_edge_cases_match_tensorflow(tf: Any, name: str) -> None:
    (known, values), (expected, wanted) = (_found(m, PROGRAMS[name]) for m in (aioflow, tf))
    assert known == expected
    for mine, other in zip(values, wanted, strict=True):
        assert np.shape(mine) == np.shape(other)
        np.testing.assert_array_equal(mine, other)
