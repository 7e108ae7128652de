"""Tests on a real GPU of what the fakes cannot show. Without a GPU they are skipped, with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.runtime.step import Step
from aioflow.testing.check_backend import check_backend

cupy = pytest.importorskip("cupy", reason="needs CuPy: pip install 'aioflow-engine[cupy13]' or '[cupy]'")

from aioflow_cupy.backend import CupyBackend  # noqa: E402  # after the skip
from aioflow_cupy.device import CupyDevice, CupySettings  # noqa: E402


def _reason() -> str | None:
    count = CupyBackend().count()
    return None if count else "CuPy finds no GPU"


pytestmark = [
    pytest.mark.skipif(_reason() is not None, reason=_reason() or ""),
    pytest.mark.blocks_loop("the first use creates CUDA's context, and compiles kernels"),
]


@pytest.fixture
def gpu() -> Iterator[CupyDevice]:
    device = CupyBackend(settings=CupySettings(lane_bytes=1 << 16)).device(0)
    yield device
    device.close()


async def test_the_backend_conforms() -> None:
    assert all(r.problem is None for r in await check_backend(CupyBackend))


async def test_kernels_do_not_overtake_copies(gpu: CupyDevice) -> None:
    """Many values are copied in pieces while kernels run that take longer than the copies."""
    busy = await gpu.to_device(np.random.default_rng(0).normal(size=(2000, 2000)).astype(np.float32))

    async def one(i: int) -> None:
        value = np.full(100_000 + i, i, np.float32)
        array = await gpu.to_device(value)
        value[:] = -1

        def compute(a: Any) -> Any:
            for _ in range(3):
                busy @ busy
            return a * 2 + 1

        back = await gpu.to_host(await gpu.executor.run(Step(), compute, array))
        np.testing.assert_array_equal(back, np.full(100_000 + i, 2 * i + 1, np.float32))

    async with asyncio.TaskGroup() as tg:
        for i in range(40):
            tg.create_task(one(i))


async def test_a_step_is_captured_and_replayed(gpu: CupyDevice) -> None:
    def step(x: Any) -> tuple[Any, ...]:
        return (gpu.xp.tanh(x @ x.T) + 1, x.sum(axis=0))

    captured: Any = gpu.capture(step)
    for i in range(6):
        value = np.random.default_rng(i).normal(size=(64, 32)).astype(np.float32)
        made = await gpu.executor.run(Step(), captured, await gpu.to_device(value))
        np.testing.assert_allclose(await gpu.to_host(made[0]), np.tanh(value @ value.T) + 1, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(await gpu.to_host(made[1]), value.sum(axis=0), rtol=1e-4, atol=1e-4)
    assert captured.stats.replayed >= 3
    assert captured.stats.refused is None


async def test_a_capture_does_not_record_the_work_of_other_tasks(gpu: CupyDevice) -> None:
    sent: list[Any] = []

    def step(x: Any) -> tuple[Any, ...]:
        if gpu.streams.capturing:
            # The event loop's thread submits copies whenever a task has a feed.
            thread = Thread(target=lambda: sent.append(gpu.transfers.upload(np.full(1000, 7, np.float32))))
            thread.start()
            thread.join()
        return (x * 2,)

    captured: Any = gpu.capture(step)
    for i in range(5):
        (made,) = await gpu.executor.run(Step(), captured, await gpu.to_device(np.full(4, i, np.float32)))
        assert (await gpu.to_host(made)).tolist() == [2 * i] * 4
    assert captured.stats.refused is None
    assert [(await gpu.to_host(array)).tolist() for array in sent] == [[7] * 1000]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
async def test_training_steps_are_captured_and_converge(dtype: str) -> None:
    """Train on the GPU in a session: the replayed steps go on from the plain ones."""
    if dtype == "bfloat16" and int(cupy.__version__.partition(".")[0]) < 14:
        pytest.skip("CuPy has bfloat16 since version 14")
    with af.Graph().as_default(), af.device("/gpu:0"):
        x, y = af.placeholder(af.float32, [32, 16]), af.placeholder(af.float32, [32, 1])
        w = af.Variable(np.full((16, 1), 0.1, np.float32))
        made = af.cast(af.matmul(af.cast(x, dtype), af.cast(w, dtype)), af.float32)
        loss = af.reduce_mean(af.square(made - y))
        train = af.train.AdamOptimizer(0.05).minimize(loss)
        random = np.random.default_rng(0)
        value = random.normal(size=(32, 16)).astype(np.float32)
        feeds = {x: value, y: value.sum(axis=1, keepdims=True) / 2}
        async with af.Session(config=af.SessionConfig(allow_soft_placement=True)) as session:
            await session.run(af.global_variables_initializer())
            losses = [float((await session.run([loss, train], feeds))[0]) for _ in range(40)]
    assert losses[-1] < losses[3] / 4 < losses[0] / 4


async def test_a_step_that_reads_a_value_is_computed_without_capture(gpu: CupyDevice) -> None:
    captured: Any = gpu.capture(lambda x: (x * 2 if float(x.sum()) > 0 else x,))
    for _ in range(5):
        (made,) = await gpu.executor.run(Step(), captured, await gpu.to_device(np.ones(4, np.float32)))
        assert (await gpu.to_host(made)).tolist() == [2] * 4
    assert captured.stats.refused is not None


async def test_the_memory_limit_is_enforced() -> None:
    from aioflow.errors import ResourceExhaustedError

    gpu = CupyBackend(settings=CupySettings(memory_limit=64 << 20)).device(0)
    with pytest.raises(ResourceExhaustedError):
        await gpu.to_device(np.zeros(32 << 20, np.float32))
    gpu.close()


async def test_torch_shares_its_memory_both_ways(gpu: CupyDevice) -> None:
    torch = pytest.importorskip("torch", reason="needs torch with CUDA")
    if not torch.cuda.is_available():
        pytest.skip("torch was built without CUDA")
    theirs = torch.arange(8, dtype=torch.float32, device="cuda")
    ours = await gpu.to_device(theirs)
    assert ours.data.ptr == theirs.data_ptr()
    back = torch.from_dlpack(gpu.share(ours))
    assert back.data_ptr() == theirs.data_ptr()


@pytest.mark.parametrize("size", [(3, 3), (1, 1)])
async def test_convolutions_with_and_without_cudnn(size: tuple[int, int]) -> None:
    image = np.random.default_rng(0).normal(size=(4, 16, 16, 8)).astype(np.float32)
    kernel = np.random.default_rng(1).normal(size=(*size, 8, 16)).astype(np.float32)
    results = []
    for where in ("/gpu:0", "/cpu:0"):
        with af.Graph().as_default(), af.device(where):
            x = af.placeholder(af.float32, image.shape)
            made = af.nn.conv2d(x, kernel, [1, 1, 1, 1], "SAME")
            (slope,) = af.gradients(af.reduce_sum(made * made), [x])
            async with af.Session(config=af.SessionConfig(allow_soft_placement=True)) as session:
                results.append(await session.run([made, slope], {x: image}))
    for gpu_value, cpu_value in zip(*results, strict=True):
        np.testing.assert_allclose(gpu_value, cpu_value, rtol=1e-2, atol=1e-1)


async def test_a_fused_chain_equals_the_unfused_one() -> None:
    value = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    results = []
    for fuse in (True, False):
        with af.Graph().as_default(), af.device("/gpu:0"):
            x = af.placeholder(af.float32, [None])
            y = af.tanh(af.nn.relu(x * 2.0 + 1.0) * x) - x
            config = af.SessionConfig(allow_soft_placement=True, optimizations=fuse)
            async with af.Session(config=config) as session:
                results.append(await session.run(y, {x: value}))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6, atol=1e-6)


async def test_values_are_copied_between_two_gpus(gpu: CupyDevice) -> None:
    backend = CupyBackend()
    if backend.count() < 2:
        pytest.skip("needs two GPUs")
    other = backend.device(1)
    value = np.arange(1_000_000, dtype=np.float64)
    copied = other.copy_from(await gpu.to_device(value), gpu)
    np.testing.assert_array_equal(await other.to_host(copied), value)
    other.close()
