"""Arithmetic simplification: each rule where it holds to the last bit, and similar cases where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.optimize.arithmetic import arithmetic
from aioflow.compiler.optimize.dead_code import dead_code
from tests.compiler.optimize.steps import assert_equivalent, fetched, ops, optimized, run, step

FLOATS = [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-40, -1e-45, 1.5, -3.4e38, 3.4e38, 0.1]
INTS = [0, 1, -1, 7, -7, 2**31 - 1, -(2**31), 2**24 + 1]
VALUES: dict[str, Any] = {
    "float32": np.array(FLOATS, np.float32).reshape(6, 2),
    "float64": np.array([*FLOATS[:10], 5e-324, 2.0**-1074], np.float64).reshape(6, 2),
    "float16": np.array([0.0, -0.0, np.nan, np.inf, 6e-8, 1.5], np.float16).reshape(3, 2),
    "int32": np.array(INTS, np.int32).reshape(4, 2),
    "uint8": np.array([0, 1, 128, 255], np.uint8).reshape(2, 2),
    "bool": np.array([[True, False]]),
}


Build = Callable[[Any], Any]
F32, F64, I32, U8, BOOL = "float32", "float64", "int32", "uint8", "bool"

# Nodes that disappear.
GONE: list[tuple[str, str, Build]] = [
    ("x * 1", F32, lambda x: x * 1.0),
    ("1 * x", F64, lambda x: 1.0 * x),
    ("x * 1, whole", I32, lambda x: x * 1),
    ("x * ones of the last dimension", F32, lambda x: x * af.ones([2])),
    ("x / 1", F32, lambda x: x / 1.0),
    ("x // 1", I32, lambda x: x // 1),
    ("truncating x / 1", I32, lambda x: af.truncatediv(x, 1)),
    ("x - 0", F32, lambda x: x - 0.0),
    ("x - 0, whole", I32, lambda x: x - 0),
    ("x + 0, whole", I32, lambda x: x + 0),
    ("0 + x, whole", I32, lambda x: 0 + x),
    ("x + -0.0", F32, lambda x: x + af.constant(-0.0)),
    ("x ** 1", F32, lambda x: x**1.0),
    ("x ** 1, whole", I32, lambda x: x**1),
    ("--x", F32, lambda x: af.negative(-x)),
    ("--x, whole", I32, lambda x: af.negative(-x)),
    ("~~x", I32, lambda x: af.bitwise.invert(af.bitwise.invert(x))),
    ("x & -1", I32, lambda x: af.bitwise.bitwise_and(x, -1)),
    ("x & 255 of a byte", U8, lambda x: af.bitwise.bitwise_and(x, af.constant(255, af.uint8))),
    ("x | 0", I32, lambda x: af.bitwise.bitwise_or(x, 0)),
    ("x ^ 0", I32, lambda x: af.bitwise.bitwise_xor(x, 0)),
    ("x << 0", I32, lambda x: af.bitwise.left_shift(x, 0)),
    ("x & x", I32, lambda x: af.bitwise.bitwise_and(x, x)),
    ("not not x", BOOL, lambda x: af.logical_not(af.logical_not(x))),
    ("x and True", BOOL, lambda x: af.logical_and(x, True)),
    ("False or x", BOOL, lambda x: af.logical_or(False, x)),
    ("x or x", BOOL, lambda x: af.logical_or(x, x)),
    ("min(x, x)", F32, lambda x: af.minimum(x, x)),
    ("a sum of one", F32, lambda x: af.add_n([x])),
    ("identity", F32, lambda x: af.identity(x)),
    ("stop_gradient", F32, lambda x: af.stop_gradient(x)),
    ("a cast to the same", F32, lambda x: af.raw_ops.Cast(x=x, DstT=af.float32)),
    ("there and back", F32, lambda x: af.cast(af.cast(x, af.float64), af.float32)),
    ("there and back, whole", I32, lambda x: af.cast(af.cast(x, af.float64), af.int32)),
    ("all of it", F32, lambda x: af.negative(-af.identity(x * 1.0) / 1.0) - 0.0),
]


@pytest.mark.parametrize(("dtype", "build"), [c[1:] for c in GONE], ids=[c[0] for c in GONE])
async def test_neutral_operations_are_removed(dtype: str, build: Build) -> None:
    x = af.placeholder(dtype, VALUES[dtype].shape)
    alone = _made(x)
    graph = step(build(alone), [x])
    result = await assert_equivalent(graph, [VALUES[dtype]], arithmetic, dead_code)
    assert ops(result) == ops(step(alone, [x])), ops(result)
    assert fetched(result).name == alone.op.name


def _made(x: Any) -> Any:
    """Return the values of `x` in a new array: the memory layout of a feed is unknown."""
    return af.logical_and(x, [[True, False]]) if x.dtype.is_bool else af.minimum(x, af.constant(_greatest(x)))


def _greatest(x: Any) -> Any:
    return x.dtype.as_numpy_dtype(np.inf) if x.dtype.is_floating else x.dtype.as_numpy_dtype(x.dtype.max)


# Nodes that become simpler, and the ops that remain besides the one that makes the value.
SIMPLER: list[tuple[str, str, Build, list[str]]] = [
    ("x / 4", F32, lambda x: x / 4.0, ["Mul"]),
    ("x / -2⁻²⁰", F64, lambda x: x / -(2.0**-20), ["Mul"]),
    ("x / 2¹²⁶", F32, lambda x: x / 2.0**126, ["Mul"]),
    ("x / powers", F32, lambda x: x / af.constant([2.0, -0.25]), ["Mul"]),
    ("|-x|", F32, lambda x: af.abs(-x), ["Abs"]),
    ("|-x|, whole", I32, lambda x: af.abs(-x), ["Abs"]),
    ("||x||", F32, lambda x: af.abs(af.abs(x)), ["Abs"]),
    ("(-x)², whole", I32, lambda x: af.square(-x), ["Square"]),
    ("floor(floor(x))", F32, lambda x: af.floor(af.floor(x)), ["Floor"]),
    ("sign(sign(x))", F32, lambda x: af.sign(af.sign(x)), ["Sign"]),
    ("not x < 1, whole", I32, lambda x: af.logical_not(x < 1), ["GreaterEqual"]),
    ("not x >= 1, whole", I32, lambda x: af.logical_not(x >= 1), ["Less"]),
    ("not x > 1, whole", I32, lambda x: af.logical_not(x > 1), ["LessEqual"]),
    ("not x == 1", F32, lambda x: af.logical_not(af.equal(x, 1.5)), ["NotEqual"]),
    ("not x != 1", F32, lambda x: af.logical_not(af.not_equal(x, 1.5)), ["Equal"]),
    ("a byte by way of an int", U8, lambda x: af.cast(af.cast(x, af.int32), af.float32), ["Cast"]),
    ("an int by way of a long one", I32, lambda x: af.cast(af.cast(x, af.int64), af.uint8), ["Cast"]),
    ("an int by way of a double", I32, lambda x: af.cast(af.cast(x, af.float64), af.float32), ["Cast"]),
    ("a bool by way of a float", BOOL, lambda x: af.cast(af.cast(x, af.float32), af.int32), ["Cast"]),
]


@pytest.mark.parametrize(("dtype", "build", "left"), [c[1:] for c in SIMPLER], ids=[c[0] for c in SIMPLER])
async def test_operations_are_simplified(dtype: str, build: Build, left: list[str]) -> None:
    x = af.placeholder(dtype, VALUES[dtype].shape)
    alone = _made(x)
    graph = step(build(alone), [x])
    result = await assert_equivalent(graph, [VALUES[dtype]], arithmetic, dead_code)
    assert ops(result) - ops(step(alone, [x])) == _counted(left)


def _counted(names: list[str]) -> Any:
    return {name: names.count(name) for name in names}


# Nodes that look like one of the above; each name is the reason why it must stay.
KEPT: list[tuple[str, str, Build]] = [
    ("x + 0.0 makes 0.0 of -0.0", F32, lambda x: x + 0.0),
    ("so does x - -0.0", F32, lambda x: x - af.constant(-0.0)),
    ("one of the zeros has a sign", F32, lambda x: x - af.constant([0.0, -0.0])),
    ("not all are ones", F32, lambda x: x * af.constant([1.0, 1.5])),
    ("ones that broadcast the value", F32, lambda x: x * af.ones([3, 1, 1])),
    ("the 16-bit floats have kernels of their own", "float16", lambda x: x * af.constant(1.0, af.float16)),
    ("1 / x is another thing", F32, lambda x: 1.0 / x),
    ("0 - x, too", I32, lambda x: 0 - x),
    ("floors", F32, lambda x: x // 1.0),
    ("a third is no binary fraction", F32, lambda x: x / 3.0),
    ("2⁻¹²⁷ is no normal number", F32, lambda x: x / 2.0**127),
    ("1 / 2⁻¹²⁸ is too large", F32, lambda x: x / 2.0**-128),
    ("a division by zero", F32, lambda x: x / 0.0),
    ("NaN is neither less nor not less", F32, lambda x: af.logical_not(x < 1.0)),
    ("the square of a NaN has its sign", F32, lambda x: af.square(-x)),
    ("a float loses digits", F32, lambda x: af.cast(af.cast(x, af.float16), af.float32)),
    ("a large int is no float", I32, lambda x: af.cast(af.cast(x, af.float32), af.int32)),
    ("a byte has no sign", I32, lambda x: af.cast(af.cast(x, af.uint8), af.int32)),
    ("a float outside of an int", F32, lambda x: af.cast(af.cast(x, af.float64), af.int32)),
    ("the 16-bit floats, too", F32, lambda x: af.cast(af.cast(x, af.float64), af.bfloat16)),
    ("ones that broadcast a new array", F32, lambda x: af.tile(x, [1, 1]) * af.constant(np.ones((3, 1, 1), "f4"))),
    ("the opposite of something else", F32, lambda x: af.negative(af.floor(x))),
    ("the greater one of two", F32, lambda x: af.maximum(x, af.floor(x))),
]


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")
@pytest.mark.parametrize(("dtype", "build"), [c[1:] for c in KEPT], ids=[c[0] for c in KEPT])
async def test_similar_operations_are_kept(dtype: str, build: Build) -> None:
    x = af.placeholder(dtype, VALUES[dtype].shape)
    graph = step(build(_made(x)), [x])
    result = await assert_equivalent(graph, [VALUES[dtype]], arithmetic, dead_code)
    assert ops(result) == ops(graph)


@pytest.mark.parametrize(("chosen", "wanted"), [(True, "Exp"), (False, "Tanh")])
async def test_constant_condition_chooses_an_input(chosen: bool, wanted: str) -> None:
    x = af.placeholder("float32", [2])
    y = af.where(af.fill([2], chosen), af.exp(x * 0.5), af.tanh(x * 0.5))
    for condition in (af.constant([chosen] * 2), af.constant(chosen)):
        y = af.where(condition, af.exp(x * 0.5) + 0.0, af.tanh(x * 0.5) + 0.0)
        graph = step(y, [x])
        result = optimized(graph, arithmetic, dead_code)
        # The layout of a chosen feed is unknown, so the choice stays; with constants the layout is known.
        assert "Select" in ops(result)
    z = af.constant([0.1, 0.2])
    y = af.where(af.constant([chosen] * 2), af.exp(z), af.tanh(z))
    result = await assert_equivalent(step(y), [], arithmetic, dead_code)
    assert ops(result) == {wanted: 1}


async def test_mixed_condition_is_kept() -> None:
    z = af.constant([0.1, 0.2])
    graph = step(af.where(af.constant([True, False]), af.exp(z), af.tanh(z)))
    assert ops(await assert_equivalent(graph, [], arithmetic, dead_code)) == ops(graph)


@pytest.mark.parametrize("choose", [af.where, af.where_v2])
async def test_unchosen_input_of_unknown_shape_is_still_checked(choose: Any) -> None:
    z = af.exp(af.constant([0.1, 0.2]))
    graph = step(choose(af.constant(True), z, other := af.placeholder("float32", None)), [other])
    result = optimized(graph, arithmetic, dead_code)
    assert ops(result) == ops(graph)
    with pytest.raises(af.errors.InvalidArgumentError):
        await run(result, [np.zeros(3, np.float32)])


async def test_unchosen_input_keeps_its_effects() -> None:
    total = af.Variable(0.0)
    z = af.exp(af.constant([0.1, 0.2]))
    other = z * total.assign_add(1.0)
    graph = step(af.where(af.constant([True, True]), z, other))
    before = step([], targets=[total.initializer])
    result = optimized(graph, arithmetic, dead_code)
    assert "Select" not in ops(result)
    assert (await run(result, before=before)).effects["AssignAddVariableOp"] == 1


# -- memory layout, devices, control dependencies, branches and errors --------------------------------------------


async def test_feed_with_another_layout_is_still_copied() -> None:
    """The product of a strided feed and 1 is a contiguous array, whose sum is computed in another order."""
    x = af.placeholder("float32", [300, 200])
    feed = np.random.default_rng(1).standard_normal((300, 400)).astype(np.float32)[:, ::2]
    graph = step(af.reduce_sum(x * 1.0, axis=1), [x])
    result = await assert_equivalent(graph, [feed], arithmetic, dead_code)
    assert ops(result) == {"Mul": 1, "Sum": 1}


async def test_matrix_of_ones_restores_row_major_order() -> None:
    x = af.placeholder("float32", [300, 200])
    feed = np.asfortranarray(np.random.default_rng(1).standard_normal((300, 200)).astype(np.float32))
    graph = step(af.reduce_sum(af.tanh(x) * af.constant(np.ones((300, 200), "f4")), axis=1), [x])
    assert ops(await assert_equivalent(graph, [feed], arithmetic))["Mul"] == 1
    product = step(af.reduce_sum(af.matmul(x, x, transpose_b=True) * af.constant(np.ones((300, 300), "f4")), 1), [x])
    assert "Mul" not in ops(await assert_equivalent(product, [feed], arithmetic, dead_code))


async def test_product_with_a_copy_does_not_become_a_product_with_itself() -> None:
    """BLAS multiplies a matrix by its own transpose with another routine, which rounds differently."""
    x = af.placeholder("float32", [120, 90])
    y = af.tanh(x)
    graph = step([af.matmul(y, y * 1.0, transpose_a=True), y * 1.0 + 1.0], [x])
    feed = np.random.default_rng(1).standard_normal((120, 90)).astype(np.float32)
    assert ops(await assert_equivalent(graph, [feed], arithmetic, dead_code))["Mul"] == 1


async def test_fetched_identity_of_a_feed_is_a_new_array() -> None:
    x = af.placeholder("float32", [2])
    feed = np.array([1.0, 2.0], np.float32)
    graph = optimized(step([af.identity(af.identity(x)), af.identity(x) * 2.0], [x]), arithmetic, dead_code)
    assert ops(graph) == {"Identity": 1, "Mul": 1}
    values = (await run(graph, [feed])).values
    assert not np.shares_memory(values[0], feed)


def test_identity_with_a_colocated_node_is_kept() -> None:
    x = af.placeholder("float32", [2])
    named = af.identity(af.tanh(x), name="named")
    with af.get_default_graph().colocate_with(named.op):
        y = af.exp(named)
    assert ops(optimized(step(y, [x]), arithmetic))["Identity"] == 1


def test_identity_that_moves_a_value_to_a_device_is_kept() -> None:
    x = af.placeholder("float32", [2])
    here = af.tanh(x)
    with af.device("/cpu:1"):
        there = af.identity(here)
    assert ops(optimized(step(af.exp(there), [x]), arithmetic))["Identity"] == 1


def test_identity_with_a_more_specific_shape_is_kept() -> None:
    """Kernels are chosen by static shapes."""
    x = af.placeholder("float32", [None])
    y = af.identity(af.tanh(x))
    y.set_shape([2])
    assert ops(optimized(step(af.exp(y), [x]), arithmetic))["Identity"] == 1


def test_identity_of_a_constant_axis_is_kept() -> None:
    """A sum over constant axes is computed in another way than one over axes of unknown value."""
    x = af.placeholder("float32", [20, 30])
    axes = af.raw_ops.Identity(input=af.constant([1]))
    graph = step(af.raw_ops.Sum(input=x, reduction_indices=axes, keep_dims=False), [x])
    assert ops(optimized(graph, arithmetic)) == ops(graph)


async def test_identity_that_waits_for_an_effect_is_kept() -> None:
    total = af.Variable(0.0)
    x = af.placeholder("float32", [])
    value = af.tanh(x)
    with af.control_dependencies([total.assign_add(1.0)]):
        y = af.identity(value) * 1.0
    graph = step(y, [x])
    before = step([], targets=[total.initializer])
    for passes in ((arithmetic, dead_code), (arithmetic, arithmetic, dead_code)):
        result = optimized(graph, *passes)
        assert ops(result)["Identity"] == 1
        assert ops(result)["Mul"] == 0
        assert (await run(result, [np.float32(0.5)], before=before)).effects["AssignAddVariableOp"] == 1


async def test_control_dependency_on_a_removed_node_moves_to_its_input() -> None:
    total = af.Variable(1.0)
    added = total.assign_add(1.0)
    with af.control_dependencies([af.identity(added)]):
        y = total.read_value()
    graph = step(y)
    before = step([], targets=[total.initializer])
    result = optimized(graph, arithmetic, dead_code)
    assert ops(result)["Identity"] == 0
    for _ in range(5):
        assert (await run(result, before=before)).values == [2.0]


async def test_removed_target_keeps_its_effect() -> None:
    total = af.Variable(1.0)
    target = af.identity(total.assign_add(1.0))
    result = optimized(step([], targets=[target.op]), arithmetic, dead_code)
    assert ops(result)["Identity"] == 0
    before = step([], targets=[total.initializer])
    assert (await run(result, before=before)).effects["AssignAddVariableOp"] == 1


@pytest.mark.parametrize("taken", [True, False])
async def test_values_before_and_after_a_switch_stay_distinct(taken: bool) -> None:
    x, p = af.placeholder("float32", [2]), af.placeholder("bool", [])
    y = af.tanh(x)
    off, on = af.raw_ops.Switch(data=y, pred=p)
    merged, index = af.raw_ops.Merge(inputs=[af.identity(off) * 1.0, af.negative(-af.identity(on)) * 2.0])
    graph = step([merged, index], [x, p])
    result = await assert_equivalent(graph, [np.array([0.5, 1.0], np.float32), np.bool_(taken)], arithmetic, dead_code)
    assert ops(result)["Switch"] == 1


@pytest.mark.parametrize("taken", [True, False])
async def test_constant_of_a_branch_keeps_its_reader_in_that_branch(taken: bool) -> None:
    """The value of y is alive on both sides; the constant, and so the product, only on one."""
    x, p = af.placeholder("float32", [2]), af.placeholder("bool", [])
    y = af.tanh(x)
    off, on = af.raw_ops.Switch(data=p, pred=p)
    with af.control_dependencies([af.identity(on)]):
        product = y * af.constant(1.0)
    with af.control_dependencies([af.identity(off)]):
        other = y * af.constant(3.0)
    graph = step(af.raw_ops.Merge(inputs=[product, other])[1], [x, p])
    await assert_equivalent(graph, [np.array([0.5, 1.0], np.float32), np.bool_(taken)], arithmetic, dead_code)


async def test_error_names_the_remaining_node() -> None:
    x = af.placeholder("float32", None)
    y = af.add_n([af.identity(af.tanh(x)) * 1.0, af.constant([1.0, 2.0])], name="user")
    graph = optimized(step(y, [x]), arithmetic, dead_code)
    with pytest.raises(af.errors.InvalidArgumentError) as caught:
        await run(graph, [np.zeros(3, np.float32)])
    assert caught.value.node == "user"
    assert caught.value.source is not None
    assert caught.value.source.filename == __file__
