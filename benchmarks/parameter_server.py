"""`python -m benchmarks.parameter_server`: asynchronous training with 1 parameter server and 2 workers, vs. TensorFlow.

The program is between-graph replication as in the tutorials: `replica_device_setter`, a 784-128-10 network with
stochastic gradient descent, and a loop of `session.run` in each worker, independent of the other. Each task is a
separate process, six in all. The systems alternate within a round, and the processes of the other one wait meanwhile.

The results are the steps per second of both workers together, and the processor time per step of all three processes.
Data are random unless `--data` names the folder of MNIST's files; batches cost nothing in either case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import psutil

from benchmarks.tables import Cell, Printer, Quantity, Target, beside, seconds

SYSTEMS: Final = ("aioflow", "tensorflow")
WORKERS: Final = 2
HIDDEN: Final = 128
TARGET: Final = 1.5

Array = np.ndarray[Any, Any]
Step = Callable[[Array, Array], Any]


# ── the program of a task ────────────────────────────────────────────────────────────────────────────────────────────


def build(api: Any, task: int) -> tuple[Any, list[Any], list[Any]]:
    """Return the initializer, the fetches of a step and its feeds, in either system."""
    device = api.train.replica_device_setter(ps_tasks=1, worker_device=f"/job:worker/task:{task}")
    rng = np.random.default_rng(0)

    def dense(x: Any, inputs: int, units: int, name: str) -> Any:
        initial = (rng.standard_normal((inputs, units)) / inputs**0.5).astype(np.float32)
        weights = api.get_variable(f"{name}/weights", initializer=api.constant(initial), use_resource=True)
        bias = api.get_variable(f"{name}/bias", initializer=api.zeros([units]), use_resource=True)
        return api.nn.bias_add(api.matmul(x, weights), bias)

    with api.device(device):
        images, labels = api.placeholder(api.float32, [None, 784]), api.placeholder(api.int32, [None])
        logits = dense(api.nn.relu(dense(images, 784, HIDDEN, "hidden")), HIDDEN, 10, "logits")
        loss = api.reduce_mean(api.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        step = api.train.get_or_create_global_step()
        minimize = api.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step)
        return api.global_variables_initializer(), [minimize, loss], [images, labels]


def load(folder: Path | None, batch: int) -> Iterator[tuple[Array, Array]]:
    """Yield batches indefinitely."""
    if folder is None:
        rng = np.random.default_rng(1)
        images, labels = rng.random((5000, 784), np.float32), rng.integers(0, 10, 5000).astype(np.int32)
    else:
        from examples.mnist import load as load_mnist

        split = load_mnist(folder, "train")
        images, labels = split.images, split.labels
    while True:
        for start in range(0, len(images) - batch + 1, batch):
            yield images[start : start + batch], labels[start : start + batch]


async def work(step: Step, batches: Iterator[tuple[Array, Array]]) -> None:
    """Train for each number of seconds read from standard input, and print the steps and seconds as JSON."""
    for _ in range(20):
        await _finished(step(*next(batches)))
    print("ready", flush=True)
    while order := (await asyncio.to_thread(sys.stdin.readline)).strip():
        steps, started = 0, time.perf_counter()
        while time.perf_counter() < started + float(order):
            await _finished(step(*next(batches)))
            steps += 1
        print(json.dumps({"steps": steps, "seconds": time.perf_counter() - started}), flush=True)


async def _finished(result: Any) -> Any:
    return await result if isinstance(result, Awaitable) else result


async def aioflow_worker(cluster: dict[str, list[str]], task: int, batches: Iterator[tuple[Array, Array]]) -> None:
    """Run as a worker that trains with aioflow."""
    import aioflow as af

    async with af.train.Server(cluster, "worker", task) as server:
        initialize, fetches, feeds = build(af, task)
        async with af.Session(server.target) as session:
            await session.run(initialize)
            await work(session.make_callable(fetches, feeds), batches)


def tensorflow_worker(cluster: dict[str, list[str]], task: int, batches: Iterator[tuple[Array, Array]]) -> None:
    """Run as a worker that trains with TensorFlow."""
    import tensorflow.compat.v1 as tf

    tf.disable_eager_execution()
    server = tf.train.Server(cluster, job_name="worker", task_index=task)
    initialize, fetches, feeds = build(tf, task)
    with tf.Session(server.target) as session:
        session.run(initialize)
        asyncio.run(work(session.make_callable(fetches, feeds), batches))


def serve(system: str, cluster: dict[str, list[str]]) -> None:
    """Run TensorFlow's parameter server; aioflow's is `python -m aioflow.worker`."""
    import tensorflow.compat.v1 as tf

    server = tf.train.Server(cluster, job_name="ps", task_index=0)
    print("ready", flush=True)
    server.join()


# ── the clusters ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Cluster:
    """The three processes of one system."""

    server: subprocess.Popen[str]
    workers: list[subprocess.Popen[str]] = field(default_factory=list)

    def round(self, seconds: float) -> tuple[float, float]:
        """Return the steps per second of both workers, and the processor seconds per step of all processes."""
        busy = self._busy()
        for worker in self.workers:
            _pipe(worker.stdin).write(f"{seconds}\n")
            _pipe(worker.stdin).flush()
        answers = [json.loads(_pipe(worker.stdout).readline()) for worker in self.workers]
        steps = sum(answer["steps"] for answer in answers)
        return sum(a["steps"] / a["seconds"] for a in answers), (self._busy() - busy) / steps

    def _busy(self) -> float:
        times = [psutil.Process(process.pid).cpu_times() for process in (self.server, *self.workers)]
        return float(sum(t.user + t.system for t in times))


def _pipe(stream: Any) -> Any:
    if stream is None:
        raise RuntimeError("the process has no pipe")
    return stream


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process and kill it at the end of the block."""
    process = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def clusters(options: argparse.Namespace, systems: Sequence[str]) -> Iterator[dict[str, Cluster]]:
    """Start the processes of each system and warm them up."""
    from aioflow.net.cluster_spec import free_addresses

    with ExitStack() as stack:
        found = {}
        for system in systems:
            addresses = free_addresses(1 + WORKERS)
            spec = {"ps": addresses[:1], "worker": addresses[1:]}
            jobs = [text for job, listed in spec.items() for text in ("--cluster", f"{job}={','.join(listed)}")]
            own = ("-m", "benchmarks.parameter_server", "--system", system, "--spec", json.dumps(spec))
            data = ("--batch", str(options.batch), *(("--data", str(options.data)) if options.data else ()))
            ps = (
                ("-m", "aioflow.worker", *jobs, "--job", "ps", "--task", "0") if system == "aioflow" else (*own, "--ps")
            )
            tasks = [ps, *((*own, *data, "--task", str(task)) for task in range(WORKERS))]
            processes = [stack.enter_context(started(*arguments)) for arguments in tasks]
            for (
                process
            ) in processes:  # after all have been started: a session of TensorFlow waits for the whole cluster
                if not _pipe(process.stdout).readline():
                    raise RuntimeError(f"a task of {system} has not started")
            found[system] = Cluster(processes[0], processes[1:])
        yield found


def compare(options: argparse.Namespace) -> None:
    """Print the row of the table."""
    with clusters(options, SYSTEMS) as found:
        for cluster in found.values():
            cluster.round(options.seconds)
        rounds = [
            {name: cluster.round(options.seconds) for name, cluster in found.items()} for _ in range(options.rounds)
        ]
    rate, busy = ({s: median(r[s][i] for r in rounds) for s in SYSTEMS} for i in (0, 1))
    ratios = sorted(r["aioflow"][0] / r["tensorflow"][0] for r in rounds)
    ours, theirs = (Quantity(rate[s], "steps/s", f"processor time {seconds(busy[s])} each") for s in SYSTEMS)
    name = f"MNIST MLP, batch {options.batch}, 1 ps + {WORKERS} workers, asynchronous"
    row = beside(name, ours, theirs, Target(least=TARGET), ratio=median(ratios))
    cells: dict[str, Cell] = {
        "of processor time": Quantity(busy["aioflow"] / busy["tensorflow"]),
        "lowest and highest round": f"{ratios[0]:.2f}–{ratios[-1]:.2f}",
    }
    Printer(options).row(replace(row, cells={**row.cells, **cells}))


def main() -> int:
    """Run as a task of a cluster, or print the table. Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parameter_server", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each system's part of a round")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--data", type=Path, help="folder with MNIST's four idx.gz files")
    for internal, kind in (("--system", str), ("--spec", json.loads), ("--task", int)):
        parser.add_argument(internal, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--ps", action="store_true", help=argparse.SUPPRESS)
    Printer.add_options(parser)
    options = parser.parse_args()
    if options.system is None:
        compare(options)
    elif options.ps:
        serve(options.system, options.spec)
    elif options.system == "tensorflow":
        tensorflow_worker(options.spec, options.task, load(options.data, options.batch))
    else:
        from aioflow.worker import loop_factory

        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(aioflow_worker(options.spec, options.task, load(options.data, options.batch)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
