"""Assignments to slices of variables, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError
from tests.support.variable_slices import CASES, REFUSED

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("name", CASES)
async def test_assigned_slice(name: str, is_open: bool) -> None:
    key, value = CASES[name]
    expected = X.copy()
    expected[key] = value
    with af.Graph().as_default():
        v = af.Variable(X, validate_shape=not is_open)
        fed = af.placeholder("float32")
        given, read = v[key].assign(np.asarray(value, np.float32)), v[key].assign(fed)
        async with af.Session() as session:
            for update in (given, read):
                await session.run(v.initializer)
                np.testing.assert_array_equal(await session.run(update, {fed: value}), expected)
                np.testing.assert_array_equal(await session.run(v), expected)


@pytest.mark.parametrize("name", REFUSED)
async def test_value_that_does_not_fit_is_refused(name: str) -> None:
    key, value = REFUSED[name]
    with af.Graph().as_default():
        v = af.Variable(X, name="table")
        async with af.Session() as session:
            await session.run(v.initializer)
            with pytest.raises(InvalidArgumentError, match="slice of variable table"):
                await session.run(v[key].assign(np.asarray(value, np.float32)))
            np.testing.assert_array_equal(await session.run(v), X)
        with pytest.raises(InvalidArgumentError):
            v[5].assign(1.0)
        with pytest.raises(DTypeError):
            v[0].assign(af.constant([1, 2, 3, 4]))
        with pytest.raises(DTypeError, match="mask"):
            v[np.array([True, False, True])].assign(1.0)
        assert not hasattr(v.value()[0], "assign")


async def test_slice_is_a_tensor_and_updates_follow_one_another() -> None:
    with af.Graph().as_default() as graph:
        v = af.Variable(X)
        row = v[1]
        assert isinstance(row, af.Tensor)
        assert graph.get_tensor_by_name(row.name) is row
        both = v[0].assign(np.ones(4, np.float32))[1:, 0].assign([8.0, 9.0])
        part = af.strided_slice(v, [0, 0], [2, 2], var=v)
        bound = af.placeholder("int32", [])
        moving = v[bound:, 3].assign(0.0)
        async with af.Session() as session:
            await session.run(v.initializer)
            assert (await session.run(row * 2)).tolist() == (X[1] * 2).tolist()
            before = await session.run(v)
            assert (await session.run(both))[:, 0].tolist() == [1, 8, 9]
            assert before.tolist() == X.tolist()  # a fetched value keeps its numbers
            after: Any = part
            assert (await session.run(after.assign(np.zeros((2, 2), np.float32))))[:, 1].tolist() == [0, 0, 9]
            assert (await session.run(moving, {bound: 1}))[:, 3].tolist() == [1, 0, 0]
            slope: Any = af.gradients(row * row, v)[0]
            now = await session.run(row)
            assert (await session.run(slope)).tolist() == [[0] * 4, (2 * now).tolist(), [0] * 4]


async def test_rows_within_batches() -> None:
    with af.Graph().as_default():
        v, lone = af.Variable(np.zeros((2, 3, 2), np.float32)), af.Variable([1.0, 2.0, 3.0])
        rows = np.arange(8, dtype=np.float32).reshape(2, 2, 2) + 1
        indices = np.array([[0, 2], [1, 0]], np.int64)
        expected = np.zeros((2, 3, 2), np.float32)
        for i in range(2):
            expected[i, indices[i]] = rows[i]
        function = af.batch_scatter_update(v, indices, rows)
        method = v.batch_scatter_update(af.IndexedSlices(af.constant(rows), af.constant(indices)))
        async with af.Session() as session:
            for update in (function, method):
                await session.run(v.initializer)
                np.testing.assert_array_equal(await session.run(update), expected)
            await session.run(lone.initializer)
            assert (await session.run(af.batch_scatter_update(lone, [2, 0], [7.0, 8.0]))).tolist() == [8, 2, 7]
            assert (await session.run(lone.scatter_nd_max([[0], [2]], [9.0, 5.0]))).tolist() == [9, 2, 7]
            assert (await session.run(lone.scatter_nd_min([[0], [1]], [3.0, 5.0]))).tolist() == [3, 2, 7]
        with pytest.raises(InvalidArgumentError, match="rank"):
            af.batch_scatter_update(v, af.placeholder("int32"), rows)
        wrong: Any = rows
        with pytest.raises(DTypeError):
            v.batch_scatter_update(wrong)
