"""Devices with their own memory, tested with a GPU backend made of NumPy: the copies between host and device."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.kernels.registry import Binding, KernelBody, KernelDef
from aioflow.runtime import device
from aioflow.runtime.backend_api import MemoryStats
from aioflow.runtime.executor import DeviceThreads
from aioflow.runtime.step import Step


class CardExecutor:
    """An executor with one thread, which stands for the thread that launches kernels."""

    def __init__(self) -> None:
        self.threads = DeviceThreads("-card", 1)
        self.calls = 0

    async def run(self, step: Step, function: Callable[..., Any], *args: Any) -> Any:
        self.calls += 1
        return await self.threads.run(step, function, *args)


class Shared:
    """A fetch that is exported without a copy."""

    def __init__(self, array: Any) -> None:
        self.array = array


class Foreign:
    """An array of another library, in the GPU's memory."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape = array.shape
        self.dtype = f"library.{array.dtype}"

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class Card:
    """A GPU made of NumPy, which records every copy.

    An array counts as being on the device if `to_device` or one of the device's kernels made it.
    """

    device_type = "GPU"
    xp = np

    def __init__(self) -> None:
        self.executor = CardExecutor()
        self.crossed: list[tuple[str, int]] = []
        self.replays = 0

    def generator(self, seed: int, seed2: int) -> Any:
        return np.random.default_rng([seed, seed2])

    def bind(self, kernel: KernelDef, binding: Binding) -> tuple[KernelDef, KernelBody]:
        return kernel, kernel.bind(binding)

    def on_host(self, value: Any) -> Any:
        return value

    def copy_from(self, array: Any, other: Any) -> Any:
        self.crossed.append(("across", array.nbytes))
        return array.copy()

    def share(self, array: Any) -> Any:
        return Shared(array)

    def captured(self, function: Callable[..., Any], nodes: Any) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            self.replays += 1
            return function(*values)

        return call

    async def to_device(self, value: Any) -> Any:
        if isinstance(value, Foreign):
            return value.array
        self.crossed.append(("in", np.asarray(value).nbytes))
        await asyncio.sleep(0)
        return np.array(value)

    async def to_host(self, value: Any) -> Any:
        self.crossed.append(("out", np.asarray(value).nbytes))
        await asyncio.sleep(0)
        return np.array(value)

    def memory(self) -> MemoryStats:
        return MemoryStats(0, 0)

    def close(self) -> None:
        """Do nothing: the device holds no resources."""


class Cards:
    """A backend with `count` GPUs."""

    name = "fake"
    device_type = "GPU"

    def __init__(self, count: int = 1) -> None:
        self.cards = [Card() for _ in range(count)]

    def count(self) -> int:
        return len(self.cards)

    def describe(self, index: int) -> tuple[int | None, str]:
        return None, "a card made of NumPy"

    def device(self, index: int, threads: int = 0) -> Card:
        return self.cards[index]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    backend = Cards()
    hosts = device.backends()[0]
    monkeypatch.setattr(device, "backends", lambda: (hosts, backend))
    return backend.cards[0]


async def test_session_lists_the_gpu(card: Card) -> None:
    async with af.Session() as session:
        assert [name.rpartition("device:")[2] for name in session.list_devices()] == ["CPU:0", "GPU:0"]


async def test_feed_with_two_readers_is_copied_to_the_gpu_once(card: Card) -> None:
    x = af.placeholder("float32", [4])
    with af.device("/gpu:0"):
        a, b = af.exp(x), af.tanh(x)
        total = a + b
    async with af.Session() as session:
        value = np.arange(4, dtype=np.float32)
        got = await session.run(total, {x: value})
    np.testing.assert_array_equal(got, np.exp(value) + np.tanh(value))
    assert card.crossed == [("in", 16), ("out", 16)]
    assert card.executor.calls == 1


async def test_arguments_in_host_memory_are_not_copied(card: Card) -> None:
    x, shape = af.placeholder("float32", [4]), af.placeholder("int32", [2])
    with af.device("/gpu:0"):
        y = af.reshape(x, shape)
    async with af.Session() as session:
        got = await session.run(y, {x: np.arange(4.0), shape: [2, 2]})
    assert got.shape == (2, 2)
    assert card.crossed == [("in", 16), ("out", 16)]


async def test_value_is_copied_from_the_gpu_to_the_host_and_back(card: Card) -> None:
    x = af.placeholder("float32", [3])
    with af.device("/gpu:0"):
        a = af.exp(x)
    with af.device("/cpu:0"):
        b = af.py_func(lambda v: v + 1, [a], af.float32)
        b.set_shape([3])
    with af.device("/gpu:0"):
        c = b * 2.0
    async with af.Session() as session:
        got = await session.run(c, {x: np.zeros(3)})
    np.testing.assert_array_equal(got, np.full(3, 4.0, np.float32))
    assert card.crossed == [("in", 12), ("out", 12), ("in", 12), ("out", 12)]


async def test_variable_stays_on_the_gpu(card: Card) -> None:
    with af.device("/gpu:0"):
        v = af.Variable(np.ones(5, np.float32))
        step = v.assign_add(np.ones(5, np.float32))
    async with af.Session() as session:
        await session.run(v.initializer)
        for _ in range(3):
            await session.run(step.op)
        assert card.crossed == []
        np.testing.assert_array_equal(await session.run(v), np.full(5, 4.0))


async def test_strings_stay_on_the_host(card: Card) -> None:
    x = af.placeholder("string", [])
    y = af.string_join([x, "!"])
    with af.device("/gpu:0"):
        n = af.placeholder("float32", [2]) * 1.5
    async with af.Session() as session:
        assert await session.run(y, {x: "a"}) == b"a!"
        await session.run(n, {"Placeholder_1:0": [1.0, 2.0]})
    assert card.crossed == [("in", 8), ("out", 8)]


@pytest.mark.parametrize("executor", ["strands", "reference"])
async def test_loops_and_branches_call_gpu_kernels_on_its_thread_only(card: Card, executor: str) -> None:
    names: set[str] = set()
    real = np.exp

    def exp(*args: Any, **kwargs: Any) -> Any:
        names.add(threading.current_thread().name)
        return real(*args, **kwargs)

    x = af.placeholder("float32", [3])
    with af.device("/gpu:0"):
        y = af.while_loop(
            lambda i, v: i < 3, lambda i, v: (i + 1, af.cond(i > 1, lambda: af.exp(v), lambda: v)), [0, x]
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            card,
            "xp",
            type("Namespace", (), {"__getattr__": lambda _, name: getattr(np, name), "exp": staticmethod(exp)})(),
        )
        async with af.Session(config=af.SessionConfig(executor=executor)) as session:
            got = (await session.run(y, {x: np.zeros(3)}))[1]
    np.testing.assert_array_equal(got, np.ones(3, np.float32))
    assert names
    assert all("-card" in name for name in names)


async def test_strand_is_replayed_as_captured_by_the_device(card: Card) -> None:
    x = af.placeholder("float32", [3])
    with af.device("/gpu:0"):
        y = af.exp(x) + 1.0
    async with af.Session() as session:
        for _ in range(3):
            await session.run(y, {x: np.zeros(3)})
        assert card.replays == 3
        metadata = af.RunMetadata()
        options = af.RunOptions(trace_level=af.TraceLevel.FULL)
        await session.run(y, {x: np.zeros(3)}, options=options, run_metadata=metadata)
        assert card.replays == 3  # a trace needs the nodes one by one, so the captured strand is not used


async def test_fetches_may_stay_on_the_gpu(card: Card) -> None:
    x = af.placeholder("float32", [3])
    with af.device("/gpu:0"):
        y = af.exp(x)
    async with af.Session(config=af.SessionConfig(fetch_to_host=False)) as session:
        got = await session.run(y, {x: np.zeros(3)})
    assert isinstance(got, Shared)
    np.testing.assert_array_equal(got.array, np.ones(3))
    assert card.crossed == [("in", 12)]


async def test_feed_may_already_be_on_the_gpu(card: Card) -> None:
    x = af.placeholder("float32", [None])
    with af.device("/gpu:0"):
        y = af.exp(x)
    async with af.Session() as session:
        np.testing.assert_array_equal(await session.run(y, {x: Foreign(np.zeros(3, np.float32))}), np.ones(3))
        assert card.crossed == [("out", 12)]
        with pytest.raises(DTypeError, match="different dtype"):
            await session.run(y, {x: Foreign(np.zeros(3))})
        with pytest.raises(InvalidArgumentError, match="shape"):
            await session.run(y, {x: Foreign(np.zeros((3, 1), np.float32))})


async def test_feed_on_the_gpu_is_rejected_if_the_host_reads_it(card: Card) -> None:
    x = af.placeholder("float32", [None])
    with af.device("/gpu:0"):
        y = af.exp(x)
    with af.device("/cpu:0"):
        z = af.exp(x)
    async with af.Session() as session:
        with pytest.raises(DTypeError):
            await session.run([y, z], {x: Foreign(np.zeros(3, np.float32))})


async def test_value_is_copied_between_gpus_without_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Cards(2)
    hosts = device.backends()[0]
    monkeypatch.setattr(device, "backends", lambda: (hosts, backend))
    x = af.placeholder("float32", [3])
    with af.device("/gpu:0"):
        a = af.exp(x)
    with af.device("/gpu:1"):
        b = a + 1.0
    async with af.Session() as session:
        np.testing.assert_array_equal(await session.run(b, {x: np.zeros(3)}), np.full(3, 2.0))
    assert backend.cards[0].crossed == [("in", 12)]
    assert backend.cards[1].crossed == [("across", 12), ("out", 12)]
