"""`python -m benchmarks.remote`: steps over several processes, against TensorFlow's servers at the same time.

In both systems the client is the chief, and a parameter server and a worker are separate processes. The results are
medians of alternating rounds, with the processor time of all processes in parentheses, which does not depend on other
load. `--profile` shows where aioflow's time goes instead.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import median
from typing import Any, Final, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import psutil

import aioflow as af
from aioflow.net.cluster_spec import free_addresses
from aioflow.worker import loop_factory
from benchmarks.tables import Printer, Quantity, Target, beside, seconds

_BYTES: Final = 100_000_000
_TENSORFLOW_SERVER: Final = """
import sys, tensorflow.compat.v1 as tf
cluster = {"ps": [sys.argv[2]], "worker": [sys.argv[3]], "chief": [sys.argv[4]]}
server = tf.train.Server(cluster, job_name=sys.argv[1], task_index=0)
print("serves", flush=True)
server.join()
"""

Step = Callable[[], Awaitable[Any]]


class _Case(NamedTuple):
    """A case: the number of steps per round, and the target ratio to TensorFlow's time."""

    steps: int
    target: float


_CASES: Final[Mapping[str, _Case]] = {
    "a step on one task, asked from its own process": _Case(200, 0.06),
    "a step on one task, asked from another process": _Case(200, 0.25),
    "a scalar of another process, read by a step of the client's own task": _Case(200, 0.25),
    "a scalar of another process, read by a step of a third process": _Case(200, 0.3),
    "100 MB from another process": _Case(3, 1 / 3),
}


@contextmanager
def server_process(*arguments: str) -> Iterator[psutil.Process]:
    """Start a Python process that prints a line when it serves; kill it at the end of the block."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE)
    try:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError("the server has not started")
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.communicate()


def _graph(api: Any) -> tuple[Any, Sequence[Any]]:
    """Build the initializer and the fetches of each case."""
    with api.device("/job:ps/task:0"):
        scalar = api.Variable(1.0, name="scalar", use_resource=True)
        large = api.Variable(np.ones(_BYTES // 4, np.float32), name="large", use_resource=True)
        read = scalar.read_value()
    with api.device("/job:worker/task:0"):
        third = api.add(scalar, 1.0).op
    with api.device("/job:chief/task:0"):
        own = api.Variable(1.0, name="own", use_resource=True).read_value()
        add = api.add(scalar, 1.0)
        bring = api.identity(large.read_value()).op
    return api.global_variables_initializer(), (own, read, add, third, bring)


def _processor_seconds(servers: Sequence[psutil.Process]) -> float:
    times = [server.cpu_times() for server in servers]
    return time.process_time() + sum(float(spent.user + spent.system) for spent in times)


async def seconds_of(step: Step, steps: int, servers: Sequence[psutil.Process]) -> tuple[float, float]:
    """Return the wall time and the processor time of a step, in seconds."""
    busy, started = _processor_seconds(servers), time.perf_counter()
    for _ in range(steps):
        await step()
    return (time.perf_counter() - started) / steps, (_processor_seconds(servers) - busy) / steps


async def _compare(
    ours: Sequence[Step],
    theirs: Sequence[Step],
    servers: Sequence[Sequence[psutil.Process]],
    rounds: int,
    printer: Printer,
) -> None:
    for (name, case), mine, other in zip(_CASES.items(), ours, theirs, strict=True):
        times = [
            (*await seconds_of(mine, case.steps, servers[0]), *await seconds_of(other, case.steps, servers[1]))
            for _ in range(rounds + 1)
        ]
        a, a_busy, b, b_busy = (median(column) for column in zip(*times[1:], strict=True))
        row = beside(name, busy_seconds(a, a_busy), busy_seconds(b, b_busy), Target(case.target))
        printer.row(replace(row, cells={**row.cells, "of processor time": Quantity(a_busy / b_busy)}))


def busy_seconds(wall: float, busy: float) -> Quantity:
    """Return a time by the clock, with the processor time of all processes as a note."""
    return seconds(wall, f"processor time {seconds(busy)}")


async def _measure(rounds: int, profile: bool, printer: Printer) -> None:
    ports = free_addresses(6)
    cluster = dict(zip(("ps", "worker", "chief"), ([port] for port in ports), strict=False))
    jobs = [text for job, addresses in cluster.items() for text in ("--cluster", f"{job}={addresses[0]}")]
    with ExitStack() as stack, af.Graph().as_default() as graph:
        mine = [
            stack.enter_context(server_process("-m", "aioflow.worker", *jobs, "--job", job, "--task", "0"))
            for job in ("ps", "worker")
        ]
        initialize, fetches = _graph(af)
        async with af.train.Server(cluster, "chief", 0) as server, af.Session(server.target, graph=graph) as session:
            await session.run(initialize)
            ours = [session.make_callable(fetch) for fetch in fetches]
            if profile:
                await _profile(ours, mine)
                return
            other = [
                stack.enter_context(server_process("-c", _TENSORFLOW_SERVER, job, *ports[3:]))
                for job in ("ps", "worker")
            ]
            with _tensorflow(ports[3:]) as theirs:
                await _compare(ours, theirs, (mine, other), rounds, printer)


@contextmanager
def _tensorflow(ports: Sequence[str]) -> Iterator[list[Step]]:
    import tensorflow.compat.v1 as tf  # heavy, and only this function needs it

    tf.disable_eager_execution()
    cluster = {"ps": ports[:1], "worker": ports[1:2], "chief": ports[2:]}
    server = tf.train.Server(cluster, job_name="chief", task_index=0)
    with tf.Graph().as_default():
        initialize, fetches = _graph(tf)
        with tf.Session(server.target) as session:
            session.run(initialize)

            def step(fetch: Any) -> Step:
                run = session.make_callable(fetch)

                async def call() -> Any:
                    return run()

                return call

            yield [step(fetch) for fetch in fetches]


async def _profile(steps: Sequence[Step], servers: Sequence[psutil.Process]) -> None:
    for (name, case), step in zip(_CASES.items(), steps, strict=True):
        await seconds_of(step, case.steps, servers)
        profiler = cProfile.Profile()
        profiler.enable()
        seconds, _ = await seconds_of(step, case.steps, servers)
        profiler.disable()
        print(f"{name}: {seconds * 1e6:.0f} us")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> int:
    """Print the table. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.remote", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--profile", action="store_true")
    Printer.add_options(parser)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_measure(options.rounds, options.profile, Printer(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
