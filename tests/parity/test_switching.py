"""switch, merge and with_dependencies against TensorFlow's: values, static shapes and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import aioflow


def module_of(m: Any) -> Any:
    """Return TensorFlow's module of the functions, which is not public, or aioflow's."""
    if m is aioflow:
        return m.control_flow_ops
    from tensorflow.python.ops import control_flow_ops

    return control_flow_ops


def _branches(m: Any, c: Any, x: Any, p: Any) -> Any:
    off, on = c.switch(x, p)
    return c.merge([m.exp(off), on * on, c.switch(on, p)[0]])


def _shapes(m: Any, c: Any, x: Any, p: Any) -> Any:
    off, on = c.switch(x, p)
    return c.merge([off[:1], m.tile(on, [2])])


def _nested(m: Any, c: Any, x: Any, p: Any) -> Any:
    off, on = c.switch(x, p)
    big, small = c.switch(on, c.switch(m.reduce_sum(x) < 10.0, p)[1])
    inner, _ = c.merge([big * 2.0, small * 3.0])
    return c.merge((off, inner))


def _one_side(m: Any, c: Any, x: Any, p: Any) -> Any:
    return [x * 2.0, c.merge([c.switch(x, p)[1], c.switch(m.zeros([3]), p)[0]])[0]]


def _slices(m: Any, c: Any, x: Any, p: Any) -> Any:
    rows = m.IndexedSlices(x, m.constant([2, 0, 1]), m.constant([3]))
    off, on = c.switch(rows, p)
    kept = m.IndexedSlices(on.values * 2.0, on.indices, on.dense_shape)
    merged, index = c.merge([off, kept])
    return [m.convert_to_tensor(merged), index]


def _slices_and_tensor(m: Any, c: Any, x: Any, p: Any) -> Any:
    rows = m.IndexedSlices(x, m.constant([2, 0, 1]), m.constant([3]))
    merged, index = c.merge([c.switch(rows, p)[0], c.switch(x * 3.0, p)[1]])
    return [merged.values, merged.indices, m.convert_to_tensor(merged), index]


def _sparse(m: Any, c: Any, x: Any, p: Any) -> Any:
    off, on = c.switch(m.SparseTensor(m.constant([[0], [2], [4]], m.int64), x, m.constant([6], m.int64)), p)
    merged, index = c.merge([off, on])
    return [m.sparse_tensor_to_dense(merged), index]


def _dependencies(m: Any, c: Any, x: Any, p: Any) -> Any:
    rows = m.IndexedSlices(x, m.constant([2, 0, 1]), m.constant([3]))
    waited = c.with_dependencies([p, x.op], rows)
    return [c.with_dependencies([p], x), c.with_dependencies([x], 3.0), m.convert_to_tensor(waited)]


CASES: Final[dict[str, Callable[..., Any]]] = {
    "branches": _branches,
    "shapes": _shapes,
    "nested": _nested,
    "one side": _one_side,
    "slices": _slices,
    "slices and a tensor": _slices_and_tensor,
    "a sparse tensor": _sparse,
    "dependencies": _dependencies,
}


@pytest.mark.parametrize("pred", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(parity: Any, name: str, pred: bool) -> None:
    x = np.array([1.0, 2.0, 3.0], np.float32)
    parity(lambda m, x, p: CASES[name](m, module_of(m), x, p), x, np.bool_(pred), grad=name != "shapes")
