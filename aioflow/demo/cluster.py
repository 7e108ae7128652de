"""`python -m aioflow.worker demo`: a parameter server and several workers, each a process, train one model together.

Asynchronous data parallelism, between graphs (OSDI'16, 4.4). Each worker builds its own graph, with its variables on
the parameter server, and runs steps at its own pace. Half-way one worker is killed and started again. For comparison, a
single process trains on as many samples.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import aioflow as af
from aioflow.cli.arguments import Parser, up_to
from aioflow.cli.cluster import parse_cluster
from aioflow.cli.program import StoppedBySignal, run
from aioflow.demo.cluster_worker import BATCH, Result, evaluate, train_alone, train_as_worker
from aioflow.net.cluster_spec import ClusterSpec, free_addresses

_WORKERS: Final = 3
_MOST_WORKERS: Final = 64
_MOST_STEPS: Final = 1_000_000  # the server keeps a counter for each
_SECONDS_TO_END: Final = 5.0
# `python -m aioflow.worker`, except that Ctrl-C is ignored during the imports: a terminal sends it to all processes,
# and the demo handles it.
_AS_MODULE: Final = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "runpy.run_module('aioflow.worker', run_name='__main__', alter_sys=True)"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo, or one worker of it. Return the exit status."""
    parser = Parser(prog="python -m aioflow.worker demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=up_to(_MOST_STEPS), default=500, help="of each worker (default %(default)s)")
    parser.add_argument("--workers", type=up_to(_MOST_WORKERS), default=_WORKERS, help="how many (default %(default)s)")
    parser.add_argument("--cluster", action="append", help=argparse.SUPPRESS)  # for a worker that the demo has started
    parser.add_argument("--task", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.cluster is None:
        return run(run_demo(options.steps, options.workers))
    with suppress(StoppedBySignal):  # the demo that has started the worker reports it
        run(train_as_worker(ClusterSpec(parse_cluster(options.cluster)), options.task, options.steps))
    return 0


async def run_demo(steps: int, workers: int = _WORKERS) -> int:
    """Start the processes, print their reports, kill one, and compare. Return the exit status."""
    ports = free_addresses(1 + workers)
    jobs = {"ps": ports[:1], "worker": ports[1:]}
    cluster = [text for job, addresses in jobs.items() for text in ("--cluster", f"{job}={','.join(addresses)}")]
    # The demo reports the signals that end its processes.
    async with _process([*cluster, "--job", "ps", "--task", "0", "--log-level", "warning"]) as server:
        print(await _line(server), flush=True)
        started = perf_counter()
        # Never worker 0, the chief, whose death would end the training for all.
        runs = [_Worker(cluster, task, steps, is_killed=0 < task == workers - 1) for task in range(workers)]
        async with asyncio.TaskGroup() as tg:
            for worker in runs:
                tg.create_task(worker.run())
        if any(worker.status for worker in runs):
            print("a worker has failed", file=sys.stderr)
            return 1
        seconds = perf_counter() - started
        result = await evaluate(f"aioflow://{jobs['ps'][0]}", af.train.ClusterSpec(jobs), steps)
    alone = await train_alone(workers * steps)
    _print_outcome(result, alone, workers, steps, seconds)
    return 0


def _print_outcome(result: Result, alone: float, workers: int, steps: int, seconds: float) -> None:
    together = workers * steps
    named = "1 worker" if workers == 1 else f"{workers} workers"
    print(f"{named}, asynchronously  {result.accuracy:.2%} of the test digits right")
    print(f"one process                {alone:.2%}, with as many samples ({together * BATCH})")
    print(f"speed                      {together / seconds:.0f} steps a second, {seconds:.1f} s with all starts")
    print(f"lost                       {_counted(result.lost, together)}")
    print(f"applied twice              {_counted(result.repeated, together)}")


def _counted(number: int, of: int) -> str:
    return f"{number} of {of} batches" if number else f"nothing of {of} batches"


@dataclass(slots=True)
class _Worker:
    """A worker's process, and its successor if it is killed.

    Attributes:
        cluster: Arguments that name the tasks of the cluster.
        task: Number of the worker.
        steps: Number of steps.
        is_killed: Whether the worker is still to be killed half-way.
        status: Exit status of the last process.
    """

    cluster: Sequence[str]
    task: int
    steps: int
    is_killed: bool
    status: int = 0

    async def run(self) -> None:
        """Start the process and print its reports; kill it half-way if `is_killed` is set."""
        while True:
            arguments = ["demo", *self.cluster, "--task", str(self.task), "--steps", str(self.steps)]
            async with _process(arguments) as process:
                # An empty line is the end of the output.
                while line := await _line(process):
                    print(line, flush=True)
                    if self.is_killed and self._is_half_way(line):
                        process.kill()
                        print(f"worker {self.task}: is killed, and started again", flush=True)
                        break
                else:
                    self.status = await process.wait()
                    return
            self.is_killed = False

    def _is_half_way(self, line: str) -> bool:
        _, found, rest = line.partition(": step ")
        return bool(found) and 2 * int(rest.split()[0]) >= self.steps


@asynccontextmanager
async def _process(arguments: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a process that ends with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _AS_MODULE, *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
        try:
            async with asyncio.timeout(_SECONDS_TO_END):
                # Reads the rest of the output: a full pipe would keep the process from ending.
                await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _line(process: asyncio.subprocess.Process) -> str:
    return (await process.stdout.readline()).decode().rstrip() if process.stdout is not None else ""
