"""`python -m benchmarks.null_steps [N …]`: a step in which N workers do nothing, against TensorFlow's servers.

Each worker is a separate process, and the client is the chief of the cluster. The benchmark measures the cost of an
additional worker for the client, in medians of alternating rounds. `python -m benchmarks.scale` runs the same step on
100 and more simulated workers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from statistics import median
from typing import Any, Final

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import psutil

import aioflow as af
from aioflow.net.cluster_spec import free_addresses
from aioflow.worker import loop_factory
from benchmarks.remote import server_process
from benchmarks.tables import Printer, Row, Target, beside, seconds

SIZES: Final = (2, 4, 8, 16)
_STEPS: Final = 50
_SHARE: Final = "client, each worker"  # column of the client's processor time
_TENSORFLOW_SERVER: Final = """
import sys, tensorflow.compat.v1 as tf
number, chief, *workers = sys.argv[1:]
server = tf.train.Server({"chief": [chief], "worker": workers}, job_name="worker", task_index=int(number))
print("serves", flush=True)
server.join()
"""

Step = Callable[[], Awaitable[Any]]


def _null_step(api: Any, size: int) -> Any:
    parts = []
    for number in range(size):
        with api.device(f"/job:worker/task:{number}"):
            parts.append(api.no_op())
    return api.group(*parts)


async def _round(step: Step, servers: Sequence[psutil.Process]) -> tuple[float, float, float]:
    """Return the microseconds of a step: wall time, processor time of the client, and of the workers."""
    busy = sum(sum(server.cpu_times()[:2]) for server in servers)
    started, began = time.perf_counter(), time.process_time()
    for _ in range(_STEPS):
        await step()
    passed, spent = time.perf_counter() - started, time.process_time() - began
    served = sum(sum(server.cpu_times()[:2]) for server in servers) - busy
    return passed / _STEPS * 1e6, spent / _STEPS * 1e6, served / _STEPS * 1e6


@contextmanager
def _tensorflow(chief: str, workers: Sequence[str]) -> Iterator[Step]:
    import tensorflow.compat.v1 as tf  # heavy, and only this function needs it

    tf.disable_eager_execution()
    server = tf.train.Server({"chief": [chief], "worker": list(workers)}, job_name="chief", task_index=0)
    with tf.Graph().as_default():
        target = _null_step(tf, len(workers))
        config = tf.ConfigProto()
        config.graph_options.rewrite_options.disable_meta_optimizer = True  # it would remove the no-ops
        with tf.Session(server.target, config=config) as session:
            run = session.make_callable(target)

            async def step() -> Any:
                return run()

            yield step


async def _measure(size: int, rounds: int) -> Row:
    ports = free_addresses(2 * size + 2)
    (chief, *workers), (their_chief, *their_workers) = ports[: size + 1], ports[size + 1 :]
    cluster = {"chief": [chief], "worker": workers}
    jobs = ["--cluster", f"chief={chief}", "--cluster", f"worker={','.join(workers)}", "--job", "worker"]
    with ExitStack() as stack, af.Graph().as_default() as graph:

        def serve(*arguments: str) -> psutil.Process:
            return stack.enter_context(server_process(*arguments))

        mine = [serve("-m", "aioflow.worker", *jobs, "--task", str(i)) for i in range(size)]
        target = _null_step(af, size)
        async with af.train.Server(cluster, "chief", 0) as server, af.Session(server.target, graph=graph) as session:
            others = [serve("-c", _TENSORFLOW_SERVER, str(i), their_chief, *their_workers) for i in range(size)]
            ours = session.make_callable(target)
            with _tensorflow(their_chief, their_workers) as theirs:
                times = [(*await _round(ours, mine), *await _round(theirs, others)) for _ in range(rounds + 1)]
    a, a_client, a_workers, b, b_client, b_workers = (median(column) for column in zip(*times[1:], strict=True))
    here, there = (
        seconds(each[0] / 1e6, f"processor time of the client {each[1]:.0f} µs, of the workers {each[2]:.0f} µs")
        for each in ((a, a_client, a_workers), (b, b_client, b_workers))
    )
    row = beside(f"{size} workers", here, there, Target(100e-6, column=_SHARE))
    return replace(row, cells={**row.cells, _SHARE: seconds(a_client / size / 1e6)})


def main() -> int:
    """Print the table. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.null_steps", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int)
    parser.add_argument("--rounds", type=int, default=9)
    Printer.add_options(parser)
    options = parser.parse_args()
    printer = Printer(options)
    for size in options.sizes or SIZES:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            printer.row(runner.run(_measure(size, options.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
