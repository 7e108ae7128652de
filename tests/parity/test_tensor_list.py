"""Tensor lists against TensorFlow's, by `raw_ops`: values and gradients. test_control_flow tests lists in loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2) - 2.5


def of_rows(m: Any, x: Any) -> Any:
    return m.raw_ops.TensorListFromTensor(tensor=x, element_shape=m.constant([2]))


def row(m: Any, items: Any, index: Any) -> Any:
    return m.raw_ops.TensorListGetItem(
        input_handle=items, index=m.constant(index), element_shape=m.constant([2]), element_dtype=m.float32
    )


def stacked(m: Any, items: Any, count: int = -1) -> Any:
    return m.raw_ops.TensorListStack(
        input_handle=items, element_shape=m.constant([2]), element_dtype=m.float32, num_elements=count
    )


def put(m: Any, items: Any, index: int, item: Any, **options: Any) -> Any:
    return m.raw_ops.TensorListSetItem(input_handle=items, index=m.constant(index), item=item, **options)


def there_and_back(m: Any, x: Any) -> Any:
    return stacked(m, of_rows(m, x))


def by_index(m: Any, x: Any) -> Any:
    items = of_rows(m, x)
    return row(m, items, 2) * row(m, items, 0) + row(m, items, 2)


def replaced(m: Any, x: Any) -> Any:
    items = of_rows(m, x)
    changed = put(m, items, 1, m.exp(x[0]))
    return stacked(m, changed, 3) * 2.0 + stacked(m, items)


def reserved(m: Any, x: Any) -> Any:
    """Build a reserved list, whose unset elements are zeros."""
    items = m.raw_ops.TensorListReserve(
        element_shape=m.constant([2]), num_elements=m.constant(4), element_dtype=m.float32
    )
    return stacked(m, put(m, put(m, items, 3, x[1]), 0, x[2] * x[1]))


def grown(m: Any, x: Any) -> Any:
    return stacked(m, put(m, of_rows(m, x), 4, x[0], resize_if_index_out_of_bounds=True))


def pushed_and_popped(m: Any, x: Any) -> Any:
    items = m.raw_ops.EmptyTensorList(
        element_shape=m.constant([2]), max_num_elements=m.constant(-1), element_dtype=m.float32
    )
    for i in range(3):
        items = m.raw_ops.TensorListPushBack(input_handle=items, tensor=x[i] * (i + 1.0))
    below, last = m.raw_ops.TensorListPopBack(
        input_handle=items, element_shape=m.constant([2]), element_dtype=m.float32
    )
    return stacked(m, below), last * last, m.raw_ops.TensorListLength(input_handle=below)


def cut_and_joined(m: Any, x: Any) -> Any:
    items = m.raw_ops.TensorListSplit(tensor=x, element_shape=m.constant([-1, 2]), lengths=m.constant([1, 2], m.int64))
    joined = m.raw_ops.TensorListConcatV2(
        input_handle=items,
        element_shape=m.constant([-1, 2]),
        leading_dims=m.constant([], m.int64),
        element_dtype=m.float32,
    )
    return joined.tensor * 3.0, joined.lengths


PROGRAMS = [there_and_back, by_index, replaced, reserved, grown, pushed_and_popped, cut_and_joined]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_lists(parity: Any, program: Callable[..., Any]) -> None:
    parity(program, ROWS, static=False)
