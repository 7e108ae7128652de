"""Buffer reuse: hand-made cases of reuse, no reuse, escape, copies and views."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.ir import Edge
from aioflow.compiler.prune import StepRequest, prune
from aioflow.graph.opdef import OPS, define_op
from aioflow.kernels.registry import KERNELS, kernel
from aioflow.kernels.resources import ResourceManager
from aioflow.ops.apply import make, make_op
from aioflow.runtime.bind import bind_graph
from aioflow.runtime.device import host
from aioflow.runtime.liveness import NodeLife, analyse, fed_values
from aioflow.runtime.tasks import constant_values, split

_KEPT: list[Any] = []

if "TestKeep" not in OPS:
    define_op("TestKeep", "x: float32", "", stateful=True)
    define_op("TestKeepLater", "x: float32", "", stateful=True)
    define_op("TestPass", "x: T", "y: T", ["T: type"], shape=lambda ctx: ctx.dims("x"))

if not KERNELS.for_op("TestKeep"):

    @kernel("TestKeep", retains=True)
    def _keep(x: Any) -> None:
        _KEPT.append(x)

    @kernel("TestKeepLater", retains=True)
    async def _keep_later(x: Any) -> None:
        _KEPT.append(x)

    @kernel("TestPass")
    async def _pass(x: Any) -> Any:
        await asyncio.sleep(0)
        return x


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    _KEPT.clear()
    yield
    _KEPT.clear()


class Lives:
    """The lifetimes in the single strand that `fetches` need, by node name."""

    def __init__(self, *fetches: af.Tensor, feeds: tuple[af.Tensor, ...] = (), targets: tuple[Any, ...] = ()) -> None:
        graph = prune(StepRequest(feeds, fetches, targets))
        bound = bind_graph(graph, host(), ResourceManager(), {})
        constants = constant_values(bound)
        (task,) = split(graph, bound, constants)
        found = analyse(task, graph, fed_values(graph, bound))
        self.nodes = {b.node.name: life for b, life in zip(task.nodes, found.nodes, strict=True)}
        self.owned = found.owned

    def __getitem__(self, tensor: af.Tensor) -> NodeLife:
        return self.nodes[tensor.op.name]

    def owns(self, tensor: af.Tensor) -> bool:
        return _edge(tensor) in self.owned


def _edge(tensor: af.Tensor) -> Edge:
    return Edge(tensor.op.name, tensor.value_index)


LARGE = [256, 256]


@pytest.fixture
def x() -> af.Tensor:
    return af.placeholder("float32", LARGE, name="x")


# -- reuse ---------------------------------------------------------------------------------------------------------


def test_last_reader_overwrites_its_operand(x: af.Tensor) -> None:
    a = af.tanh(x)
    b = af.exp(a)
    lives = Lives(b, feeds=(x,))
    assert (lives[b].reuse, lives[b].guarded) == (_edge(a), False)
    assert lives[b].dies == (_edge(a),)
    assert lives.owns(b)


def test_a_feed_is_never_overwritten(x: af.Tensor) -> None:
    a = af.tanh(x)
    assert Lives(a, feeds=(x,))[a].reuse is None


def test_a_constant_is_never_overwritten() -> None:
    a = af.tanh(af.constant(np.ones(LARGE, np.float32)))
    assert Lives(a)[a].reuse is None


def test_a_result_with_another_reader_is_not_overwritten(x: af.Tensor) -> None:
    a = af.tanh(x)
    b = af.exp(a)
    c = af.add(a, b)
    lives = Lives(c, feeds=(x,))
    assert lives[b].reuse is None, "`a` is read again"
    assert lives[c].reuse in (_edge(a), _edge(b)), "both die here"
    assert set(lives[c].dies) == {_edge(a), _edge(b)}


def test_a_fetched_result_is_not_overwritten(x: af.Tensor) -> None:
    a = af.tanh(x)
    b = af.exp(a)
    lives = Lives(a, b, feeds=(x,))
    assert lives[b].reuse is None
    assert lives[b].dies == ()
    assert lives.owns(a)
    assert lives.owns(b)


def test_operand_read_twice_is_overwritten_by_elementwise_kernels_only(x: af.Tensor) -> None:
    a = af.tanh(x)
    b = af.multiply(a, a)
    assert Lives(b, feeds=(x,))[b].reuse == _edge(a), "each element depends on its own index alone"
    c = af.matmul(a, a)
    assert Lives(c, feeds=(x,))[c].reuse is None


def test_another_dtype_needs_another_buffer(x: af.Tensor) -> None:
    a = af.tanh(x)
    b = af.less(a, 0.5)
    assert Lives(b, feeds=(x,))[b].reuse is None


def test_a_broadcast_operand_is_not_overwritten(x: af.Tensor) -> None:
    row = af.tanh(af.placeholder("float32", [1, 65536], name="row"))
    column = af.tanh(af.placeholder("float32", [65536, 1], name="column"))
    b = af.add(row, column)
    feeds = (row.op.inputs[0], column.op.inputs[0])
    life = Lives(b, feeds=feeds)[b]
    assert life.reuse is None or life.guarded, "neither has the size of the result"


def test_reuse_over_unknown_shapes_is_decided_at_run_time() -> None:
    x = af.placeholder("float32", [None, 4], name="x")
    a = af.tanh(x)
    b = af.exp(a)
    life = Lives(b, feeds=(x,))[b]
    assert (life.reuse, life.guarded) in {(_edge(a), True), (_edge(a), False)}
    other = af.placeholder("float32", [None, 4], name="other")
    c = af.add(af.tanh(x), other)
    assert Lives(c, feeds=(x, other))[c].guarded, "either may be the one that is broadcast"


def test_small_values_are_left_to_the_allocator() -> None:
    x = af.placeholder("float32", [4], name="x")
    a = af.tanh(x)
    b = af.exp(a)
    life = Lives(b, feeds=(x,))[b]
    assert life.reuse is None
    assert life.dies == ()


def test_an_unread_result_dies_at_once(x: af.Tensor) -> None:
    a = af.tanh(x)
    lives = Lives(feeds=(x,), targets=(a.op,))
    assert _edge(a) in lives[a].dies


# -- views ---------------------------------------------------------------------------------------------------------


def test_a_view_keeps_its_base_from_being_overwritten(x: af.Tensor) -> None:
    a = af.tanh(x)
    view = af.transpose(a)
    b = af.exp(a)  # the last reader of `a` itself
    end = af.add(view, b)
    lives = Lives(end, feeds=(x,))
    assert lives[b].reuse is None, "`view` still shows the memory of `a`"
    assert lives[end].reuse == _edge(b), "not the view: it has not the layout of a buffer of its own"


@pytest.mark.parametrize("view_of", [af.identity, lambda t: af.reshape(t, [65536])])
def test_a_view_itself_is_never_overwritten(x: af.Tensor, view_of: Any) -> None:
    view = view_of(af.tanh(x))
    b = af.exp(view)
    assert Lives(b, feeds=(x,))[b].reuse is None


def test_a_base_is_free_again_when_its_view_is_dead(x: af.Tensor) -> None:
    a = af.tanh(x)
    view = af.transpose(a)
    square = af.matmul(view, view)  # the view's last reader makes a new buffer
    with af.control_dependencies([square]):
        b = af.exp(a)
    lives = Lives(af.add(b, square), feeds=(x,))
    assert lives[b].reuse == _edge(a)


def test_a_fetched_view_of_a_fetched_value_is_owned_by_neither(x: af.Tensor) -> None:
    a = af.tanh(x)
    view = af.reshape(a, [65536])
    lives = Lives(a, view, feeds=(x,))
    assert not lives.owns(a)
    assert not lives.owns(view)


def test_a_fetched_view_of_a_feed_is_not_owned(x: af.Tensor) -> None:
    view = af.reshape(x, [65536])
    assert not Lives(view, feeds=(x,)).owns(view)


def test_identity_is_a_view(x: af.Tensor) -> None:
    a = af.tanh(x)
    same = af.identity(a)
    b = af.exp(a)
    lives = Lives(b, same, feeds=(x,))
    assert lives[b].reuse is None
    assert lives.owns(same)


# -- values that a kernel keeps ------------------------------------------------------------------------------------


def _keep_it(tensor: af.Tensor, op: str = "TestKeep") -> af.Operation:
    return make_op(op, tensor)


def test_value_kept_by_a_kernel_is_neither_overwritten_nor_owned(x: af.Tensor) -> None:
    a = af.tanh(x)
    kept = _keep_it(a)
    with af.control_dependencies([kept]):
        b = af.exp(a)
    lives = Lives(b, a, feeds=(x,), targets=(kept,))
    assert lives[b].reuse is None
    assert not lives.owns(a)
    assert lives.nodes[kept.name].copies == frozenset(), "nobody else writes to it"


def test_kernel_that_keeps_a_view_keeps_its_base(x: af.Tensor) -> None:
    a = af.tanh(x)
    kept = _keep_it(af.transpose(a))
    b = af.exp(a)
    lives = Lives(b, feeds=(x,), targets=(kept,))
    assert lives[b].reuse is None


@pytest.mark.parametrize("through", [lambda t: t, af.transpose, lambda t: af.reshape(af.identity(t), [-1])])
def test_kernel_that_would_keep_a_feed_gets_a_copy(x: af.Tensor, through: Any) -> None:
    value = through(x)
    kept = _keep_it(value)
    expected = Edge("_arg_0", 0) if value is x else _edge(value)
    assert Lives(feeds=(x,), targets=(kept,)).nodes[kept.name].copies == {expected}


def test_fed_values_are_those_that_share_memory_with_feeds(x: af.Tensor) -> None:
    view = af.transpose(x)
    through = make("TestPass", view)
    fresh = af.tanh(through)
    graph = prune(StepRequest((x,), (fresh, af.identity(fresh))))
    bound = bind_graph(graph, host(), ResourceManager(), {})
    found = fed_values(graph, bound)
    assert {_edge(view), _edge(through)} <= found
    assert _edge(fresh) not in found


EXECUTORS = [af.SessionConfig(), af.SessionConfig(inline_budget=0), af.SessionConfig(executor="reference")]
IDS = ["inline", "in a thread", "reference"]


@pytest.mark.parametrize("config", EXECUTORS, ids=IDS)
@pytest.mark.parametrize("op", ["TestKeep", "TestKeepLater"])
@pytest.mark.parametrize(
    "through",
    [
        lambda t: t,
        lambda t: af.reshape(t, [-1]),
        lambda t: make("TestPass", t),
        lambda t: af.reshape(make("TestPass", af.transpose(t)), [-1]),
    ],
    ids=["fed", "a view", "through another task", "a view through another task"],
)
async def test_kernels_keep_no_memory_of_the_caller(config: Any, op: str, through: Any) -> None:
    x = af.placeholder("float32", [4, 4])
    kept = _keep_it(through(x), op)
    data = np.ones((4, 4), np.float32)
    async with af.Session(config=config) as session:
        for _ in range(3):
            await session.run(kept, {x: data})
            assert not np.shares_memory(_KEPT[-1], data)
            data[:] = 5
            assert (_KEPT[-1] == 1).all()
            data[:] = 1


@pytest.mark.parametrize("config", EXECUTORS, ids=IDS)
@pytest.mark.parametrize("op", ["TestKeep", "TestKeepLater"])
@pytest.mark.parametrize("apart", [False, True], ids=["one task", "several tasks"])
async def test_caller_gets_no_memory_that_a_kernel_keeps(config: Any, op: str, apart: bool) -> None:
    x = af.placeholder("float32", [4, 4])
    y = af.tanh(x)
    gate = [make("TestPass", x)] if apart else []
    with af.control_dependencies(gate):
        kept = [_keep_it(y, op), _keep_it(af.reshape(y, [-1]), op)]
    view = af.reshape(y, [16])
    async with af.Session(config=config) as session:
        for _ in range(3):
            fetched, other, *_ = await session.run([y, view, *kept], {x: np.ones((4, 4), np.float32)})
            for mine in _KEPT[-2:]:
                assert not np.shares_memory(mine, fetched)
                assert not np.shares_memory(mine, other)
            assert not np.shares_memory(fetched, other)
            fetched[:] = other[:] = 7
            alone, *_ = await session.run([y, *kept], {x: np.ones((4, 4), np.float32)})
            alone[:] = 7
            assert all(np.allclose(k, np.tanh(1)) for k in _KEPT)


async def test_value_shared_with_another_task_is_fetched_as_a_copy() -> None:
    """A value that two tasks share is copied for the caller, also if no kernel keeps it."""
    x = af.placeholder("float32", [4])
    y = af.tanh(x)
    through = make("TestPass", y)
    async with af.Session() as session:
        a, b = await session.run([y, through], {x: np.ones(4, np.float32)})
    assert not np.shares_memory(a, b)
