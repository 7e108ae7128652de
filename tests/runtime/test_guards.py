"""Predicated nodes, built by hand: fetches from dead sides, error positions, memory, fallback to the propagator."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.prune import StepRequest, prune
from aioflow.errors import DeadlineExceededError, InvalidArgumentError
from aioflow.graph.opdef import OPS, define_op
from aioflow.kernels.registry import KERNELS, binder, kernel
from aioflow.kernels.resources import ResourceManager
from aioflow.ops.apply import make, make_list
from aioflow.runtime.bind import bind_graph
from aioflow.runtime.branches import raise_branches
from aioflow.runtime.codegen import CodeVariant
from aioflow.runtime.device import host
from aioflow.runtime.frames import DEAD
from aioflow.runtime.strand_code import StrandCode
from aioflow.runtime.tasks import split
from tests.runtime.test_branches import FORMS, PRIMITIVE, lifted, run

IDS = ["default", "in a thread", "inline"]
ALL = [*FORMS, PRIMITIVE]
ALL_IDS = [*IDS, "primitive"]


class Tracked(np.ndarray):
    """An array that supports weak references."""


_MADE: list[weakref.ref[Any]] = []
_ALIVE: list[int] = []

if "TestTrack" not in OPS:
    define_op("TestTrack", "x: float32", "y: float32", stateful=True, shape=lambda ctx: ctx.dims("x"))
    define_op("TestGuardWait", "x: float32", "y: float32", stateful=True, shape=lambda ctx: ctx.dims("x"))
    define_op("TestFail", "x: float32", "y: float32", stateful=True, shape=lambda ctx: ctx.dims("x"))
    define_op("TestHalf", "x: float32", "y: float32", stateful=True, shape=lambda ctx: ctx.dims("x"))
    define_op("TestFailNow", "x: float32", "y: float32", stateful=True, shape=lambda ctx: ctx.dims("x"))

if not KERNELS.for_op("TestTrack"):

    @kernel("TestTrack", fresh=True)
    def _track(x: Any) -> Any:
        gc.collect(0)
        _ALIVE.append(sum(made() is not None for made in _MADE))
        made = np.array(x).view(Tracked)
        _MADE.append(weakref.ref(made))
        return made

    @kernel("TestGuardWait")
    async def _wait(x: Any) -> Any:
        await asyncio.sleep(0)
        return x

    @binder("TestHalf", is_async=True)
    def _half(binding: Any) -> Any:
        async def later(x: Any) -> Any:
            return x

        return lambda x: later(x)

    @binder("TestFailNow", is_async=True)
    def _fail_now(binding: Any) -> Any:
        def fail(x: Any) -> Any:
            raise ValueError("at once")

        return fail

    @kernel("TestFail")
    def _fail(x: Any) -> Any:
        raise ValueError("broken")


def sides(pred: af.Tensor, x: af.Tensor) -> tuple[af.Tensor, list[af.Tensor], list[af.Tensor]]:
    """Return a `cond` and the tensors that each side made."""
    made: tuple[list[af.Tensor], list[af.Tensor]] = ([], [])

    def side(index: int) -> Any:
        def build() -> af.Tensor:
            made[index].append(af.tanh(x) if index else af.negative(x))
            return made[index][0] + 1.0

        return build

    return af.cond(pred, side(1), side(0)), made[0], made[1]


@pytest.fixture
def p() -> af.Tensor:
    return af.placeholder("bool", [])


@pytest.fixture
def x() -> af.Tensor:
    return af.placeholder("float32", [4])


X = np.arange(4, dtype=np.float32)


@pytest.mark.parametrize("config", ALL, ids=ALL_IDS)
async def test_fetch_from_an_untaken_side_is_rejected(config: Any, p: af.Tensor, x: af.Tensor) -> None:
    if_false, if_true = make_list("Switch", x, p)
    taken = af.tanh(if_true)
    merged = make_list("Merge", [af.negative(if_false), taken])[0]
    assert not lifted([merged, taken], [p, x])[0]
    values = await run([merged, taken], {p: True, x: X}, config)
    np.testing.assert_array_equal(values[1], np.tanh(X))
    for fetches in ([merged, taken], taken):
        with pytest.raises(InvalidArgumentError, match="Tanh:0' does not have a value: it is on a branch") as caught:
            await run(fetches, {p: False, x: X}, config)
        assert (caught.value.expected, caught.value.actual) == ("a live tensor", "dead")


@pytest.mark.parametrize("config", ALL, ids=ALL_IDS)
async def test_fetched_output_of_a_switch(config: Any, p: af.Tensor, x: af.Tensor) -> None:
    """The input of the Switch is alive in any case, the output only on the taken side."""
    if_false, if_true = make_list("Switch", x, p)
    np.testing.assert_array_equal(await run(if_true, {p: True, x: X}, config), X)
    with pytest.raises(InvalidArgumentError, match="Switch:0' does not have a value"):
        await run([if_true, if_false], {p: True, x: X}, config)


@pytest.mark.parametrize("config", ALL, ids=ALL_IDS)
async def test_second_output_of_a_merge_is_the_index_of_the_side(config: Any, p: af.Tensor, x: af.Tensor) -> None:
    if_false, if_true = make_list("Switch", x, p)
    swapped = make_list("Merge", [if_true + 1.0, if_false])
    alone = make_list("Merge", [if_false, make_list("Switch", if_true, p)[0]])  # the second input is always dead
    for pred, index in ((True, 0), (False, 1)):
        value, which = await run(swapped, {p: pred, x: X}, config)
        np.testing.assert_array_equal(value, X + 1 if pred else X)
        assert which == index
        assert which.dtype == np.int32
    assert (await run(alone[1], {p: False, x: X}, config)) == 0
    assert not lifted([*swapped, *alone], [p, x])[0]


@pytest.mark.parametrize("config", ALL, ids=ALL_IDS)
async def test_a_predicate_must_be_a_scalar(config: Any, x: af.Tensor) -> None:
    pred = af.placeholder("bool", None)
    merged = af.cond(pred, lambda: x, lambda: x * 2.0)
    for value in (True, np.bool_(True), np.array(True)):
        np.testing.assert_array_equal(await run(merged, {pred: value, x: X}, config), X)
    with pytest.raises(InvalidArgumentError, match="the predicate of a Switch must be a scalar") as caught:
        await run(merged, {pred: [True, False], x: X}, config)
    assert caught.value.op_type == "Switch"


@pytest.mark.parametrize("config", ALL, ids=ALL_IDS)
async def test_unread_merge_index_of_unknown_shape(config: Any, p: af.Tensor, x: af.Tensor) -> None:
    """Shapes inside loops are unknown in a function that is called with other shapes than it was traced for."""
    merged = make_list("Merge", list(make_list("Switch", x, p)))
    merged[1].widen_shape(None)
    np.testing.assert_array_equal(await run(af.negative(merged[0]), {p: True, x: X}, config), -X)


@pytest.mark.parametrize("config", ALL, ids=ALL_IDS)
@pytest.mark.parametrize("pred", [True, False])
async def test_error_in_a_branch_names_its_node(config: Any, pred: bool, p: af.Tensor, x: af.Tensor) -> None:
    merged = af.cond(
        p,
        lambda: af.tanh(make("TestFail", af.tanh(x), name="here")),
        lambda: af.exp(make("TestFail", af.negative(x), name="there")),
    )
    for traced in (False, True):
        level = af.RunOptions.FULL_TRACE if traced else af.RunOptions.NO_TRACE
        async with af.Session(config=config) as session:
            with pytest.raises(InvalidArgumentError, match="broken") as caught:
                await session.run(merged, {p: pred, x: X}, options=af.RunOptions(trace_level=level))
        assert caught.value.node == ("cond/here" if pred else "cond/there")


@pytest.mark.parametrize("config", ALL, ids=ALL_IDS)
async def test_error_in_a_branch_of_a_loop_names_its_node(config: Any, x: af.Tensor) -> None:
    def body(i: Any, s: Any) -> Any:
        return i + 1, af.cond(i > 2, lambda: make("TestFail", s, name="late"), lambda: s + 1.0)

    looped = af.while_loop(lambda i, s: i < 9, body, [0, x])
    with pytest.raises(InvalidArgumentError, match="broken") as caught:
        await run(looped, {x: X}, config)
    assert str(caught.value.node).endswith("/late")


@pytest.mark.blocks_loop("builds more than a hundred branches in one another where it stands, as programs do")
@pytest.mark.parametrize("in_loop", [False, True])
async def test_branches_nest_deeper_than_python_can_indent(in_loop: bool, x: af.Tensor) -> None:
    k = af.placeholder("int32", ())

    def chosen(x: af.Tensor) -> Any:
        return af.switch_case(k, [lambda j=j: x * float(j) for j in range(102)])

    y = af.while_loop(lambda i, y: i < 1, lambda i, y: [i + 1, chosen(y)], [0, x])[1] if in_loop else chosen(x)
    async with af.Session() as session:
        for j in (0, 50, 101):
            np.testing.assert_array_equal(await session.run(y, {x: X, k: j}), X * np.float32(j))


async def test_branch_with_an_async_node_is_left_to_the_propagator(p: af.Tensor, x: af.Tensor) -> None:
    waits = af.cond(p, lambda: make("TestGuardWait", x), lambda: x)
    assert lifted([waits], [p, x])[0]
    np.testing.assert_array_equal(await run(waits, {p: True, x: X}, af.SessionConfig()), X)


@pytest.mark.parametrize("pred", [True, False])
async def test_branches_on_both_sides_of_an_async_node(pred: bool, p: af.Tensor, x: af.Tensor) -> None:
    """A value of one side crosses from one strand to another, alive or dead."""
    merged, _, taken = sides(p, x)
    waited = make("TestGuardWait", merged)
    later = af.cond(p, lambda: taken[0] + waited, lambda: waited)
    assert not lifted([later], [p, x])[0]
    for config in FORMS:
        expected = await run(later, {p: pred, x: X}, PRIMITIVE)
        np.testing.assert_array_equal(await run(later, {p: pred, x: X}, config, times=2), expected)


def test_sides_of_a_predicate_alternate(p: af.Tensor, x: af.Tensor) -> None:
    """Blocks of one predicate may follow one another in any order; an `else` cannot have an `else`."""
    if_false, if_true = make_list("Switch", x, p)
    fetches = [af.tanh(if_true), af.negative(if_false), af.exp(if_true), af.abs(if_false)]
    graph = prune(StepRequest((p, x), tuple(fetches)))
    graph, nodes = raise_branches(graph, bind_graph(graph, host(), ResourceManager(), {}))
    turns = sorted(nodes, key=lambda b: ["Tanh", "Neg", "Exp", "Abs"].index(b.node.op))
    (task,) = split(graph, turns, {})
    code = StrandCode(task, graph, {}, frozenset())
    order = [e.node for e in task.inputs]
    values = {"_arg_0": np.bool_(True), "_arg_1": X}
    made = code.function(CodeVariant.FAST)(*(values[name] for name in order))
    assert [v is DEAD for v in made] == [False, True, False, True]


# -- memory ----------------------------------------------------------------------------------------------------------

LARGE = [128, 128]


@pytest.mark.parametrize("pred", [True, False])
async def test_value_passed_on_by_a_merge_is_not_overwritten(pred: bool, p: af.Tensor) -> None:
    """One side is a feed, the other a constant; the elementwise result after the Merge could reuse either buffer."""
    fed = af.placeholder("float32", LARGE)
    held = af.constant(np.ones(LARGE, np.float32))
    end = af.tanh(af.cond(p, lambda: fed, lambda: held))
    data = np.full(LARGE, 2.0, np.float32)
    async with af.Session() as session:
        for _ in range(3):
            np.testing.assert_array_equal(
                await session.run(end, {p: pred, fed: data}), np.tanh(data if pred else data / 2)
            )
    assert (data == 2).all()


async def test_variable_passed_on_by_a_merge_is_not_overwritten(p: af.Tensor) -> None:
    v = af.Variable(np.ones(LARGE, np.float32))
    end = af.negative(af.cond(p, lambda: v.read_value(), lambda: af.zeros(LARGE)))
    async with af.Session() as session:
        await session.run(v.initializer)
        for _ in range(3):
            assert (await session.run(end, {p: True}) == -1).all()
        assert (await session.run(v) == 1).all()


@pytest.mark.parametrize("pred", [True, False])
async def test_value_with_last_readers_on_both_sides(pred: bool, p: af.Tensor) -> None:
    fed = af.placeholder("float32", LARGE)
    base = fed + 1.0
    end = af.cond(p, lambda: af.tanh(base), lambda: af.negative(base)) + af.cond(p, lambda: base, lambda: base * 2.0)
    data = np.full(LARGE, 2.0, np.float32)
    async with af.Session() as session:
        for _ in range(3):
            have = await session.run(end, {p: pred, fed: data})
            np.testing.assert_allclose(have, np.tanh(data + 1) + 3 if pred else -3 + (data + 1) * 2, rtol=1e-6)
    assert (data == 2).all()


async def test_a_view_from_one_side_is_not_overwritten(p: af.Tensor) -> None:
    row = af.placeholder("float32", [1, 128])
    fed = af.placeholder("float32", LARGE)
    end = af.tanh(af.cond(p, lambda: af.broadcast_to(row + 1.0, LARGE), lambda: fed + 1.0))
    feeds = {row: np.ones([1, 128], np.float32), fed: np.ones(LARGE, np.float32)}
    for pred in (True, False):
        found = await run(end, {p: pred, **feeds}, af.SessionConfig(), times=2)
        np.testing.assert_allclose(found, np.full(LARGE, np.tanh(2.0)), rtol=1e-6)


async def test_a_fetched_value_of_a_side_belongs_to_the_caller(p: af.Tensor) -> None:
    fed = af.placeholder("float32", LARGE)
    end = af.cond(p, lambda: fed, lambda: fed + 1.0)
    data = np.ones(LARGE, np.float32)
    async with af.Session() as session:
        for pred in (True, False, True):
            (await session.run(end, {p: pred, fed: data}))[:] = 7
    assert (data == 1).all()


async def test_finished_iterations_keep_no_values_alive() -> None:
    x = af.placeholder("float32", LARGE)

    def body(i: Any, s: Any) -> Any:
        made = make("TestTrack", s)
        kept = af.cond(af.equal(i % 2, 0), lambda: made + 1.0, lambda: make("TestTrack", made * 0.5))
        return i + 1, kept

    looped = af.while_loop(lambda i, s: i < 20, body, [0, x])[1]
    _MADE.clear()
    _ALIVE.clear()
    await run(looped, {x: np.ones(LARGE, np.float32)}, af.SessionConfig())
    assert len(_ALIVE) == 30
    assert max(_ALIVE) <= 1, "only the loop variable, or what the branch reads"


async def test_variable_assigned_in_a_loop_shares_no_memory_with_the_caller(x: af.Tensor) -> None:
    """A variable is assigned the feed by way of a loop variable, an Identity and the next iteration."""
    v = af.Variable(np.zeros(4, np.float32))

    def body(i: Any, a: Any, b: Any) -> Any:
        with af.control_dependencies([v.assign(af.identity(b))]):
            return i + 1, a, af.identity(a)

    looped = af.while_loop(lambda i, a, b: i < 3, body, [0, x, af.zeros([4])])
    data = X.copy()
    async with af.Session() as session:
        await session.run(v.initializer)
        fetched = await session.run(looped, {x: data})
        data[:] = 9
        for value in fetched[1:]:
            value[:] = 8
        np.testing.assert_array_equal(await session.run(v), X)


# -- stopping, and the error of another task -------------------------------------------------------------------------


async def test_loop_in_a_branch_stops_on_timeout(p: af.Tensor) -> None:
    endless = af.cond(p, lambda: af.while_loop(lambda i: i >= 0, lambda i: i * 1, [0]), lambda: af.constant(1))
    async with af.Session() as session:
        assert await session.run(endless, {p: False}) == 1
        with pytest.raises(DeadlineExceededError):
            await session.run(endless, {p: True}, timeout=0.03)


async def test_coroutine_that_is_never_awaited_is_closed(x: af.Tensor, recwarn: pytest.WarningsRecorder) -> None:
    """The first task has started a coroutine when the second fails at once."""
    begun = make("TestHalf", x)
    fails = make("TestFailNow", x)
    async with af.Session() as session:
        with pytest.raises(InvalidArgumentError, match="at once"):
            await session.run([begun, fails], {x: X})
    gc.collect()
    assert not [w for w in recwarn if "never awaited" in str(w.message)]
