"""Chains of elementwise nodes: what is fused and what is not, and that the values stay the same to the last bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.optimize import fuse_elementwise as module
from aioflow.compiler.optimize.fuse_elementwise import fuse_elementwise
from aioflow.errors import InvalidArgumentError
from aioflow_numpy import fused_blocks
from tests.compiler.optimize.fused_runs import check, never, ops, pruned, run
from tests.support.random_examples import examples

CHAIN = "_ElementwiseChain"


@pytest.fixture
def large() -> tuple[af.Tensor, np.ndarray[Any, Any]]:
    """Return a feed of unknown size, with a value that is evaluated in several blocks."""
    return af.placeholder("float32", [None]), np.linspace(-3, 3, 300_001, dtype=np.float32)


@pytest.fixture
def tiny_blocks() -> Iterator[None]:
    """Split every array into blocks of a few elements that threads share."""
    with pytest.MonkeyPatch.context() as patch:
        small_blocks(patch)
        yield


def small_blocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "_SMALL", 0)
    patch.setattr(module, "_SMALL_IN_CODE", 0)
    patch.setattr(fused_blocks, "_PAYS", 0)
    patch.setattr(fused_blocks, "_PAYS_IN_CODE", 0)
    patch.setattr(fused_blocks, "_BLOCK", 64)
    patch.setattr(fused_blocks, "_SHARED_BLOCK", 96)
    patch.setattr(fused_blocks, "_WORTH_THREADS", 512)
    patch.setattr(fused_blocks, "_LINE", 8)
    patch.setattr(fused_blocks, "_SHORT", 4)
    patch.setattr(fused_blocks, "_MANY", 2)


# -- fused nodes -------------------------------------------------------------------------------------------------------


def test_chain_becomes_one_node_with_the_name_of_its_last(large: Any) -> None:
    x, value = large
    y = af.tanh(x * 2.0 + 1.0, name="end")
    after = check(fuse_elementwise, [y], {x: value})
    assert ops(after) == {CHAIN: 1}
    assert after.nodes["end"].op == CHAIN
    assert after.nodes["end"].attrs["ops"] == ("Mul", "AddV2", "Tanh")
    assert after.nodes["end"].source == y.op.source


def test_intermediate_read_only_by_members_joins_the_chain(large: Any) -> None:
    x, value = large
    y = x + 1.0
    after = check(fuse_elementwise, [y * af.sigmoid(y)], {x: value})
    assert ops(after) == {CHAIN: 1}


def test_two_chains_that_share_an_input_stay_two(large: Any) -> None:
    x, value = large
    shared = af.exp(x)
    after = check(fuse_elementwise, [af.square(shared + 1.0), af.tanh(shared * 2.0)], {x: value})
    assert ops(after) == {"Exp": 1, CHAIN: 2}


def test_comparisons_selections_and_casts_are_members(large: Any) -> None:
    x, value = large
    y = af.where(af.logical_and(x > 0.5, af.less(x, 2.0)), x * 2.0, af.negative(x))
    y = af.cast(y, "float64") + 1.0
    after = check(fuse_elementwise, [y], {x: value})
    assert ops(after) == {CHAIN: 1}
    z = af.placeholder("int32", [None, 70_000])
    y = af.cast(af.cast(z, "float32") * 0.3, "int32") + z
    after = check(fuse_elementwise, [y], {z: np.arange(140_000).reshape(2, -1)})
    assert ops(after) == {CHAIN: 1}


def test_row_vectors_and_scalars_are_read_by_every_block() -> None:
    x, row = af.placeholder("float32", [None, 9, 300]), af.placeholder("float32", [300])
    scale, columns = af.placeholder("float32", []), af.placeholder("float32", [9, 1])
    feeds = {
        x: np.random.default_rng(0).standard_normal((100, 9, 300)).astype(np.float32),
        row: np.linspace(0, 1, 300, dtype=np.float32),
        scale: np.float32(-0.7),
        columns: np.arange(9, dtype=np.float32).reshape(9, 1),
    }
    assert ops(check(fuse_elementwise, [af.nn.relu((x + row) * scale)], feeds)) == {CHAIN: 1}
    assert ops(check(fuse_elementwise, [af.nn.relu(af.nn.bias_add(x, row) * scale)], feeds)) == {CHAIN: 1}
    # An operand over axes other than the last ones cannot be split along the first, so its reader is not fused.
    assert ops(check(fuse_elementwise, [af.nn.relu(x + columns)], feeds)) == {"AddV2": 1, "Relu": 1}


# -- nodes that are not fused ------------------------------------------------------------------------------------------


def test_fetched_and_awaited_nodes_are_not_fused(large: Any) -> None:
    x, value = large
    y = af.exp(x, name="y")
    assert ops(check(fuse_elementwise, [af.tanh(y), y], {x: value})) == {"Exp": 1, "Tanh": 1}
    with af.control_dependencies([y]):
        waits = af.identity(x)
    assert ops(check(fuse_elementwise, [af.tanh(y), waits], {x: value})) == {"Exp": 1, "Tanh": 1, "Identity": 1}
    targeted = fuse_elementwise(pruned([af.tanh(y)], [x], [y.op]), never)
    assert ops(targeted) == {"Exp": 1, "Tanh": 1}


def test_intermediate_with_another_reader_is_not_fused(large: Any) -> None:
    x, value = large
    y = af.exp(x)
    after = check(fuse_elementwise, [af.tanh(y), af.reduce_sum(y)], {x: value})
    assert ops(after) == {"Exp": 1, "Tanh": 1, "Sum": 1}


def test_nodes_with_different_placement_or_control_are_not_fused(large: Any) -> None:
    x, value = large
    with af.device("/cpu:1"):
        first = af.exp(x)
    with af.device("/cpu:0"):
        assert ops(fuse_elementwise(pruned([af.tanh(first)], [x]), never)) == {"Exp": 1, "Tanh": 1}
    plain, gate = af.exp(x), af.no_op(name="gate")
    with af.control_dependencies([gate]):
        later = af.tanh(plain)
    assert ops(check(fuse_elementwise, [later], {x: value})) == {"Exp": 1, "Tanh": 1, "NoOp": 1}
    anchor = af.identity(x)
    with af.colocate_with(anchor):
        held = af.exp(x)
    assert ops(check(fuse_elementwise, [af.tanh(held)], {x: value})) == {"Exp": 1, "Tanh": 1}
    with af.colocate_with(plain):  # another node is to be placed with `plain`
        placed = af.reduce_sum(x)
    assert ops(check(fuse_elementwise, [af.tanh(plain), placed], {x: value})) == {"Exp": 1, "Tanh": 1, "Sum": 1}


def test_small_arrays_are_not_fused() -> None:
    x, y = af.placeholder("float32", [4000]), af.placeholder("float32", [10_000])
    scalar = af.placeholder("float32", [])
    feeds = {x: np.ones(4000), y: np.ones(10_000), scalar: 2.0}
    after = check(fuse_elementwise, [af.tanh(y * 2.0), af.tanh(scalar * 2.0)], feeds)
    assert ops(after) == {"Mul": 2, "Tanh": 2}
    assert ops(check(fuse_elementwise, [af.nn.relu(x * 2.0)], feeds)) == {"Mul": 1, "Relu": 1}
    assert ops(check(fuse_elementwise, [af.nn.relu(y * 2.0)], feeds)) == {
        CHAIN: 1
    }  # the cost of calling machine code is low


def test_ops_that_can_fail_and_strings_are_not_fused() -> None:
    x = af.placeholder("int32", [None])
    after = check(fuse_elementwise, [af.negative(x // 2) + 1], {x: np.arange(9)})
    assert ops(after) == {"FloorDiv": 1, CHAIN: 1}
    text = af.placeholder("string", [None])
    after = check(fuse_elementwise, [af.logical_not(af.equal(text, text))], {text: [b"a"]})
    assert ops(after) == {"Equal": 1, "LogicalNot": 1}


def test_number_of_inputs_of_a_chain_is_limited() -> None:
    feeds = {af.placeholder("float32", [None]): np.full(9, i) for i in range(12)}
    total: Any = 0.0
    for x in feeds:
        total = x * total + x
    after = check(fuse_elementwise, [total], feeds)
    assert max(len(node.inputs) for node in after.nodes.values()) <= module._MOST_INPUTS
    assert ops(after)[CHAIN] >= 2


def test_node_over_fewer_elements_is_not_fused() -> None:
    x, row = af.placeholder("float32", [None, 700]), af.placeholder("float32", [None])
    feeds = {x: np.full((300, 700), 0.5), row: np.linspace(0, 1, 700)}
    after = check(fuse_elementwise, [af.nn.relu(x + af.exp(row))], feeds)
    assert ops(after) == {"Exp": 1, CHAIN: 1}


# -- control flow ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [True, False])
def test_chains_stay_within_their_branch(taken: bool, large: Any) -> None:
    x, value = large
    choose = af.placeholder("bool", [])
    outside = af.exp(x * 0.5)
    y = af.cond(choose, lambda: af.tanh(outside + 1.0) * 2.0, lambda: af.negative(af.square(x) * 3.0))
    after = check(fuse_elementwise, [af.abs(y + 1.0)], {x: value, choose: taken})
    assert ops(after)[CHAIN] == 4  # before the branch, one on each side, and after it
    assert ops(after)["Switch"] == ops(pruned([af.abs(y + 1.0)], [x, choose]))["Switch"]


def test_bodies_of_loops_are_fused(large: Any) -> None:
    x, value = large
    limit = af.placeholder("int32", [])
    _, y = af.while_loop(lambda i, y: i < limit, lambda i, y: (i + 1, af.tanh(y * 1.5 + x)), [af.constant(0), x])
    after = check(fuse_elementwise, [y], {x: value, limit: 3})
    assert ops(after)[CHAIN] == 1


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [3, 100_000])
def test_broadcast_error_names_the_original_node(rows: int) -> None:
    x, y = af.placeholder("float32", [None]), af.placeholder("float32", [None])
    wrong = af.add(af.exp(x), y, name="wrong")
    after = fuse_elementwise(pruned([af.tanh(wrong * 2.0)], [x, y]), never)
    assert ops(after) == {CHAIN: 1}
    with pytest.raises(InvalidArgumentError, match="broadcast") as caught:
        run(after, {x: np.ones(rows), y: np.ones(rows + 1)})
    assert (caught.value.node, caught.value.op_type, caught.value.source) == ("wrong", "AddV2", wrong.op.source)


@pytest.mark.parametrize("kind", ["ReluGrad", "SigmoidGrad"])
@pytest.mark.parametrize("rows", [(3, 1), (1, 3), (3000, 1), (1, 3000)])
def test_ops_without_broadcasting_reject_it_in_a_chain(kind: str, rows: tuple[int, int]) -> None:
    x, y = af.placeholder("float32", [None, 40]), af.placeholder("float32", [None, 40])
    wrong = getattr(af.raw_ops, kind)(**dict(zip(_OPERANDS[kind], (x, y), strict=True)), name="wrong")
    after = fuse_elementwise(pruned([wrong * 2.0 + 1.0], [x, y]), never)
    assert ops(after) == {CHAIN: 1}
    with pytest.raises(InvalidArgumentError, match="one shape") as caught:
        run(after, {x: np.ones((rows[0], 40)), y: np.ones((rows[1], 40))})
    assert (caught.value.node, caught.value.op_type) == ("wrong", kind)


_OPERANDS = {"ReluGrad": ("gradients", "features"), "SigmoidGrad": ("y", "dy")}


# -- the same to the last bit ------------------------------------------------------------------------------------------

_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42, 88.8, -1.0, 1.0, 3.5)
_FLOAT_UNARY: tuple[Callable[[Any], Any], ...] = (
    *(af.negative, af.square, af.tanh, af.sigmoid, af.exp, af.abs, af.sqrt, af.rsqrt, af.reciprocal, af.sign),
    *(af.nn.relu, af.nn.relu6, af.nn.elu, af.floor, af.log1p, af.sin),
)
_FLOAT_BINARY = (af.add, af.subtract, af.multiply, af.maximum, af.minimum, af.squared_difference, af.divide)
_INT_UNARY = (af.negative, af.square, af.abs, af.sign, af.nn.relu)
_INT_BINARY = (af.add, af.subtract, af.multiply, af.maximum, af.minimum)


def _grow(rng: random.Random, pool: list[af.Tensor]) -> Any:
    """Return a node over recent ones of the pool; the other operand has the same dtype, and any shape."""
    x: Any = rng.choice(pool[-6:])
    alike = [t for t in pool if t.dtype is x.dtype]
    y = rng.choice(alike)
    kind = rng.random()
    if x.dtype is af.bool:
        made = (af.logical_and(x, y), af.logical_not(x), af.cast(x, "float32"))
        return rng.choice(made)
    if kind < 0.1:
        return rng.choice([af.less, af.equal, af.greater_equal])(x, y)
    if kind < 0.2:
        return af.cast(x, rng.choice(["float32", "float64"]))
    floating = x.dtype.is_floating
    if kind < 0.5:
        return rng.choice(_FLOAT_UNARY if floating else _INT_UNARY)(x)
    if rng.random() < 0.5:
        x, y = y, x
    return rng.choice(_FLOAT_BINARY if floating else _INT_BINARY)(x, y)


def _feeds(seed: int, shape: tuple[int, ...], known: bool) -> dict[af.Tensor, np.ndarray[Any, Any]]:
    values = np.random.default_rng(seed)
    found = {}
    for dtype in ("float32", "float64", "int32"):
        for size in (shape, shape, shape[-1:], ()):
            array = values.standard_normal(size) * 4
            if dtype != "int32":
                array = np.where(values.random(size) < 0.3, values.choice(_SPECIAL, size), array)
            static = list(size) if known else [None] * len(size)
            found[af.placeholder(dtype, static)] = np.asarray(array).astype(dtype)
    return found


@settings(max_examples=examples(120), deadline=None)
@given(
    seed=st.integers(0, 100_000),
    shape=st.sampled_from([(), (0,), (1,), (7,), (257,), (5, 3), (40, 1), (1, 40), (30, 5), (3, 4, 12), (0, 4)]),
    known=st.booleans(),
    size=st.integers(2, 25),
)
def test_random_programs_give_the_same_bits(seed: int, shape: tuple[int, ...], known: bool, size: int) -> None:
    rng = random.Random(seed)
    with af.Graph().as_default(), pytest.MonkeyPatch.context() as patch:
        small_blocks(patch)
        feeds = _feeds(seed, shape, known)
        pool = list(feeds)
        rng.shuffle(pool)
        for _ in range(size):
            pool.append(_grow(rng, pool))
        fetches = [pool[-1], *rng.sample(pool[len(feeds) :], rng.randrange(min(3, size)))]
        check(fuse_elementwise, fetches, feeds)


async def test_session_gives_the_same_bits_and_does_not_change_feeds(tiny_blocks: None) -> None:
    x, y = af.placeholder("float32", [None, None]), af.placeholder("float32", [None])
    inner = af.exp(x) * y
    fetches = [af.tanh(inner - 1.0), af.nn.relu6(af.square(inner + x) - y)]
    values = np.random.default_rng(0).standard_normal((33, 17)).astype(np.float32)
    feeds = {x: values, y: values[3].copy()}
    results = []
    for switch in (False, True):
        async with af.Session(config=af.SessionConfig(optimizations={"fuse_elementwise": switch})) as session:
            results.append([await session.run(fetches, feeds) for _ in range(3)])
    plain, optimized = results
    for expected, made in zip(plain, optimized, strict=True):
        for one, other in zip(expected, made, strict=True):
            np.testing.assert_array_equal(one.view(np.int32), other.view(np.int32))
    np.testing.assert_array_equal(values, np.random.default_rng(0).standard_normal((33, 17)).astype(np.float32))
