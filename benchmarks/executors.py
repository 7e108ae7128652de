"""Savings of each executor: `python -m benchmarks.executors` prints the cost of a node in each.

The result is the minimum of many rounds, in processor time, since wall time depends on other load on the cores.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Any

import aioflow as af  # before NumPy, so that its backends may prepare it
from benchmarks.primitive_form import primitive_form

# isort: split
import numpy as np

__all__ = ["EXECUTOR_ROWS"]

_ROUNDS = 300
_NODES = 100


async def _least(step: Callable[[], Awaitable[Any]], rounds: int = _ROUNDS) -> float:
    """Return the seconds of the fastest step."""
    found = []
    for _ in range(rounds):
        started = time.process_time()
        await step()
        found.append(time.process_time() - started)
    return min(found)


async def _tasks() -> None:
    """Run as many tasks as nodes, each of which awaits the one before."""

    async def node(sources: Sequence[asyncio.Task[None]]) -> None:
        for source in sources:
            await source

    async with asyncio.TaskGroup() as tg:
        sources: list[asyncio.Task[None]] = []
        for _ in range(_NODES):
            sources = [tg.create_task(node(sources))]


async def _chain(executor: str) -> float:
    """Return the seconds of a chain of scalar adds."""
    with af.Graph().as_default() as graph:
        x = y = af.placeholder(af.float32, [])
        for _ in range(_NODES):
            y = y + x
    async with af.Session(graph=graph, config=af.SessionConfig(executor=executor, optimizations=False)) as session:
        return await _least(lambda: session.run(y, {x: np.float32(1)}))


async def _awaited(executor: str) -> float:
    """Return the seconds of a chain of async nodes that never wait: dequeues from a queue that has elements."""
    with af.Graph().as_default() as graph:
        x = af.placeholder(af.float32, [_NODES])
        queue = af.FIFOQueue(_NODES, [af.float32], shapes=[[]])
        last: Any = queue.enqueue_many([x])
        for _ in range(_NODES):
            with af.control_dependencies([last]):
                last = queue.dequeue()
    values = np.ones(_NODES, np.float32)
    async with af.Session(graph=graph, config=af.SessionConfig(executor=executor, optimizations=False)) as session:
        return await _least(lambda: session.run(last, {x: values}))


async def _loop(raised: bool, iterations: int = 1000) -> float:
    """Return the seconds of an iteration of a counting loop."""
    with af.Graph().as_default() as graph:
        limit = af.placeholder(af.int32, [])
        count = af.while_loop(lambda i: i < limit, lambda i: [i + 1], [af.constant(0)])
    config = af.SessionConfig(inline_budget=60.0)
    with nullcontext() if raised else primitive_form():
        async with af.Session(graph=graph, config=config) as session:
            return await _least(lambda: session.run(count, {limit: iterations}), _ROUNDS // 10) / iterations


def tasks() -> str:
    """Time tasks in asyncio alone."""
    return _row("a task that awaits another one", asyncio.run(_least(_tasks)) / _NODES)


def chains() -> str:
    """Time a node of a chain as a task with a thread hop, and as a line of a strand."""
    plain, strand = (asyncio.run(_chain(executor)) / _NODES for executor in ("reference", "strands"))
    return _row("a scalar add, as a task and as a line of a strand", plain, strand)


def awaited() -> str:
    """Time an async node that need not wait, as a task and from the ready queue."""
    plain, unit = (asyncio.run(_awaited(executor)) / _NODES for executor in ("reference", "strands"))
    return _row("an async node that need not wait, as a task and off the queue of units", plain, unit)


def loops() -> str:
    """Time an iteration as tagged dataflow and after loop raising."""
    primitive, lifted = (asyncio.run(_loop(raised)) for raised in (False, True))
    return _row("an iteration of a loop that counts, as tagged dataflow and lifted", primitive, lifted)


def _row(name: str, *seconds: float) -> str:
    return f"| {name} | {' | '.join(f'{s * 1e6:.2f} µs' for s in seconds)} |"


EXECUTOR_ROWS = (tasks, chains, awaited, loops)


if __name__ == "__main__":
    print("\n".join(row() for row in EXECUTOR_ROWS))
