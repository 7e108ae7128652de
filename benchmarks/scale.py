"""`python -m benchmarks.scale [N …]`: the cost of a step for its client as the cluster grows, in a simulated cluster.

All servers and the client run in this process, over simulated connections. The result is processor time per simulated
process: each callback of the event loop is charged to the process that it belongs to. docs/scale.md explains the table.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import aioflow as af
from aioflow.kernels.registry import KERNELS
from aioflow.net.comm import CommOptions
from aioflow.net.tcp import TcpComm
from aioflow.testing import sim_net
from aioflow.testing.sim_cluster import SIMULATED, SimCluster
from aioflow.testing.sim_loop import SimLoop
from aioflow.testing.sim_net import SimNet, simulate
from aioflow.testing.sim_process import PROCESS

SIZES: Final = (1, 10, 100, 1000)
STEPS: Final = 7

SPENT: Final[Counter[str]] = Counter()  # nanoseconds of processor time, by host
MESSAGES: Final[Counter[str]] = Counter()  # sent or received, by host


class Metered(SimLoop):
    """An event loop that charges each callback to its process."""

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        return super().call_soon(_charged, callback, args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        return super().call_at(when, _charged, callback, args, context=context)


def _charged(callback: Any, args: Any) -> None:
    process = PROCESS.get()
    began = time.thread_time_ns()
    callback(*args)
    if process is not None:
        SPENT[process.host.name] += time.thread_time_ns() - began


def _count(name: str) -> Any:
    process = PROCESS.get()
    if process is not None:
        MESSAGES[process.host.name] += 1


@contextmanager
def _counted() -> Iterator[None]:
    send, post, arrived = TcpComm.send, TcpComm.post, TcpComm._arrived

    async def counted_send(comm: Any, message: Any, *, urgent: bool = False) -> None:
        _count("out")
        await send(comm, message, urgent=urgent)

    def counted_post(comm: Any, message: Any) -> bool:
        done = post(comm, message)
        if done:
            _count("out")
        return done

    def counted_arrived(comm: Any, message: Any) -> None:
        if message.kind.value > 2:  # neither a heartbeat nor a graceful close
            _count("in")
        arrived(comm, message)

    with (
        mock.patch.object(TcpComm, "send", counted_send),
        mock.patch.object(TcpComm, "post", counted_post),
        mock.patch.object(TcpComm, "_arrived", counted_arrived),
    ):
        yield


@dataclass
class Row:
    """Milliseconds of processor time, and the number of messages.

    Attributes:
        case: Name of the case.
        size: Number of workers.
        connect: Client, connecting to all tasks.
        prepare: Client, planning and registering the step.
        step: Client, per step.
        messages: Messages that the client sends and receives per step.
        worker: First worker, per step.
        ps: First ps, per step.
        idle: Client, per idle second.
    """

    case: str
    size: int
    connect: float
    prepare: float
    step: float
    messages: float
    worker: float
    ps: float
    idle: float

    def text(self) -> str:
        numbers = (self.connect, self.prepare, self.step, self.messages, self.worker, self.ps, self.idle)
        return f"| {self.case} | {self.size} | " + " | ".join(f"{number:,.2f}" for number in numbers) + " |"


def one_worker(size: int) -> tuple[Any, Any]:
    """Build between-graph replication: the client's step is on the ps and on one of the workers."""
    with af.device("/job:ps/task:0"):
        variable = af.Variable([0.0, 0.0], name="v")
    with af.device("/job:worker/task:0"):
        delta = variable * 2.0 + 1.0
    with af.device("/job:ps/task:0"):
        return variable.initializer, af.assign(variable, delta).op


def all_workers(size: int) -> tuple[Any, Any]:
    """Build in-graph replication: every worker has a part and sends its result to the ps."""
    with af.device("/job:ps/task:0"):
        variable = af.Variable([0.0, 0.0], name="v")
    deltas = []
    for number in range(size):
        with af.device(f"/job:worker/task:{number}"):
            deltas.append(variable * float(number))
    with af.device("/job:ps/task:0"):
        return variable.initializer, af.assign(variable, af.add_n(deltas)).op


def null_step(size: int) -> tuple[Any, Any]:
    """Build a step in which every worker has a part that computes and sends nothing."""
    nothing = []
    for number in range(size):
        with af.device(f"/job:worker/task:{number}"):
            nothing.append(af.no_op())
    return af.no_op(), af.group(*nothing)


CASES: Final[dict[str, Callable[[int], tuple[Any, Any]]]] = {
    "one worker's step": one_worker,
    "a step of all": all_workers,
    "a null step of all": null_step,
}


def _since(counter: Counter[str], before: Counter[str], host: str) -> int:
    return counter[host] - before[host]


async def measure(net: SimNet, case: str, size: int) -> Row:
    """Measure one case on a cluster of one ps and `size` workers."""
    options = CommOptions(heartbeat=0.45, misses=130, close_timeout=1.0, connections=4096)
    cluster = SimCluster(net, {"ps": 1, "worker": size}, options=options)
    await cluster.start()

    async def client() -> Row:
        with af.Graph().as_default():
            initializer, target = CASES[case](size)
            session = af.Session(cluster.target("ps0"), config=SIMULATED)
            marks = [SPENT["client"]]
            await session.__aenter__()
            marks.append(await _mark())
            await session.run(initializer)
            marks.append(await _mark())
            await session.run(target)
            marks.append(await _mark())
            costs = []
            for _ in range(STEPS):
                spent, sent = SPENT.copy(), MESSAGES.copy()
                await session.run(target)
                await _mark()
                hosts = ("client", "worker0", "ps0")
                costs.append(([_since(SPENT, spent, host) for host in hosts], _since(MESSAGES, sent, "client")))
            before = SPENT["client"]
            await asyncio.sleep(4.5)
            idle = (await _mark() - before) / 4.5
            await session.close()
        best = [min(cost[0][i] for cost in costs) / 1e6 for i in range(3)]
        connect, prepare = (marks[1] - marks[0]) / 1e6, (marks[3] - marks[2]) / 1e6
        return Row(case, size, connect, prepare, best[0], min(c[1] for c in costs), best[1], best[2], idle / 1e6)

    row: Row = await net.host("client").call(client)
    await cluster.stop()
    return row


async def _mark() -> int:
    """Return the processor time of the client in nanoseconds, including the current callback."""
    # A callback is charged when it ends, so end the current one.
    await asyncio.sleep(0)
    return SPENT["client"]


def main(sizes: Sequence[int]) -> None:
    """Print the table."""
    KERNELS.load()
    print(
        "| case | workers | connect, ms | prepare, ms | step, ms | messages | worker, ms | ps, ms | idle, ms a second |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    with _counted(), mock.patch.object(sim_net, "SimLoop", Metered):
        for case in CASES:
            for size in sizes:
                SPENT.clear()
                print(simulate(lambda net, c=case, n=size: measure(net, c, n), seed=1).text(), flush=True)  # type: ignore[misc]


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or SIZES)
