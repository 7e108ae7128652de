"""Minutes of training and of answers in one event loop: no growth, and no answer that the weights do not explain."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import aioflow as af
from aioflow.demo.digits import load_digits

psutil = pytest.importorskip("psutil")

_SAMPLES: Final = 60
_GROWTH: Final = 8 << 20  # bytes
_BATCH: Final = 32


class Digits:
    """A small network that trains on batches of a queue, and predicts."""

    def __init__(self) -> None:
        self.queue = af.FIFOQueue(8, ["float32", "int32"], [[_BATCH, 64], [_BATCH]])
        self.images = af.placeholder("float32", [None, 64])
        self.labels = af.placeholder("int32", [None])
        self.feed = self.queue.enqueue([self.images, self.labels])
        images, labels = self.queue.dequeue()
        hidden, outputs = af.get_variable("hidden", [64, 64]), af.get_variable("outputs", [64, 10])

        def logits(x: Any) -> Any:
            return af.matmul(af.nn.relu(af.matmul(x, hidden)), outputs)

        self.loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits(images)))
        self.train = af.train.AdamOptimizer(1e-3).minimize(self.loss)
        self.probabilities = af.nn.softmax(logits(self.images))


async def _filled(session: af.Session, net: Digits, data: Any) -> None:
    rng = np.random.default_rng(0)
    while True:
        rows = rng.integers(0, len(data.images), _BATCH)
        await session.run(net.feed, {net.images: data.images[rows], net.labels: data.labels[rows]})


async def _trained(session: af.Session, net: Digits, folder: Path) -> None:
    saver, step = af.train.Saver(max_to_keep=2), 0
    while True:
        step += 1
        await session.run([net.train, net.loss], timeout=60.0)
        if step % 5_000 == 0:
            await saver.save(session, folder / "digits", global_step=step)


async def _answered(predict: Any, data: Any, seed: int) -> None:
    """Ask without a pause; some of the calls are cancelled, some are late, and some have rows that are rejected."""
    rng = np.random.default_rng(seed)
    while True:
        rows = data.images[rng.integers(0, len(data.images), rng.integers(1, 9))]
        match rng.integers(8):
            case 0:
                async with asyncio.TaskGroup() as group:
                    call = group.create_task(predict(rows))
                    await asyncio.sleep(0)
                    call.cancel()
            case 1:
                with suppress(af.errors.DeadlineExceededError):
                    await predict(rows, timeout=1e-4)
            case 2:
                with pytest.raises(af.errors.InvalidArgumentError):
                    await predict(rows[:, :10])
            case _:
                answer = await predict(rows)
                assert answer.shape == (len(rows), 10)
                np.testing.assert_allclose(answer.sum(axis=1), 1.0, rtol=1e-4)


@pytest.mark.soak
@pytest.mark.timeout(0)  # `--soak-minutes` decides
async def test_memory_does_not_grow_while_a_model_trains_and_answers(
    pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    minutes = pytestconfig.getoption("--soak-minutes")
    data, held_back = load_digits().split(seed=0)
    process = psutil.Process()
    samples: list[tuple[int, int, int]] = []
    with af.Graph().as_default() as graph:
        net = Digits()
        initializer = af.global_variables_initializer()
    async with asyncio.timeout(minutes * 60 + 300), af.Session(graph=graph) as session:
        await session.run(initializer)
        async with (
            session.batched(net.probabilities, [net.images], max_batch_size=64) as predict,
            asyncio.TaskGroup() as group,
        ):
            tasks = [
                group.create_task(_filled(session, net, data)),
                group.create_task(_trained(session, net, tmp_path)),
                *(group.create_task(_answered(predict, held_back, seed)) for seed in range(4)),
            ]
            for _ in range(_SAMPLES):
                await asyncio.sleep(minutes * 60 / _SAMPLES)
                samples.append((process.memory_info().rss, process.num_fds(), threading.active_count()))
            for task in tasks:
                task.cancel()
        predicted = await session.run(net.probabilities, {net.images: held_back.images})
    assert np.mean(predicted.argmax(axis=1) == held_back.labels) > 0.9
    print("memory in MiB, descriptors, threads:", *((rss >> 20, *others) for rss, *others in samples[::6]))
    warm = samples[_SAMPLES // 5 :]
    assert warm[-1][0] - warm[0][0] < _GROWTH, samples
    assert warm[-1][1] == warm[0][1], samples
