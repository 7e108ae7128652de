"""`python -m aioflow.worker demo`: a parameter server and two workers, each a process, train one model together.

Asynchronous data parallelism, between graphs (OSDI'16, 4.4): each worker builds the graph for itself, with its
variables on the parameter server, and takes steps at its own pace. Beside it, one process takes as many samples.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import numpy as np

import aioflow as af
from aioflow.cli.arguments import Parser, positive
from aioflow.cli.cluster import parse_cluster
from aioflow.cli.program import Stopped, run
from aioflow.demo.digits import Digits, load_digits
from aioflow.demo.model import PIXELS
from aioflow.net.cluster_spec import free_addresses

__all__ = ["main", "run_demo"]

_WORKERS: Final = 2
_BATCH: Final = 64
_HIDDEN: Final = 96
_CLASSES: Final = 10
_REPORTS: Final = 4  # lines of progress per worker
_SECONDS_TO_END: Final = 5.0
# `python -m aioflow.worker`, but a Ctrl-C while it imports, which all processes of a terminal get, is left to the demo.
_AS_MODULE: Final = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "runpy.run_module('aioflow.worker', run_name='__main__', alter_sys=True)"
)


@dataclass(frozen=True, slots=True)
class _Model:
    graph: af.Graph
    images: af.Tensor
    labels: af.Tensor
    loss: af.Tensor
    accuracy: af.Tensor
    train: af.Operation
    initialize: af.Operation
    uninitialized: af.Tensor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo, or one worker of it; returns the exit status."""
    parser = Parser(prog="python -m aioflow.worker demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=positive, default=500, help="of each worker (default %(default)s)")
    parser.add_argument("--cluster", action="append", help=argparse.SUPPRESS)  # of a worker that the demo has started
    parser.add_argument("--task", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.cluster is None:
        return run(run_demo(options.steps))
    with suppress(Stopped):  # the demo that has started it says so
        run(_train_as_worker(parse_cluster(options.cluster), options.task, options.steps))
    return 0


# ── the whole ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def run_demo(steps: int) -> int:
    """Start the processes, show what they report, and compare; returns the exit status."""
    ports = free_addresses(1 + _WORKERS)
    jobs = {"ps": ports[:1], "worker": ports[1:]}
    cluster = [text for job, addresses in jobs.items() for text in ("--cluster", f"{job}={','.join(addresses)}")]
    started = perf_counter()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(_process([*cluster, "--job", "ps", "--task", "0"]))
        print(await _line(server), flush=True)
        workers = [
            await stack.enter_async_context(_process(["demo", *cluster, "--task", str(i), "--steps", str(steps)]))
            for i in range(_WORKERS)
        ]
        async with asyncio.TaskGroup() as tg:
            for worker in workers:
                tg.create_task(_show(worker))
        if any([await worker.wait() for worker in workers]):
            print("a worker has failed", file=sys.stderr)
            return 1
        together = await _evaluate(f"aioflow://{jobs['ps'][0]}", af.train.ClusterSpec(jobs))
        seconds = perf_counter() - started
    alone = await _train_alone(_WORKERS * steps)
    samples = _WORKERS * steps * _BATCH
    print(f"{_WORKERS} workers, asynchronously  {together:.2%} of the test digits right, in {seconds:.1f} s")
    print(f"one process                {alone:.2%}, with as many samples ({samples})")
    return 0


@asynccontextmanager
async def _process(arguments: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that ends with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _AS_MODULE, *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(_SECONDS_TO_END):
                await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _line(process: asyncio.subprocess.Process) -> str:
    return (await process.stdout.readline()).decode().rstrip() if process.stdout is not None else ""


async def _show(process: asyncio.subprocess.Process) -> None:
    while line := await _line(process):
        print(line, flush=True)


# ── the model ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _build(device: Any = None) -> _Model:
    with af.Graph().as_default() as graph, af.device(device) if device is not None else nullcontext():
        af.set_random_seed(1)
        images = af.placeholder(af.float32, [None, PIXELS], name="images")
        labels = af.placeholder(af.int32, [None], name="labels")
        hidden = af.nn.relu(_dense(images, _HIDDEN, "hidden"))
        logits = _dense(hidden, _CLASSES, "logits")
        loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), name="loss")
        right = af.equal(af.cast(af.argmax(logits, 1), af.int32), labels)
        accuracy = af.reduce_mean(af.cast(right, af.float32), name="accuracy")
        train = af.train.AdamOptimizer(2e-3).minimize(loss)
        initialize = af.global_variables_initializer()
        missing = af.size(af.report_uninitialized_variables())
    return _Model(graph, images, labels, loss, accuracy, train, initialize, missing)


def _dense(x: af.Tensor, units: int, name: str) -> af.Tensor:
    with af.variable_scope(name):
        weights = af.get_variable("weights", [x.shape.as_list()[1], units])
        bias = af.get_variable("bias", [units], initializer=af.zeros_initializer())
        return af.nn.bias_add(af.matmul(x, weights), bias)


def _batches(digits: Digits, seed: int) -> Iterator[tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(digits))
        for start in range(0, len(order) - _BATCH + 1, _BATCH):
            index = order[start : start + _BATCH]
            yield digits.images[index], digits.labels[index]


# ── one process ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def _train_as_worker(cluster: af.train.ClusterSpec, task: int, steps: int) -> None:
    """What the process of one worker does."""
    model = _build(af.train.replica_device_setter(worker_device=f"/job:worker/task:{task}", cluster=cluster))
    async with (
        af.train.Server(cluster, "worker", task) as server,
        af.Session(server.target, graph=model.graph) as session,
    ):
        if task == 0:
            await session.run(model.initialize)
        while await session.run(model.uninitialized):  # the chief sees to it  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await _train(session, model, steps, seed=task, label=f"worker {task}")


async def _train(session: af.Session, model: _Model, steps: int, seed: int, label: str = "") -> None:
    digits, _ = load_digits().split(seed=0)
    every = max(1, steps // _REPORTS)
    for number, (images, labels) in zip(range(1, steps + 1), _batches(digits, seed), strict=False):
        _, loss = await session.run([model.train, model.loss], {model.images: images, model.labels: labels})
        if label and number % every == 0:
            print(f"{label}: step {number} of {steps}, loss {loss:.4f}", flush=True)


async def _accuracy(session: af.Session, model: _Model) -> float:
    _, digits = load_digits().split(seed=0)
    return float(await session.run(model.accuracy, {model.images: digits.images, model.labels: digits.labels}))


async def _evaluate(target: str, cluster: af.train.ClusterSpec) -> float:
    """The accuracy of the variables on the parameter server, which does this by itself."""
    model = _build(af.train.replica_device_setter(worker_device="/job:ps", cluster=cluster))
    async with af.Session(target, graph=model.graph) as session:
        return await _accuracy(session, model)


async def _train_alone(steps: int) -> float:
    model = _build()
    async with af.Session(graph=model.graph) as session:
        await session.run(model.initialize)
        await _train(session, model, steps, seed=0)
        return await _accuracy(session, model)
