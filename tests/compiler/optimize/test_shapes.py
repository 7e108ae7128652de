"""Simplifications that follow from static shapes, and similar cases that must stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.optimize.dead_code import dead_code
from aioflow.compiler.optimize.shapes import shapes
from tests.compiler.optimize.steps import assert_equivalent, fetched, ops, optimized, run, step

VALUES = np.array([[0.0, -0.0, np.nan, np.inf], [-np.inf, 1e-45, -1.5, 3.0]], np.float32).reshape(2, 1, 4)
Build = Callable[[Any], Any]


def _made(x: Any) -> Any:
    """Return the values of `x` in a new row-major array: the memory layout of a feed is unknown."""
    return af.tile(x, [2, 1, 1])


# Functions that return their argument, a float32 tensor of shape [2, 1, 4].
GONE: list[tuple[str, Build]] = [
    ("reshape to the same", lambda x: af.reshape(x, [2, 1, 4])),
    ("reshape to the same, but for one", lambda x: af.reshape(x, [-1, 1, 4])),
    ("broadcast_to the same", lambda x: af.broadcast_to(x, [2, 1, 4])),
    ("expand and squeeze", lambda x: af.squeeze(af.expand_dims(x, 0), [0])),
    ("squeeze and expand", lambda x: af.expand_dims(af.squeeze(x, [1]), 1)),
    ("all of it as a slice", lambda x: af.slice(x, [0, 0, 0], [2, -1, 4])),
    ("all of it as an index", lambda x: x[:, :]),
    ("all of it by numbers", lambda x: x[0:2, :, 0:9]),
    ("tile by one", lambda x: af.tile(x, [1, 1, 1])),
    ("pad by nothing", lambda x: af.pad(x, af.zeros([3, 2], af.int32))),
    ("pad by no sevens", lambda x: af.pad(x, af.zeros([3, 2], af.int32), constant_values=7.0)),
    ("mirror nothing", lambda x: af.pad(x, af.zeros([3, 2], af.int32), mode="REFLECT")),
    ("split into one", lambda x: af.split(x, 1, axis=-1)[0]),
    ("transpose to the same order", lambda x: af.transpose(x, [0, 1, 2])),
    ("the greatest of one", lambda x: af.reduce_max(x, axis=1, keepdims=True)),
    ("the least of one", lambda x: af.reduce_min(x, axis=-2, keepdims=True)),
    ("the product of one", lambda x: af.reduce_prod(x, axis=[1], keepdims=True)),
    ("the greatest over no axes", lambda x: af.reduce_max(x, axis=af.constant([], af.int32))),
    ("a shape that is ensured", lambda x: af.ensure_shape(x, [2, None, 4])),
    ("a default that is not overridden", lambda x: af.placeholder_with_default(x, [2, 1, 4])),
]


@pytest.mark.parametrize("build", [c[1] for c in GONE], ids=[c[0] for c in GONE])
async def test_functions_that_return_their_argument_are_removed(build: Build) -> None:
    x = af.placeholder("float32", [1, 1, 4])
    alone = _made(x)
    graph = step(build(alone), [x])
    result = await assert_equivalent(graph, [VALUES[:1]], shapes, dead_code)
    assert fetched(result).name == alone.op.name
    assert ops(result) == {"Tile": 1}


WHOLE: list[tuple[str, Build]] = [
    ("sum", lambda x: af.reduce_sum(x, axis=1, keepdims=True)),
    ("mean", lambda x: af.reduce_mean(x, axis=1, keepdims=True)),
]


@pytest.mark.parametrize("build", [c[1] for c in WHOLE], ids=[c[0] for c in WHOLE])
async def test_sums_of_one_element_are_removed_for_integers_only(build: Build) -> None:
    """The sum of a single -0.0 is 0.0."""
    for dtype, gone in (("int32", True), ("float32", False)):
        x = af.placeholder(dtype, [1, 1, 4])
        graph = step(build(_made(x)), [x])
        feed = np.array([[[0.0, -0.0, 3.0, -7.0]]]).astype(dtype)
        assert (ops(await assert_equivalent(graph, [feed], shapes, dead_code)) == {"Tile": 1}) is gone


async def test_all_and_any_of_one_element_are_removed() -> None:
    x = af.placeholder("bool", [1, 1, 4])
    alone = af.tile(x, [2, 1, 1])
    graph = step([af.reduce_all(alone, 1, keepdims=True), af.reduce_any(alone, 1, keepdims=True)], [x])
    feed = np.array([[[True, False, True, False]]])
    assert ops(await assert_equivalent(graph, [feed], shapes, dead_code)) == {"Tile": 1}


KEPT: list[tuple[str, Build]] = [
    ("another shape of as many elements", lambda x: af.reshape(x, [2, 4, 1])),
    ("squeeze of another axis than was expanded", lambda x: af.squeeze(af.expand_dims(x, 0), [2])),
    ("a slice that leaves something", lambda x: af.slice(x, [0, 0, 1], [-1, -1, -1])),
    ("an index that leaves something", lambda x: x[:, :, :3]),
    ("every second one", lambda x: x[:, :, ::2]),
    ("all of it backwards", lambda x: x[:, :, ::-1]),
    ("one of it", lambda x: x[0]),
    ("a new axis", lambda x: x[:, af.newaxis]),
    ("tile by two", lambda x: af.tile(x, [1, 2, 1])),
    ("pad by something", lambda x: af.pad(x, [[0, 0], [0, 0], [0, 1]])),
    ("split into two", lambda x: af.split(x, 2, axis=2)[0]),
    ("another order", lambda x: af.transpose(x, [1, 0, 2])),
    ("the greatest of four", lambda x: af.reduce_max(x, axis=2, keepdims=True)),
    ("the greatest of one, an axis less", lambda x: af.reduce_max(x, axis=1)),
]


@pytest.mark.parametrize("build", [c[1] for c in KEPT], ids=[c[0] for c in KEPT])
async def test_functions_that_change_their_argument_are_kept(build: Build) -> None:
    x = af.placeholder("float32", [1, 1, 4])
    graph = step(build(_made(x)), [x])
    assert ops(await assert_equivalent(graph, [VALUES[:1]], shapes, dead_code)) == ops(graph)


FED: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("a reshape", lambda x, size: af.reshape(x, [size, 3])),
    ("a reshape to a shape that is promised", lambda x, size: af.ensure_shape(af.reshape(x, [size, 3]), [4, 3])),
    ("a broadcast", lambda x, size: af.broadcast_to(x, [size, 3])),
]


@pytest.mark.parametrize("build", [c[1] for c in FED], ids=[c[0] for c in FED])
async def test_fed_shape_is_checked(build: Callable[[Any, Any], Any]) -> None:
    """Only one size is valid, so the result's shape is known; the fed size is not."""
    x, size = af.placeholder("float32", [4, 3]), af.placeholder("int32", [])
    y = build(x, size)
    assert y.shape.as_list() == [4, 3]
    async with af.Session() as session:
        values = np.zeros((4, 3), np.float32)
        assert (await session.run(y, {x: values, size: 4})).shape == (4, 3)
        for wrong in (5, 3, 0, -2):
            with pytest.raises(af.errors.InvalidArgumentError):
                await session.run(y, {x: values, size: wrong})


UNKNOWN: list[tuple[str, Build]] = [
    ("a size that may be another", lambda x: af.reshape(x, [2, 1, 4])),
    ("an axis that may be longer", lambda x: af.reduce_max(x, axis=0, keepdims=True)),
    ("an end that may be before the end", lambda x: af.slice(x, [0, 0, 0], [2, 1, 4])),
    ("an end by number", lambda x: x[:2]),
]


@pytest.mark.parametrize("build", [c[1] for c in UNKNOWN], ids=[c[0] for c in UNKNOWN])
def test_nodes_that_depend_on_unknown_sizes_are_kept(build: Build) -> None:
    x = af.placeholder("float32", [None, 1, 4])
    graph = step(build(af.tile(x, [1, 1, 1])), [x])
    left = ops(optimized(graph, shapes, dead_code))
    assert left == ops(graph), left


async def test_full_slice_of_an_unknown_size_is_removed() -> None:
    x = af.placeholder("float32", [None, 1, 4])
    y = af.tanh(x)
    graph = step([af.slice(y, [0, 0, 0], [-1, 1, 4])[:, :] + 1.0, y[0:, :, 0:4] * 2.0], [x])
    result = await assert_equivalent(graph, [VALUES], shapes, dead_code)
    assert "Slice" not in ops(result)
    assert "StridedSlice" not in ops(result)


async def test_feed_with_another_layout_is_still_copied() -> None:
    """Padding by nothing makes the array row-major, and its sum is then computed in another order."""
    x = af.placeholder("float32", [300, 200])
    feed = np.random.default_rng(1).standard_normal((200, 300)).astype(np.float32).T
    graph = step(af.reduce_sum(af.pad(x, [[0, 0], [0, 0]]), axis=1), [x])
    assert ops(await assert_equivalent(graph, [feed], shapes, dead_code)) == {"Pad": 1, "Sum": 1}


async def test_constant_with_another_layout_is_still_copied() -> None:
    x = af.placeholder("float32", [])
    values = np.random.default_rng(1).standard_normal((300, 200)).astype(np.float32)
    graph = step(af.reduce_sum(af.tile(af.constant(values, name="c"), [1, 1]) * x, axis=1), [x])
    assert "Tile" not in ops(await assert_equivalent(graph, [np.float32(1.1)], shapes, dead_code))
    turned = replace(graph.nodes["c"], attrs={**graph.nodes["c"].attrs, "value": np.asfortranarray(values)})
    graph = replace(graph, nodes={**graph.nodes, "c": turned})
    assert "Tile" in ops(await assert_equivalent(graph, [np.float32(1.1)], shapes, dead_code))


# -- shapes as values ---------------------------------------------------------------------------------------------


async def test_known_shapes_are_constants_without_inputs() -> None:
    x = af.placeholder("float32", [2, 3])
    y = af.exp(x)
    raw = af.raw_ops
    fetches = [
        raw.Shape(input=y, out_type=af.int64),
        raw.Size(input=y, out_type=af.int32),
        raw.Rank(input=y),
        *raw.ShapeN(input=[y, x, y[0]], out_type=af.int32),
    ]
    result = await assert_equivalent(step(fetches, [x]), [np.ones((2, 3), np.float32)], shapes, dead_code)
    assert not ops(result)
    assert [np.asarray(v).tolist() for v in (await run(result, [np.ones((2, 3), np.float32)])).values] == [
        [2, 3],
        6,
        2,
        [2, 3],
        [2, 3],
        [3],
    ]


async def test_rank_of_a_partly_known_shape_is_constant() -> None:
    x = af.placeholder("float32", [None, 3])
    graph = step([af.shape(x), af.raw_ops.Rank(input=x), af.size(x)], [x])
    result = await assert_equivalent(graph, [np.ones((2, 3), np.float32)], shapes, dead_code)
    assert ops(result) == {"Shape": 1, "Size": 1}
    unknown = af.placeholder("float32", None)
    assert ops(optimized(step(af.raw_ops.Rank(input=unknown), [unknown]), shapes)) == {"Rank": 1}


@pytest.mark.parametrize("taken", [True, False])
async def test_shape_in_a_branch_is_a_constant_of_that_branch(taken: bool) -> None:
    x, p = af.placeholder("float32", [2, 3]), af.placeholder("bool", [])
    raw = af.raw_ops
    y = af.cond(p, lambda: raw.Shape(input=af.exp(x)), lambda: raw.Shape(input=af.tanh(x)) * 10)
    result = await assert_equivalent(step(y, [x, p]), [np.ones((2, 3), np.float32), np.bool_(taken)], shapes, dead_code)
    assert "Shape" not in ops(result)
    assert "Exp" in ops(result) or "Identity" in ops(result), "something of the branch is waited for"


async def test_shape_in_a_loop_is_a_constant_of_each_iteration() -> None:
    x, n = af.placeholder("float32", [2, 3]), af.placeholder("int32", [])
    total = af.while_loop(
        lambda i, _: i < n, lambda i, t: [i + 1, t + af.raw_ops.Size(input=af.exp(x) * af.cast(t, "float32"))], [0, 0]
    )[1]
    for count in (0, 1, 4):
        feeds = [np.ones((2, 3), np.float32), np.int32(count)]
        result = await assert_equivalent(step(total, [x, n]), feeds, shapes, dead_code)
        assert "Size" not in ops(result)


async def test_shape_of_an_effect_waits_for_it() -> None:
    total = af.Variable(1.0)
    graph = step(af.raw_ops.Shape(input=total.assign_add(1.0) * 2.0))
    result = optimized(graph, shapes, dead_code)
    assert "Shape" not in ops(result)
    assert "Mul" not in ops(result)
    before = step([], targets=[total.initializer])
    assert (await run(result, before=before)).effects == (await run(graph, before=before)).effects


def test_ensure_shape_is_kept() -> None:
    x = af.placeholder("float32", None)
    graph = step(af.raw_ops.Shape(input=af.ensure_shape(x, [2])), [x])
    assert ops(optimized(graph, shapes, dead_code)) == {"EnsureShape": 1}


def test_shape_that_changes_the_kernel_of_a_sum_is_kept() -> None:
    x = af.placeholder("float32", [20, 30])
    axes = af.raw_ops.Rank(input=af.constant([1.0]))
    total = af.raw_ops.Sum(input=x, reduction_indices=axes, keep_dims=False)
    assert ops(optimized(step(total, [x]), shapes)) == {"Rank": 1, "Sum": 1}
