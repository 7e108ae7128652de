"""`python -m benchmarks.shared_memory`: 100 MB from one process to another, against TensorFlow's servers.

There are three ways:

- TCP
- shared memory with one copy: a variable, which may change afterwards and is therefore copied
- shared memory that the producer writes its result into: the negative of the variable

The last case includes the producer's computation in both systems, so the computation is also timed alone: the negative
is computed in the other process and not transferred. Rounds alternate. The results are medians, with quartiles in
parentheses, and the processor time of both processes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from statistics import median, quantiles
from typing import Any, Final, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import psutil

import aioflow as af
from aioflow.net.cluster_spec import free_addresses
from aioflow.net.comm import CommOptions
from aioflow.worker import loop_factory
from benchmarks.remote import Step, seconds_of, server_process
from benchmarks.tables import Printer, Quantity, Row, Target, seconds

_BYTES: Final = 100_000_000
_TENSORFLOW_SERVER: Final = """
import sys, tensorflow.compat.v1 as tf
server = tf.train.Server({"ps": [sys.argv[1]], "worker": [sys.argv[2]]}, job_name="ps", task_index=0)
print("serves", flush=True)
server.join()
"""
_STEPS: Final = 3  # per round
_ROWS: Final = ("a variable", "a result", "the result alone")
_FASTER: Final = "times as fast"


class _Side(NamedTuple):
    """The steps of one system, one per row, and its server process."""

    steps: Sequence[Step]
    server: psutil.Process


class _Times(NamedTuple):
    """The wall time and the processor time of each round, in milliseconds."""

    wall: list[float]
    busy: list[float]

    def quantity(self) -> Quantity:
        """Return a table cell."""
        low, _, high = quantiles(self.wall, n=4)
        return seconds(median(self.wall) / 1e3, f"{low:.1f} to {high:.1f}; processor time {median(self.busy):.0f} ms")


def _graph(api: Any) -> tuple[Any, Sequence[Any]]:
    with api.device("/job:ps/task:0"):
        large = api.Variable(np.ones(_BYTES // 4, np.float32), name="large", use_resource=True)
        value = large.read_value()
        result = api.negative(value)
    with api.device("/job:worker/task:0"):
        rows = api.identity(value).op, api.identity(result).op, result.op
    return api.global_variables_initializer(), rows


@asynccontextmanager
async def _aioflow(shares: bool) -> AsyncIterator[_Side]:
    ports = free_addresses(2)
    cluster = {"ps": ports[:1], "worker": ports[1:]}
    jobs = [text for job, addresses in cluster.items() for text in ("--cluster", f"{job}={addresses[0]}")]
    os.environ["AIOFLOW_SHARED_MEMORY"] = str(int(shares))
    with (
        server_process("-m", "aioflow.worker", *jobs, "--job", "ps", "--task", "0") as process,
        af.Graph().as_default() as graph,
    ):
        initialize, rows = _graph(af)
        options = CommOptions(shared_memory=shares)
        async with (
            af.train.Server(cluster, "worker", 0, options=options) as server,
            af.Session(server.target, graph=graph) as session,
        ):
            await session.run(initialize)
            yield _Side([session.make_callable(row) for row in rows], process)


@contextmanager
def _tensorflow() -> Iterator[_Side]:
    import tensorflow.compat.v1 as tf  # heavy, and only this function needs it

    tf.disable_eager_execution()
    ports = free_addresses(2)
    with server_process("-c", _TENSORFLOW_SERVER, *ports) as process:
        server = tf.train.Server({"ps": ports[:1], "worker": ports[1:]}, job_name="worker", task_index=0)
        with tf.Graph().as_default():
            initialize, rows = _graph(tf)
            with tf.Session(server.target) as session:
                session.run(initialize)
                yield _Side([_awaitable(session.make_callable(row)) for row in rows], process)


def _awaitable(run: Any) -> Step:
    async def call() -> Any:
        return run()

    return call


async def _measure(rounds: int, printer: Printer) -> None:
    async with AsyncExitStack() as stack:
        tcp = await stack.enter_async_context(_aioflow(shares=False))
        shm = await stack.enter_async_context(_aioflow(shares=True))
        sides = {"TensorFlow": stack.enter_context(_tensorflow()), "tcp": tcp, "shm": shm}
        times = {(name, row): _Times([], []) for name in sides for row in range(len(_ROWS))}
        for number in range(rounds + 2):
            for (name, row), found in times.items():
                wall, busy = await seconds_of(sides[name].steps[row], _STEPS, [sides[name].server])
                if number > 1:  # the first rounds allocate memory from the system
                    found.wall.append(wall * 1e3)
                    found.busy.append(busy * 1e3)
    _show(times, printer)


def _show(times: dict[tuple[str, int], _Times], printer: Printer) -> None:
    for what, side, row, target in (
        ("over TCP: a variable", "tcp", 0, 3),
        ("shared memory, one copy: a variable", "shm", 0, 5),
        ("shared memory, no copy: a result, computed and brought", "shm", 1, 8),
        ("the result alone, computed and not brought", "shm", 2, 0),
    ):
        theirs, ours = times["TensorFlow", row], times[side, row]
        times_as_fast = Quantity(
            median(theirs.wall) / median(ours.wall), note=f"processor {median(theirs.busy) / median(ours.busy):.1f}"
        )
        cells = {"TensorFlow": theirs.quantity(), "aioflow": ours.quantity(), _FASTER: times_as_fast}
        printer.row(Row(what, cells, (Target(least=target, column=_FASTER),) if target else ()))
    brought, alone, whole = times["TensorFlow", 1], times["TensorFlow", 2], median(times["shm", 1].wall)
    transfer = median(brought.wall) - median(alone.wall)
    printer.note(
        f"By the clock TensorFlow's transfer takes {transfer:.1f} ms without the computation, aioflow's whole step "
        f"{whole:.1f} ms with it: {transfer / whole:.1f} times as fast even so."
    )


def main() -> int:
    """Print the table. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared_memory", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    Printer.add_options(parser)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_measure(options.rounds, Printer(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
