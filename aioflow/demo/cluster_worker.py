"""One worker of the cluster demo: it trains on its own batches, and records on the server which ones were applied."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import aioflow as af
from aioflow.demo.digits import Digits, load_digits
from aioflow.demo.model import PIXELS

BATCH: Final = 64
_HIDDEN: Final = 96
_CLASSES: Final = 10
_REPORTS: Final = 4  # lines of progress


@dataclass(frozen=True, slots=True)
class _Model:
    """Tensors of the graph.

    Attributes:
        graph: The graph.
        images: [n, 64] float32.
        labels: [n] int32.
        number: [] int32, number of the fed batch.
        counted: [workers * steps] int32, how often each batch was applied.
        loss: Scalar.
        accuracy: Scalar.
        train: One step of Adam, which then counts its batch.
        initialize: Initializer of the variables.
    """

    graph: af.Graph
    images: af.Tensor
    labels: af.Tensor
    number: af.Tensor
    counted: af.Variable
    loss: af.Tensor
    accuracy: af.Tensor
    train: af.Operation
    initialize: af.Operation


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of the training.

    Attributes:
        accuracy: Share of the test digits that are classified correctly.
        lost: Number of batches that were never applied to the variables.
        repeated: Number of batches that were applied more than once.
    """

    accuracy: float
    lost: int
    repeated: int


def _build(batches: int, device: Any = None) -> _Model:
    with af.Graph().as_default() as graph, af.device(device) if device is not None else nullcontext():
        af.set_random_seed(1)
        images = af.placeholder(af.float32, [None, PIXELS], name="images")
        labels = af.placeholder(af.int32, [None], name="labels")
        number = af.placeholder(af.int32, [], name="number")
        hidden = af.nn.relu(_dense(images, _HIDDEN, "hidden"))
        logits = _dense(hidden, _CLASSES, "logits")
        loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits), name="loss")
        right = af.equal(af.cast(af.argmax(logits, 1), af.int32), labels)
        accuracy = af.reduce_mean(af.cast(right, af.float32), name="accuracy")
        counted = af.get_variable("counted", [batches], af.int32, af.zeros_initializer(), trainable=False)
        update = af.train.AdamOptimizer(2e-3).minimize(loss, af.train.get_or_create_global_step())
        # Counted after the update: a killed step may lose its batch's count, never count a lost batch.
        with af.control_dependencies([update]):
            train = af.group(af.scatter_add(counted, number, 1), name="train")
        initialize = af.global_variables_initializer()
    return _Model(graph, images, labels, number, counted, loss, accuracy, train, initialize)


def _dense(x: af.Tensor, units: int, name: str) -> af.Tensor:
    with af.variable_scope(name):
        weights = af.get_variable("weights", [x.shape.as_list()[1], units])
        bias = af.get_variable("bias", [units], initializer=af.zeros_initializer())
        return af.nn.bias_add(af.matmul(x, weights), bias)


def _batches(digits: Digits, first: int, steps: int) -> Iterator[tuple[Any, Any]]:
    """Yield `steps` batches; each depends on its number alone."""
    for number in range(first, first + steps):
        # Seeded by the number: a restarted worker draws the same batches again.
        index = np.random.default_rng(number).integers(0, len(digits), BATCH)
        yield digits.images[index], digits.labels[index]


async def train_as_worker(cluster: af.train.ClusterSpec, task: int, steps: int) -> None:
    """Train together with the other workers; after a restart, continue at the first step that was not applied.

    The training step counts its batch after it has updated the variables: a counted batch has been applied.
    """
    workers = len(cluster.task_indices("worker"))
    setter = af.train.replica_device_setter(worker_device=f"/job:worker/task:{task}", cluster=cluster)
    model = _build(workers * steps, setter)
    with model.graph.as_default(), tempfile.TemporaryDirectory() as folder:
        async with (
            af.train.Server(cluster, "worker", task) as server,
            af.train.MonitoredTrainingSession(
                server.target, is_chief=task == 0, checkpoint_dir=Path(folder), log_step_count_steps=None
            ) as session,
        ):
            # The variables are on the parameter server, so they survive this process.
            counted = (await session.run(model.counted))[task * steps : (task + 1) * steps]
            done = int(np.count_nonzero(counted))
            if 0 < done < steps:
                print(f"worker {task}: restarted, continuing with step {done + 1}", flush=True)
            await _train(session, model, task * steps, steps, done, f"worker {task}")


async def _train(session: Any, model: _Model, first: int, steps: int, done: int, label: str = "") -> None:
    digits, _ = load_digits().split(seed=0)
    every = max(1, steps // _REPORTS)
    for step, (images, labels) in enumerate(_batches(digits, first + done, steps - done), done + 1):
        feeds = {model.images: images, model.labels: labels, model.number: first + step - 1}
        _, loss = await session.run([model.train, model.loss], feeds)
        if label and step % every == 0:
            print(f"{label}: step {step} of {steps}, loss {loss:.4f}", flush=True)


async def evaluate(target: str, cluster: af.train.ClusterSpec, steps: int) -> Result:
    """Return the accuracy of the variables on the parameter server, and the lost and repeated batches."""
    batches = len(cluster.task_indices("worker")) * steps
    model = _build(batches, af.train.replica_device_setter(worker_device="/job:ps", cluster=cluster))
    async with af.Session(target, graph=model.graph) as session:
        counted = await session.run(model.counted)
        accuracy = await _accuracy(session, model)
    return Result(accuracy, int(np.count_nonzero(counted == 0)), int(np.count_nonzero(counted > 1)))


async def train_alone(steps: int) -> float:
    """Return the accuracy of a single process after this number of steps."""
    model = _build(steps)
    async with af.Session(graph=model.graph) as session:
        await session.run(model.initialize)
        await _train(session, model, 0, steps, 0)
        return await _accuracy(session, model)


async def _accuracy(session: af.Session, model: _Model) -> float:
    _, digits = load_digits().split(seed=0)
    return float(await session.run(model.accuracy, {model.images: digits.images, model.labels: digits.labels}))
