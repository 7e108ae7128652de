"""Tensor lists as feeds and fetches: lists of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.ops.apply import constant, make, make_list
from aioflow.ops.array.tensor_list import empty_list, push


async def test_list_is_fed_and_fetched_as_a_list_of_arrays() -> None:
    with aioflow.Graph().as_default() as graph:
        items = aioflow.placeholder(dtypes.variant, ())
        longer = push(items, constant([1.0, 2.0]))
        count = make("TensorListLength", longer)
    given = [np.zeros(3, np.float32), np.float32(7)]
    async with aioflow.Session(graph=graph) as session:
        fetched: list[Any] = await session.run([longer, longer, count], {items: given})
        values, again, number = fetched
        assert number == 3
        assert type(values) is list
        for found in (values, again):
            for got, wanted in zip(found, [*given, [1, 2]], strict=True):
                np.testing.assert_array_equal(got, wanted)
        values[2][:] = 9  # belongs to the caller
        np.testing.assert_array_equal((await session.run(longer, {items: []}))[0], [1, 2])
        with pytest.raises(DTypeError, match="list of arrays"):
            await session.run(count, {items: np.zeros(3)})


@pytest.mark.parametrize("place", range(3))
async def test_insert_and_erase_inside_a_list_have_gradients(place: int) -> None:
    with aioflow.Graph().as_default() as graph:
        items = empty_list(dtypes.float32)
        sources = [constant(float(i)) for i in range(2)]
        for source in sources:
            items = push(items, source)
        new = constant(10.0)
        inserted = make("_TensorListInsert", items, constant(place), new, name="insert")
        at = make("TensorListGetItem", inserted, place, constant(-1), element_dtype=dtypes.float32)
        erased = make(
            "_TensorListErase", inserted, constant((place + 1) % 3), element_dtype=dtypes.float32, name="erase"
        )
        total = aioflow.reduce_sum(make("TensorListStack", erased, constant([], dtypes.int32), element_dtype="float32"))
        slopes = aioflow.gradients(at * 2 + total, [new, *sources])
    expected = [0.0, 1.0]
    expected.insert(place, 10.0)
    async with aioflow.Session(graph=graph) as session:
        assert await session.run(inserted) == expected
        del expected[(place + 1) % 3]
        assert await session.run(erased) == expected
        found = await session.run(slopes)
    gone = {0.0, 1.0} - set(expected)
    assert found == [3.0, *(0.0 if float(i) in gone else 1.0 for i in range(2))]


READS: dict[str, Callable[..., Any]] = {
    "pop": lambda items, shape, dtype: make_list("TensorListPopBack", items, shape, element_dtype=dtype)[1],
    "get": lambda items, shape, dtype: make("TensorListGetItem", items, 0, shape, element_dtype=dtype),
    "stack": lambda items, shape, dtype: make("TensorListStack", items, shape, element_dtype=dtype),
    "concat": lambda items, shape, dtype: make_list(
        "TensorListConcatV2", items, shape, constant([], dtypes.int64), element_dtype=dtype
    )[0],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
async def test_list_element_must_have_the_declared_dtype_and_shape(read: Callable[..., Any]) -> None:
    """Otherwise nodes behind the reader would compute with tensors of another dtype or shape than declared."""
    shape = aioflow.placeholder("int32", None)
    items = push(empty_list(dtypes.float32), constant([[1.0, 2.0]]))
    async with aioflow.Session() as session:
        for fits in (-1, [1, 2], [-1, 2]):
            found = await session.run(read(items, shape, "float32"), {shape: fits})
            np.testing.assert_array_equal(np.reshape(found, [2]), [1, 2])
        for other in ([1, 3], [2], []):
            with pytest.raises(InvalidArgumentError, match="element"):
                await session.run(read(items, shape, "float32"), {shape: other})
        for damaged in (0, [-2, 2], [[1, 2]]):
            with pytest.raises(InvalidArgumentError, match="not a shape"):
                await session.run(read(items, shape, "float32"), {shape: damaged})
        for dtype in ("int32", "string"):
            with pytest.raises(DTypeError, match="another dtype"):
                await session.run(read(items, shape, dtype), {shape: -1})
