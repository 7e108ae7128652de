"""Graphs and scopes that are left in another order or context than they were entered in."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from contextvars import copy_context
from functools import partial
from typing import Any

import pytest

import aioflow as af
from aioflow.graph.scopes import current_scope
from tests.support.waiting import until_collected

_PATIENCE = 10.0

Left = Callable[[AbstractContextManager[Any]], None]


def leave(block: AbstractContextManager[Any]) -> None:
    block.__exit__(None, None, None)


def here(block: AbstractContextManager[Any]) -> None:
    leave(block)


def in_a_copy_of_the_context(block: AbstractContextManager[Any]) -> None:
    copy_context().run(leave, block)


def in_a_thread(block: AbstractContextManager[Any]) -> None:
    _in_thread(lambda: leave(block))


def in_a_thread_with_a_copy_of_the_context(block: AbstractContextManager[Any]) -> None:
    context = copy_context()
    _in_thread(lambda: context.run(leave, block))


def in_a_task(block: AbstractContextManager[Any]) -> None:
    async def body() -> None:
        leave(block)

    asyncio.run(body())


def in_a_callback(block: AbstractContextManager[Any]) -> None:
    async def body() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.call_soon(leave, block)
        loop.call_soon(done.set)
        await done.wait()

    asyncio.run(body())


def _in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(_PATIENCE)
    assert not thread.is_alive()


PLACES: tuple[Left, ...] = (
    here,
    in_a_copy_of_the_context,
    in_a_thread,
    in_a_thread_with_a_copy_of_the_context,
    in_a_task,
    in_a_callback,
)


def everything(graph: af.Graph) -> tuple[AbstractContextManager[Any], ...]:
    """Return one block of each kind. Each block adds something to new nodes or variables."""
    with graph.as_default(), graph.name_scope(None):
        waited = af.no_op(name="waited")
        near = af.no_op(name="near")
    return (
        af.name_scope("name"),
        af.variable_scope("variables"),
        af.device("/cpu:1"),
        af.control_dependencies([waited]),
        af.colocate_with(near),
        af.container("box"),
        graph.gradient_override_map({"NoOp": "Other"}),
    )


def description(graph: af.Graph) -> tuple[Any, ...]:
    """Return what a new node inherits here, and the variable scope."""
    scope = current_scope(graph)
    return (
        graph.get_name_scope(),
        af.get_variable_scope().name,
        scope.devices,
        [op.name for controller in scope.controllers for op in controller.inputs],
        scope.colocation,
        scope.container,
        dict(scope.gradients),
    )


# -- leaving in another context --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES, ids=lambda f: f.__name__)
def test_a_block_may_be_left_in_any_context(graph: af.Graph, place: Left) -> None:
    before = description(graph)
    other = af.Graph()
    for block in (other.as_default(), *everything(graph)):
        block.__enter__()
        place(block)
        assert af.get_default_graph() is graph
        assert description(graph) == before
    assert current_scope(graph) == current_scope(af.Graph())


@pytest.mark.parametrize("place", PLACES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("first", range(7))
def test_leaving_an_outer_block_keeps_the_inner_ones(graph: af.Graph, place: Left, first: int) -> None:
    """A block of each kind is entered around one of every other kind, and left before them."""
    blocks = everything(graph)
    empty = description(graph)
    outer, inner = blocks[first], blocks[:first] + blocks[first + 1 :]
    with ExitStack() as stack:
        outer.__enter__()
        alone = description(graph)
        for block in inner:
            stack.enter_context(block)
        full = description(graph)
        place(outer)
        assert current_scope(graph).name == full[0], "a name that was given stays: scopes inside are called by it"
        for both, only, nothing, now in list(zip(full, alone, empty, description(graph), strict=True))[1:]:
            assert now == (both if only == nothing else nothing)
    assert description(graph) == empty


def test_default_graphs_may_be_left_in_the_order_of_entry(graph: af.Graph) -> None:
    first, second = af.Graph(), af.Graph()
    a, b = first.as_default(), second.as_default()
    a.__enter__()
    b.__enter__()
    leave(a)
    assert af.get_default_graph() is second
    leave(b)
    assert af.get_default_graph() is graph


def test_overlapping_blocks_do_not_accumulate(graph: af.Graph) -> None:
    """A program enters the next block before it leaves the last, or leaves each block in a copy of its context."""
    context = copy_context()

    def overlap(place: Left) -> None:
        last = graph.device("/cpu:0")
        last.__enter__()
        for i in range(100):
            block = graph.device(f"/cpu:{i}")
            block.__enter__()
            place(last)
            last = block
            assert len(current_scope(graph).devices) == 1
        leave(last)

    for place in (here, in_a_copy_of_the_context):
        context.run(overlap, place)
    assert max(len(value) for value in context.values() if isinstance(value, tuple)) < 5


def test_shared_control_inputs_stay_when_the_outer_block_is_left(graph: af.Graph) -> None:
    a, b = af.no_op(name="a"), af.no_op(name="b")
    outer = af.control_dependencies([a])
    outer.__enter__()
    with af.control_dependencies([a, b]):
        inside = af.constant(1.0)
        leave(outer)
        assert sorted(c.name for c in af.no_op().control_inputs) == ["a", "b"]
        assert af.identity(inside).op.control_inputs == [], "a member of the block waits already"
    assert af.no_op().control_inputs == []


# -- generators ------------------------------------------------------------------------------------------------------


def opened(graph: af.Graph) -> Iterator[str]:
    with ExitStack() as stack:
        stack.enter_context(graph.as_default())
        for block in everything(graph):
            stack.enter_context(block)
        stack.enter_context(af.Graph().as_default())
        yield current_scope(graph).name


def dropped(generator: Iterator[Any]) -> None:
    """Make the generator a part of a cycle, so that the collector finalizes it, in whatever thread."""
    cycle: list[Any] = [generator]
    cycle.append(cycle)


ENDS: dict[str, Callable[[Iterator[Any]], object]] = {
    "closed here": lambda g: g.close(),  # type: ignore[attr-defined]
    "closed in another thread": lambda g: _in_thread(g.close),  # type: ignore[attr-defined]
    "closed in a copy": lambda g: copy_context().run(g.close),  # type: ignore[attr-defined]
    "exhausted in a copy": lambda g: copy_context().run(list, g),
    "exhausted in a thread": lambda g: _in_thread(lambda: list(g)),
    "collected": dropped,
}


@pytest.mark.parametrize("begun", ["here", "in a copy", "in a thread"])
@pytest.mark.parametrize("end", ENDS)
def test_generators_leave_their_blocks_wherever_they_end(
    graph: af.Graph, begun: str, end: str, unraisable: list[Any]
) -> None:
    generator = opened(graph)
    if begun == "here":
        next(generator)
    elif begun == "in a copy":
        copy_context().run(next, generator)
    else:
        _in_thread(partial(next, generator))
    with af.name_scope("since"):
        ENDS[end](generator)
        del generator
        _in_thread(gc.collect) if begun == "in a thread" else gc.collect()
        assert af.no_op(name="n").name.endswith("since/n")
        assert af.no_op().device == ""
    assert af.get_default_graph() is graph
    assert description(graph) == description(af.Graph())
    assert af.no_op(name="after").name == "after"
    assert unraisable == []


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of exceptions that Python would print as "Exception ignored in"."""
    found: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", found.append)
    return found


def test_leaving_a_variable_scope_late_keeps_other_names(graph: af.Graph) -> None:
    """Entering a scope again resets the counters of its inner names, and leaving restores them. Others are kept."""
    with af.variable_scope("a") as a, af.variable_scope(None, "inner"):
        pass

    def again() -> Iterator[None]:
        with af.variable_scope(a), af.variable_scope(None, "inner") as inner:
            assert inner.name == "a/inner"
            yield

    generator = again()
    copy_context().run(next, generator)
    with af.variable_scope(None, "b"):
        pass
    generator.close()  # type: ignore[attr-defined]
    with af.variable_scope(None, "b") as b, af.variable_scope(None, "c") as c:
        assert (b.name, c.name) == ("b_1", "b_1/c")
    with af.variable_scope(a), af.variable_scope(None, "inner") as inner:
        assert inner.name == "a/inner"


# -- tasks -----------------------------------------------------------------------------------------------------------


async def test_a_task_keeps_the_blocks_around_its_start(graph: af.Graph) -> None:
    """Blocks around one that the task itself enters are kept, too."""
    other = af.Graph()
    started, left = asyncio.Event(), asyncio.Event()

    async def build() -> tuple[tuple[Any, ...], ...]:
        found = [description(other)]
        with af.device("/cpu:7"):
            found.append(description(other))
            started.set()
            await left.wait()
            found.append(description(other))
        return (*found, description(other))

    async with asyncio.TaskGroup() as group:
        with other.as_default(), ExitStack() as stack:
            for block in everything(other):
                stack.enter_context(block)
            task = group.create_task(build())
            await started.wait()
        left.set()
    before, inside, inside_later, after = task.result()
    assert before == after
    assert inside == inside_later
    assert before[0] == "name/variables"
    assert len(inside[2]) == len(before[2]) + 1


async def test_a_task_does_not_keep_its_surrounding_graph_alive(graph: af.Graph) -> None:
    end = asyncio.Event()

    async def wait() -> None:
        await end.wait()

    other = af.Graph()
    reference = weakref.ref(other)
    async with asyncio.TaskGroup() as group:
        with other.as_default(), ExitStack() as stack:
            for block in everything(other):
                stack.enter_context(block)
            group.create_task(wait())
            await asyncio.sleep(0)
        del other, stack, block
        until_collected(reference)
        end.set()
