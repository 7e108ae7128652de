"""Whole sessions on the fake GPU: feeds, constants, variables, gradients, loops and fetches, without races."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.runtime import device
from aioflow_cupy.backend import CupyBackend
from aioflow_cupy.dlpack import SharedArray
from tests.backends.cupy.fake_driver import FakeDriver


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    driver = FakeDriver()
    backend = CupyBackend(driver)
    hosts = device.backends()[0]
    monkeypatch.setattr(device, "backends", lambda: (hosts, backend))
    return driver


async def test_small_network_trains_as_on_the_cpu(driver: FakeDriver) -> None:
    random = np.random.default_rng(0)
    images, labels = random.normal(size=(16, 6)).astype(np.float32), random.integers(0, 3, 16)
    losses: dict[str, list[float]] = {}
    for where in ("/cpu:0", "/gpu:0"):
        with af.Graph().as_default(), af.device(where):
            x, y = af.placeholder(af.float32, [None, 6]), af.placeholder(af.int64, [None])
            weights = af.Variable(np.full((6, 5), 0.1, np.float32) + np.eye(6, 5, dtype=np.float32))
            hidden = af.nn.relu(x @ weights + 0.1)
            logits = hidden @ af.Variable(np.eye(5, 3, dtype=np.float32))
            loss = af.reduce_mean(af.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
            train = af.train.AdamOptimizer(0.05).minimize(loss)
            async with af.Session(config=af.SessionConfig(allow_soft_placement=True)) as session:
                await session.run(af.global_variables_initializer())
                losses[where] = []
                for _ in range(8):
                    value, _ = await session.run([loss, train], {x: images, y: labels})
                    losses[where].append(float(value))
    np.testing.assert_allclose(losses["/gpu:0"], losses["/cpu:0"], rtol=1e-5)
    assert losses["/gpu:0"][-1] < losses["/gpu:0"][0] / 1.5
    assert ("upload", "upload") in driver.words("upload")


async def test_training_steps_are_replayed(driver: FakeDriver) -> None:
    with af.device("/gpu:0"):
        data = af.Variable(np.ones((4, 3), np.float32), trainable=False)  # stays in its initializer's array
        weights = af.Variable(np.full((3, 1), 0.5, np.float32))
        train = af.train.AdamOptimizer(0.1).minimize(af.reduce_mean(af.square(data @ weights)))
    async with af.Session() as session:
        await session.run(af.global_variables_initializer())
        for _ in range(8):
            await session.run(train)
    assert len(driver.words("captured")) == 1
    assert len(driver.words("launch")) == 6


async def test_a_convolution_with_soft_placement(driver: FakeDriver) -> None:
    image = np.random.default_rng(1).normal(size=(2, 8, 8, 3)).astype(np.float32)
    results: dict[str, Any] = {}
    for where in ("/cpu:0", "/gpu:0"):
        with af.Graph().as_default(), af.device(where):
            x = af.placeholder(af.float32, [None, 8, 8, 3])
            kernel = np.linspace(-1, 1, 3 * 3 * 3 * 4, dtype=np.float32).reshape(3, 3, 3, 4)
            y = af.nn.max_pool(af.nn.conv2d(x, kernel, [1, 1, 1, 1], "SAME"), [1, 2, 2, 1], [1, 2, 2, 1], "VALID")
            flat = af.reshape(y, [af.shape(y)[0], -1])
            words = af.as_string(flat[0, :2])  # has no GPU kernel
            async with af.Session(config=af.SessionConfig(allow_soft_placement=True)) as session:
                results[where] = await session.run([flat, words], {x: image})
    np.testing.assert_allclose(results["/gpu:0"][0], results["/cpu:0"][0], rtol=1e-4, atol=1e-5)
    assert len(results["/gpu:0"][1]) == 2


@pytest.mark.parametrize("executor", ["strands", "reference"])
async def test_a_loop_and_its_gradient(driver: FakeDriver, executor: str) -> None:
    with af.device("/gpu:0"):
        x = af.placeholder(af.float32, [3])
        _, y = af.while_loop(lambda i, v: i < 4, lambda i, v: (i + 1, v * v), [0, x])
        (slope,) = af.gradients(y, [x])
    async with af.Session(config=af.SessionConfig(executor=executor, allow_soft_placement=True)) as session:
        value, gradient = await session.run([y, slope], {x: np.array([0.5, 1.0, 1.1])})
    np.testing.assert_allclose(value, np.array([0.5, 1.0, 1.1]) ** 16, rtol=1e-5)
    np.testing.assert_allclose(gradient, 16 * np.array([0.5, 1.0, 1.1]) ** 15, rtol=1e-5)


async def test_a_fetched_variable_never_changes(driver: FakeDriver) -> None:
    with af.device("/gpu:0"):
        v = af.Variable(np.zeros(4, np.float32))
        step = v.assign_add(np.ones(4, np.float32))
    async with af.Session() as session:
        await session.run(v.initializer)
        fetched = [await session.run(step) for _ in range(3)]
    assert [f.tolist() for f in fetched] == [[1.0] * 4, [2.0] * 4, [3.0] * 4]


@pytest.mark.parametrize("executor", ["strands", "reference"])
async def test_conditions_that_the_device_computes(driver: FakeDriver, executor: str) -> None:
    with af.device("/gpu:0"):
        x = af.placeholder(af.float32, [3])
        doubled = af.while_loop(lambda v: af.reduce_max(v) < 100, lambda v: v * 2, [x])
        chosen = af.cond(af.reduce_sum(x) > 0, lambda: doubled + 1, lambda: -x)
    async with af.Session(config=af.SessionConfig(executor=executor, allow_soft_placement=True)) as session:
        np.testing.assert_allclose(await session.run(chosen, {x: [1.0, 2.0, 3.0]}), [65, 129, 193])
        np.testing.assert_allclose(await session.run(doubled, {x: [1.0, 0.0, 3.0]}), [64, 0, 192])


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    driver = FakeDriver(2)
    backend = CupyBackend(driver)
    hosts = device.backends()[0]
    monkeypatch.setattr(device, "backends", lambda: (hosts, backend))
    return driver


async def test_value_is_copied_from_gpu_to_gpu(two_cards: FakeDriver) -> None:
    x = af.placeholder(af.float32, [4])
    with af.device("/gpu:0"):
        first = af.exp(x)
    with af.device("/gpu:1"):
        second = first + 1.0
    async with af.Session() as session:
        got = await session.run(second, {x: np.zeros(4, np.float32)})
    np.testing.assert_array_equal(got, np.full(4, 2.0, np.float32))
    assert two_cards.words("peer") == [("peer", "compute1")]


async def test_shape_for_another_gpu_stays_on_the_host(two_cards: FakeDriver) -> None:
    x, y = af.placeholder(af.float32, [None, 2]), af.placeholder(af.float32, [None])
    with af.device("/gpu:0"):
        shape = af.shape(af.exp(x))
    with af.device("/gpu:1"):
        shaped = af.reshape(y, shape * 1)
    async with af.Session() as session:
        got = await session.run(shaped, {x: np.zeros((3, 2)), y: np.arange(6)})
    np.testing.assert_array_equal(got, np.arange(6).reshape(3, 2))
    assert two_cards.words("peer") == []


async def test_fetched_host_value_is_a_numpy_array(driver: FakeDriver) -> None:
    x = af.placeholder(af.float32, [None, 2])
    with af.device("/gpu:0"):
        made = [af.shape(x), af.exp(x)]
    async with af.Session(config=af.SessionConfig(fetch_to_host=False)) as session:
        shape, shared = await session.run(made, {x: np.zeros((3, 2))})
    assert isinstance(shape, np.ndarray)
    assert shape.tolist() == [3, 2]
    assert isinstance(shared, SharedArray)
