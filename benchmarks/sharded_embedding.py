"""`python -m benchmarks.sharded_embedding`: rows of a table over two parameter servers, against TensorFlow's servers.

The table has 10 M rows of 64 float32 (2.56 GB), half on each server. A step feeds 1,024 row numbers and looks the rows
up, or looks them up and applies an SGD step to them. In both systems the servers are separate processes, and the client
runs in the worker's process.

The results are medians of alternating rounds, with the processor time of all processes in parentheses, which does not
depend on other load. `--profile` shows where the time of aioflow's client goes instead.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
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
from benchmarks.remote import busy_seconds, server_process
from benchmarks.tables import Printer, Quantity, Target, beside

_WIDTH: Final = 64
_LOOKED_UP: Final = 1024
_SERVERS: Final = 2
_CASES: Final = ("look 1,024 rows up", "look 1,024 rows up and update them by SGD")
_TARGET: Final = 0.5  # target ratio to TensorFlow's time
_TENSORFLOW_SERVER: Final = """
import sys, tensorflow.compat.v1 as tf
cluster = {"ps": sys.argv[2:-1], "worker": sys.argv[-1:]}
server = tf.train.Server(cluster, job_name="ps", task_index=int(sys.argv[1]))
print("serves", flush=True)
server.join()
"""

# A step that is called with row numbers.
Step = Callable[[Any], Awaitable[Any]]


class _Timed(NamedTuple):
    """The wall time and the processor time of a step, in seconds."""

    seconds: float
    busy: float


def _graph(api: Any, rows: int) -> tuple[Any, Any, Sequence[Any]]:
    """Build the initializer, the placeholder of row numbers, and the fetches of each case."""

    def filled(shape: Any, dtype: Any, partition_info: Any = None) -> Any:
        return api.fill(
            shape, api.constant(0.5, dtype)
        )  # zeros might be pages that the operating system has not allocated yet

    with api.device(api.train.replica_device_setter(_SERVERS)):
        table = api.get_variable(
            "table",
            [rows, _WIDTH],
            initializer=filled,
            partitioner=api.fixed_size_partitioner(_SERVERS),
            use_resource=True,
        )
        ids = api.placeholder(api.int64, [_LOOKED_UP])
        found = api.nn.embedding_lookup(table, ids, "div")
        loss = api.nn.l2_loss(found)
        train = api.train.GradientDescentOptimizer(0.01).minimize(loss)
    return api.global_variables_initializer(), ids, (found, (loss, train))


async def _timed(step: Step, batches: Sequence[Any], servers: Sequence[psutil.Process]) -> _Timed:
    busy, started = _processor_seconds(servers), time.perf_counter()
    for ids in batches:
        await step(ids)
    taken = time.perf_counter() - started
    return _Timed(taken / len(batches), (_processor_seconds(servers) - busy) / len(batches))


def _processor_seconds(servers: Sequence[psutil.Process]) -> float:
    times = [server.cpu_times() for server in servers]
    return time.process_time() + sum(float(t.user + t.system) for t in times)


async def _compare(
    ours: Sequence[Step],
    theirs: Sequence[Step],
    servers: tuple[Sequence[psutil.Process], Sequence[psutil.Process]],
    rows: int,
    rounds: int,
    steps: int,
    printer: Printer,
) -> None:
    rng = np.random.default_rng(0)
    for name, mine, other in zip(_CASES, ours, theirs, strict=True):
        times: list[tuple[_Timed, _Timed]] = []
        for _ in range(rounds + 1):
            batches = list(rng.integers(0, rows, (steps, _LOOKED_UP)))
            times.append((await _timed(mine, batches, servers[0]), await _timed(other, batches, servers[1])))
        a, b = (
            _Timed(*(median(column) for column in zip(*side, strict=True))) for side in zip(*times[1:], strict=True)
        )
        row = beside(name, busy_seconds(*a), busy_seconds(*b), Target(_TARGET))
        printer.row(replace(row, cells={**row.cells, "of processor time": Quantity(a.busy / b.busy)}))


async def _measure(rows: int, rounds: int, steps: int, profile: bool, printer: Printer) -> None:
    ports = free_addresses(2 * (_SERVERS + 1))
    mine, others = ports[: _SERVERS + 1], ports[_SERVERS + 1 :]
    cluster = {"ps": mine[:-1], "worker": mine[-1:]}
    jobs = ["--cluster", f"ps={','.join(mine[:-1])}", "--cluster", f"worker={mine[-1]}", "--job", "ps"]
    with ExitStack() as running:
        # TensorFlow first: filling its table blocks the event loop, and aioflow's heartbeats would be missed.
        theirs = None if profile else running.enter_context(_tensorflow(others, rows))
        graph = running.enter_context(af.Graph().as_default())
        servers = [
            running.enter_context(server_process("-m", "aioflow.worker", *jobs, "--task", str(i)))
            for i in range(_SERVERS)
        ]
        initialize, ids, fetches = _graph(af, rows)
        async with af.train.Server(cluster, "worker", 0) as server, af.Session(server.target, graph=graph) as session:
            await session.run(initialize)
            ours = [session.make_callable(fetch, [ids]) for fetch in fetches]
            if theirs is None:
                await _profile(ours, rows, steps, servers)
            else:
                await _compare(ours, theirs.steps, (servers, theirs.servers), rows, rounds, steps, printer)


class _Theirs(NamedTuple):
    steps: Sequence[Step]
    servers: Sequence[psutil.Process]


@contextmanager
def _tensorflow(ports: Sequence[str], rows: int) -> Iterator[_Theirs]:
    import tensorflow.compat.v1 as tf  # heavy, and only this function needs it

    tf.disable_eager_execution()
    with ExitStack() as running:
        servers = [
            running.enter_context(server_process("-c", _TENSORFLOW_SERVER, str(i), *ports)) for i in range(_SERVERS)
        ]
        server = tf.train.Server({"ps": ports[:-1], "worker": ports[-1:]}, job_name="worker", task_index=0)
        running.enter_context(tf.Graph().as_default())
        initialize, ids, fetches = _graph(tf, rows)
        session = running.enter_context(tf.Session(server.target))
        session.run(initialize)

        def step(fetch: Any) -> Step:
            run = session.make_callable(fetch, [ids])

            async def call(numbers: Any) -> Any:
                return run(numbers)

            return call

        yield _Theirs([step(fetch) for fetch in fetches], servers)


async def _profile(steps: Sequence[Step], rows: int, count: int, servers: Sequence[psutil.Process]) -> None:
    batches = list(np.random.default_rng(0).integers(0, rows, (count, _LOOKED_UP)))
    for name, step in zip(_CASES, steps, strict=True):
        await _timed(step, batches, servers)
        plain = await _timed(step, batches, servers)
        print(f"{name}: {plain.seconds * 1e6:.0f} us, {plain.busy * 1e6:.0f} us of the processor")
        profiler = cProfile.Profile()
        profiler.enable()
        await _timed(step, batches, servers)
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> int:
    """Print the table. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded_embedding", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=200, help="of a round")
    parser.add_argument("--profile", action="store_true")
    Printer.add_options(parser)
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_measure(given.rows, given.rounds, given.steps, given.profile, Printer(given)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
