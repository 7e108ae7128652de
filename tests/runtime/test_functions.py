"""Long strands, generated as several functions: values, error positions and memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.compiler.prune import StepRequest, prune
from aioflow.errors import InvalidArgumentError
from aioflow.graph.opdef import OPS, define_op
from aioflow.kernels.registry import KERNELS, kernel
from aioflow.kernels.resources import ResourceManager
from aioflow.ops.apply import make
from aioflow.runtime import codegen, functions
from aioflow.runtime.bind import BoundNode, RaisedLoop, bind_graph
from aioflow.runtime.branches import raise_branches
from aioflow.runtime.codegen import CodeVariant
from aioflow.runtime.device import host
from aioflow.runtime.functions import cut
from aioflow.runtime.loop_raising import LoopCode, raise_loops
from aioflow.runtime.strand_code import StrandCode
from aioflow.runtime.tasks import Task, constant_values, split
from tests.runtime.programs import random_program
from tests.support.random_examples import examples

AS_WRITTEN = af.SessionConfig(optimizations=False)
INLINE = af.SessionConfig(optimizations=False, inline_budget=60.0)
MOST_LINES = 150  # limit per function, far below the length of the strands here

if "TestBreak" not in OPS:
    define_op("TestBreak", "x: T", "y: T", ["T: type"], stateful=True, shape=lambda ctx: ctx.dims("x"))

if not KERNELS.for_op("TestBreak"):

    @kernel("TestBreak")
    def _break(x: Any) -> Any:
        raise ValueError("broken")


def strand_of(
    fetches: list[af.Tensor], feeds: list[af.Tensor]
) -> tuple[Task, Callable[[], StrandCode], list[BoundNode]]:
    """Return the only task of a step, a factory of its generated code, and the bound nodes."""
    graph = prune(StepRequest(tuple(feeds), tuple(fetches)))
    graph, bound = raise_branches(*raise_loops(graph, bind_graph(graph, host(), ResourceManager(), {})))
    constants = constant_values(bound)
    (task,) = split(graph, bound, constants)
    return task, lambda: StrandCode(task, graph, constants, frozenset()), bound


def made_by(function: Callable[..., Any]) -> Iterator[FunctionType]:
    """Yield a generated function and the functions that it is split into."""
    assert isinstance(function, FunctionType)
    yield function
    for found in list(function.__globals__.values()):
        if isinstance(found, tuple):
            yield from (each for each in found if isinstance(each, FunctionType))


def lines(function: FunctionType) -> int:
    return len({line for *_, line in function.__code__.co_lines() if line is not None})


def chain(x: Any, count: int) -> Any:
    for i in range(count):
        x = af.tanh(x) if i % 2 else x + 1.0
    return x


# -- values ------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10_000), longest=st.sampled_from([1, 8, 30]))
async def test_strands_in_many_functions_equal_the_reference_executor(seed: int, longest: int) -> None:
    with af.Graph().as_default(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(functions, "_LONGEST", longest)
        patch.setattr(functions, "_ALONE", longest)
        program = random_program(seed)
        before = {tensor: value.copy() for tensor, value in program.feeds.items()}
        async with af.Session(config=af.SessionConfig(executor="reference")) as plain:
            expected = await plain.run(program.fetches, program.feeds)
        for config in (AS_WRITTEN, INLINE):
            async with af.Session(config=config) as session:
                for _ in range(3):
                    actual = await session.run(program.fetches, program.feeds)
                    for want, have in zip(expected, actual, strict=True):
                        np.testing.assert_array_equal(have, want)
        for tensor, value in program.feeds.items():
            np.testing.assert_array_equal(value, before[tensor], err_msg="a feed was written to")


@pytest.mark.parametrize("config", [AS_WRITTEN, INLINE], ids=["in a thread", "inline"])
@pytest.mark.parametrize("taken", [True, False])
async def test_branches_and_loops_over_many_functions(config: af.SessionConfig, taken: bool) -> None:
    """Read a value of one side in another function than made it, and split the iterations of a loop."""
    x = af.placeholder("float32", [])
    p = af.placeholder("bool", [])
    y = chain(x, 300)
    z = af.cond(p, lambda: chain(y, 301) * y, lambda: chain(y, 150) - y)
    _, looped = af.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, chain(v, 400) + z), [af.constant(0), z])
    fetches, feeds = [z, looped, chain(looped, 300)], {x: np.float32(0.3), p: taken}
    async with af.Session(config=af.SessionConfig(executor="reference")) as plain:
        expected = await plain.run(fetches, feeds)
    async with af.Session(config=config) as session:
        for _ in range(3):
            assert await session.run(fetches, feeds) == expected


def test_node_with_thousands_of_inputs() -> None:
    x = af.placeholder("float32", [])
    total = af.add_n([x * float(i) for i in range(3000)])
    fed = [af.placeholder("float32", []) for _ in range(2000)]
    many = af.stack(fed)
    with af.Session(config=AS_WRITTEN) as session:
        for _ in range(2):
            assert session.run_sync(total, {x: 1.0}) == sum(range(3000))
            values = session.run_sync([many, *fed], dict(zip(fed, range(2000), strict=True)))
            assert values[0].tolist() == values[1:] == list(range(2000))


# -- the length of functions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", list(CodeVariant))
def test_no_generated_function_is_long(form: CodeVariant) -> None:
    x = af.placeholder("float32", [])
    p = af.placeholder("bool", [])
    y = af.cond(p, lambda: chain(x, 600), lambda: x)
    _, z = af.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, chain(v, 500)), [af.constant(0), y])
    task, code, bound = strand_of([z, *(chain(z, 2) for _ in range(300))], [x, p])
    made = list(made_by(code().function(form)))
    assert len(task.nodes) > 1000
    assert max(map(lines, made)) < MOST_LINES
    (loop,) = (b for b in bound if isinstance(b, RaisedLoop))
    assert isinstance(loop.call, LoopCode)
    assert all(len(text.splitlines()) < MOST_LINES for text in loop.call.source(form).split("\n\n"))


def test_a_short_strand_is_one_function() -> None:
    x = af.placeholder("float32", [])
    _, code, _ = strand_of([chain(x, 20)], [x])
    assert len(list(made_by(code().function(CodeVariant.FAST)))) == 1
    assert not code().is_long


def test_short_branch_stays_in_one_function() -> None:
    x = af.placeholder("float32", [])
    predicates = [af.placeholder("bool", []) for _ in range(60)]
    y: Any = x
    for p in predicates:
        y = chain(af.cond(p, partial(chain, y, 4), partial(chain, y, 2)), 2)
    task, _, _ = strand_of([y], [x, *predicates])
    cuts = cut(task, [range(len(task.nodes))])
    assert cuts is not None
    (pieces,) = cuts.sections
    assert [at for piece in pieces for at in piece] == list(range(len(task.nodes)))
    homes: dict[Any, set[int]] = {}
    for number, piece in enumerate(pieces):
        for at in piece:
            if task.nodes[at].guard:
                homes.setdefault(task.nodes[at].guard, set()).add(number)
    assert len(homes) == 2 * len(predicates)
    assert all(len(found) == 1 for found in homes.values())
    assert len(pieces) < len(predicates)


@pytest.mark.parametrize("count", [200, 2000])
async def test_long_strand_is_compiled_in_threads_only(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A strand that proves so quick that later steps run it on the event loop is compiled in a thread, too."""
    threads: list[int] = []
    compile_one = codegen._code

    def watched(text: str, filename: str) -> Any:
        threads.append(threading.get_ident())
        return compile_one(text, filename)

    monkeypatch.setattr(codegen, "_code", watched)
    x = af.placeholder("float32", [])
    async with af.Session(config=INLINE) as session:
        y = chain(x, count)
        for _ in range(4):
            await session.run(y, {x: 1.0})
    assert threads
    assert threading.get_ident() not in threads


# -- error positions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [AS_WRITTEN, INLINE], ids=["in a thread", "inline"])
@pytest.mark.parametrize("before", [0, 250, 500])
async def test_error_names_its_node_in_every_function(config: af.SessionConfig, before: int) -> None:
    x = af.placeholder("float32", [])
    p = af.placeholder("bool", [])
    healthy = chain(x, before)
    broken = make("TestBreak", healthy, name="the_broken_one")
    end = chain(af.cond(p, lambda: broken * 1.0, lambda: healthy), 500 - before)
    looped = af.while_loop(
        lambda i, v: i < 2, lambda i, v: (i + 1, chain(make("TestBreak", chain(v, before), name="inside"), 500)), [0, x]
    )[1]
    async with af.Session(config=config) as session:
        assert np.isfinite(await session.run(chain(x, 500), {x: 1.0}))
        for _ in range(3):
            with pytest.raises(InvalidArgumentError, match="broken") as caught:
                await session.run(end, {x: 1.0, p: True})
            assert caught.value.node == "the_broken_one"
            with pytest.raises(InvalidArgumentError, match="broken") as caught:
                await session.run(looped, {x: 1.0})
            assert str(caught.value.node).endswith("inside")


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [AS_WRITTEN, INLINE], ids=["in a thread", "inline"])
async def test_buffers_are_reused_and_die_across_functions(
    config: af.SessionConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most three arrays are alive at a time, as in a single function, in a chain, a branch and a loop."""
    tracemalloc = pytest.importorskip("tracemalloc")
    x = af.placeholder("float32", [None])
    p = af.placeholder("bool", [])
    y = chain(x, 31) * x
    y = af.cond(p, lambda: chain(y, 31) + 1.0, lambda: chain(y, 11) * 2.0)
    _, y = af.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, chain(v, 31)), [af.constant(0), y])
    y = chain(y, 30)
    data = np.ones(200_000, np.float32)
    peaks = []
    for longest in (100_000, 12):
        monkeypatch.setattr(functions, "_LONGEST", longest)
        monkeypatch.setattr(functions, "_ALONE", longest)
        async with af.Session(config=config) as session:
            for _ in range(2):
                await session.run(y, {x: data, p: True})
            tracemalloc.start()
            for taken in (True, False):
                await session.run(y, {x: data, p: taken})
            peaks.append(tracemalloc.get_traced_memory()[1] / data.nbytes)
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + 0.1
    assert peaks[1] < 3.1


async def test_a_cancelled_step_stops_between_functions() -> None:
    """The functions behind the one that is running are not called."""
    began = threading.Event()
    release = threading.Event()

    def wait(value: Any) -> Any:
        began.set()
        release.wait(10)
        return value

    x = af.placeholder("float32", [])
    count = af.Variable(0, name="count")
    waited = af.py_func(wait, [chain(x, 200)], af.float32)
    waited.set_shape([])
    with af.control_dependencies([chain(waited, 200)]):
        counted = count.assign_add(1)
    async with af.Session(config=AS_WRITTEN) as session:
        await session.run(count.initializer)
        async with asyncio.TaskGroup() as tg:
            task = tg.create_task(session.run(counted, {x: 1.0}))
            await asyncio.to_thread(began.wait, 10)
            task.cancel()
            asyncio.get_running_loop().call_later(0.2, release.set)
        assert await session.run(count) == 0
