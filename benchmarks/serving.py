"""`python -m benchmarks.serving`: single rows from many concurrent coroutines, to an in-process multi-layer perceptron.

All engines have the same weights and the same callers on one event loop, and alternate; the result of each is the
median of its rounds. The lag is that of a task that sleeps for a millisecond meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
import uvloop

import aioflow as af
from benchmarks.lag import lag_samples
from benchmarks.tables import Cell, Printer, Quantity, Row, Target

__all__ = ["ENGINES", "Load", "Weights", "load", "make_weights", "rows_of", "table"]

SIZES: Final = (784, 512, 512, 10)
CALLERS: Final = 64
_SHARE: Final = "of onnxruntime's best"
_LAG: Final = "loop lag p99"
_TARGETS: Final = (Target(least=2.5, column=_SHARE), Target(1e-3, column=_LAG))

Weights = list[tuple[Any, Any]]
Predict = Callable[[Any], Awaitable[Any]]


def make_weights() -> Weights:
    """Return random matrices and zero biases."""
    random = np.random.default_rng(0)
    return [
        (random.normal(0, 0.05, (rows, columns)).astype(np.float32), np.zeros(columns, np.float32))
        for rows, columns in pairwise(SIZES)
    ]


# -- engines ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def tensorflow(weights: Weights) -> AsyncIterator[Predict]:
    """Yield a TensorFlow session, called in a thread."""
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default() as graph:
        x = hidden = tf.placeholder(tf.float32, [None, SIZES[0]])
        for matrix, bias in weights[:-1]:
            hidden = tf.nn.relu(tf.matmul(hidden, tf.constant(matrix)) + bias)
        y = tf.nn.softmax(tf.matmul(hidden, tf.constant(weights[-1][0])) + weights[-1][1])
    with tf.Session(graph=graph) as session:
        call = session.make_callable(y, [x])

        async def predict(rows: Any) -> Any:
            return await asyncio.to_thread(call, rows)

        yield predict


def _onnx_session(weights: Weights, folder: str) -> Any:
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    nodes, initializers, name = [], [], "x"
    for i, (matrix, bias) in enumerate(weights):
        last = i == len(weights) - 1
        initializers += [numpy_helper.from_array(matrix, f"w{i}"), numpy_helper.from_array(bias, f"b{i}")]
        nodes += [
            helper.make_node("Gemm", [name, f"w{i}", f"b{i}"], [f"g{i}"]),
            helper.make_node("Softmax" if last else "Relu", [f"g{i}"], ["y" if last else f"a{i}"]),
        ]
        name = f"a{i}"
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, size])
        for name, size in (("x", SIZES[0]), ("y", SIZES[-1]))
    )
    graph = helper.make_graph(nodes, "mlp", [x], [y], initializers)
    path = Path(folder) / "mlp.onnx"
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@asynccontextmanager
async def onnxruntime_blocking(weights: Weights) -> AsyncIterator[Predict]:
    """Yield an onnxruntime session whose calls block the event loop."""
    with tempfile.TemporaryDirectory() as folder:
        session = _onnx_session(weights, folder)

    async def predict(rows: Any) -> Any:
        (found,) = session.run(None, {"x": rows})
        await asyncio.sleep(0)  # otherwise no other caller would ever run
        return found

    yield predict


@asynccontextmanager
async def onnxruntime_async(weights: Weights) -> AsyncIterator[Predict]:
    """Yield onnxruntime's `run_async`, which calls back in its own thread."""
    with tempfile.TemporaryDirectory() as folder:
        session = _onnx_session(weights, folder)
    loop = asyncio.get_running_loop()

    def done(results: Any, future: Any, error: str) -> None:
        loop.call_soon_threadsafe(_resolve, future, results, error)

    async def predict(rows: Any) -> Any:
        future = loop.create_future()
        session.run_async(None, {"x": rows}, done, future)
        (found,) = await future
        return found

    yield predict


def _resolve(future: Any, results: Any, error: str) -> None:
    if not future.done():
        if error:
            future.set_exception(RuntimeError(error))
        else:
            future.set_result(results)


@asynccontextmanager
async def numpy_batches(weights: Weights) -> AsyncIterator[Predict]:
    """Yield batches in NumPy at minimal cost: no limits, errors or cancellation, and the event loop is blocked."""
    waiting: list[tuple[Any, asyncio.Future[Any]]] = []
    loop = asyncio.get_running_loop()

    def compute() -> None:
        taken, waiting[:] = waiting[:], []
        hidden = np.concatenate([rows for rows, _ in taken])
        for matrix, bias in weights[:-1]:
            hidden = np.maximum(hidden @ matrix + bias, 0)
        scores = np.exp(hidden @ weights[-1][0] + weights[-1][1])
        scores /= scores.sum(1, keepdims=True)
        for i, (_, future) in enumerate(taken):
            future.set_result(scores[i : i + 1])

    async def predict(rows: Any) -> Any:
        if not waiting:
            loop.call_soon(compute)
        future = loop.create_future()
        waiting.append((rows, future))
        return await future

    yield predict


@asynccontextmanager
async def batched(weights: Weights, delegate: str | None = None) -> AsyncIterator[Predict]:
    """Yield `session.batched` with the default settings, or with a delegate."""
    with af.Graph().as_default() as graph:
        x = hidden = af.placeholder(af.float32, [None, SIZES[0]])
        for matrix, bias in weights[:-1]:
            hidden = af.nn.relu(af.matmul(hidden, af.Variable(matrix)) + af.Variable(bias))
        y = af.nn.softmax(af.matmul(hidden, af.Variable(weights[-1][0])) + af.Variable(weights[-1][1]))
        ready = af.global_variables_initializer()
    async with af.Session(graph=graph, config=af.SessionConfig(delegate=delegate)) as session:
        await session.run(ready)
        predict = session.batched(y, [x], max_batch_size=CALLERS)
        await session.warmup(predict)
        yield predict


ENGINES: Final = {
    "TensorFlow in `to_thread`": tensorflow,
    "onnxruntime, blocking the loop": onnxruntime_blocking,
    "onnxruntime `run_async`": onnxruntime_async,
    "NumPy in batches, blocking the loop": numpy_batches,
    "`session.batched`": batched,
    "`session.batched` with onnxruntime": partial(batched, delegate="onnxruntime"),
}
_OURS: Final = ("`session.batched`", "`session.batched` with onnxruntime")
_THEIRS: Final = ("onnxruntime, blocking the loop", "onnxruntime `run_async`")


# -- load -------------------------------------------------------------------------------------------------------------


class Load(NamedTuple):
    """The result of one round.

    Attributes:
        rate: Requests per second.
        p99: 99th percentile of the latency, in seconds.
        lag: 99th percentile of the event loop's lag, in seconds.
        cpu: Processor time of the process per request, in seconds.
    """

    rate: float
    p99: float
    lag: float
    cpu: float


async def load(predict: Predict, rows: Sequence[Any], expected: Any, seconds: float) -> Load:
    """Run callers that send the next request after each response. The last response of each is checked."""
    latencies: list[float] = []

    async def caller(i: int, until: float) -> None:
        mine, wanted = rows[i], expected[i : i + 1]
        while (began := time.perf_counter()) < until:
            found = await predict(mine)
            latencies.append(time.perf_counter() - began)
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)

    began, used = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        sampling = group.create_task(lag_samples(seconds))
        for i in range(len(rows)):
            group.create_task(caller(i, began + seconds))
    taken, used = time.perf_counter() - began, time.process_time() - used
    lag = float(np.percentile(sampling.result(), 99))
    return Load(len(latencies) / taken, float(np.percentile(latencies, 99)), lag, used / len(latencies))


async def table(names: Sequence[str], rounds: int, seconds: float) -> dict[str, Load]:
    """Return the median of each engine."""
    weights = make_weights()
    rows = [np.random.default_rng(i).random((1, SIZES[0]), np.float32) for i in range(CALLERS)]
    found: dict[str, list[Load]] = {name: [] for name in names}
    async with AsyncExitStack() as stack:
        engines = {name: await stack.enter_async_context(ENGINES[name](weights)) for name in names}
        expected = await next(iter(engines.values()))(np.concatenate(rows))
        for _ in range(rounds):
            for name, predict in engines.items():
                found[name].append(await load(predict, rows, expected, seconds))
    return {name: Load(*(median(column) for column in zip(*loads, strict=True))) for name, loads in found.items()}


def rows_of(loads: dict[str, Load]) -> Iterator[Row]:
    """Yield the rows of the table. aioflow's target is a multiple of onnxruntime's best rate, with a short lag."""
    best = max((loads[name].rate for name in _THEIRS if name in loads), default=None)
    for name, each in loads.items():
        cells: dict[str, Cell] = {
            "requests/s": Quantity(each.rate),
            "p99": Quantity(each.p99, "s"),
            _LAG: Quantity(each.lag, "s"),
            "CPU per request": Quantity(each.cpu, "s"),
            _SHARE: Quantity(each.rate / best) if best else "—",
        }
        yield Row(name, cells, _TARGETS if name in _OURS else ())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each round")
    parser.add_argument("--only", nargs="*", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--uvloop", action="store_true", help="on uvloop instead of asyncio's own loop")
    Printer.add_options(parser)
    given = parser.parse_args()
    printer = Printer(given)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if given.uvloop else None) as runner:
        for row in rows_of(runner.run(table(given.only, given.rounds, given.seconds))):
            printer.row(row)
