"""Tests of plans: a run of nodes that oneDNN computes as one call equals the single nodes, for all feeds."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any, Final

import numpy as np
import pytest

import aioflow as af
from aioflow.concurrency.stopping import Stopped
from aioflow.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from aioflow.graph.opdef import OPS, define_op
from aioflow.kernels.registry import KERNELS, kernel
from aioflow.ops.apply import make
from aioflow_onednn.library import library

try:
    library()
except (NotFoundError, FailedPreconditionError) as error:
    pytest.skip(error.message, allow_module_level=True)

from aioflow_onednn import conv_blocks, forward, kernels, plans, team
from aioflow_onednn.plans import RunPlan
from tests.backends.onednn.random_nets import random_net
from tests.backends.onednn.stress import OneDnn

if "TestAtMost" not in OPS:
    define_op("TestAtMost", "x: float", "y: float", shape=lambda ctx: ctx.dims("x"))

if not KERNELS.for_op("TestAtMost"):

    @kernel("TestAtMost")
    def _at_most(x: Any) -> Any:
        # The input itself is returned if no element exceeds the limit.
        return np.minimum(x, np.float32(100)) if x.max() > 100 else x


NUMPYS: Final = af.SessionConfig(reproducible=True)


@pytest.fixture(autouse=True)
def however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small arrays go to oneDNN, unmeasured, and to its team."""
    monkeypatch.setattr(kernels, "_WORTHWHILE", 1)
    monkeypatch.setattr(kernels, "CHOICES", OneDnn())
    monkeypatch.setattr(forward, "_FOR_A_TEAM", 2**10)
    monkeypatch.setattr(team, "_TRIALS", 0)
    monkeypatch.setattr(team, "_SHORT", 0)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record, for each step that follows a plan, whether the plan ran to its end."""
    found: list[bool] = []
    run = RunPlan.run

    def watched(plan: RunPlan, given: Any) -> Any:
        made = None
        try:
            made = run(plan, given)
        finally:
            found.append(made is not None)
        return made

    monkeypatch.setattr(RunPlan, "run", watched)
    return found


def small_net(image: Any, rng: np.random.Generator) -> Any:
    """Return two convolutions with bias, activation and pool."""

    def weights(*shape: int) -> Any:
        return rng.standard_normal(shape, np.float32) * np.float32(0.3)

    x = af.nn.relu(af.nn.bias_add(af.nn.conv2d(image, weights(3, 3, 4, 8), padding="SAME"), weights(8)))
    x = af.nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    return af.nn.relu(af.nn.bias_add(af.nn.conv2d(x, weights(1, 1, 8, 6), padding="SAME"), weights(6)))


@pytest.mark.parametrize("seed", range(12))
async def test_random_nets_equal_numpys_kernels(seed: int, graph: af.Graph, planned: list[bool]) -> None:
    rng = np.random.default_rng(seed)
    image, made = random_net(rng)
    async with af.Session() as session, af.Session(config=NUMPYS) as plain:
        for _ in range(5):
            fed = {image: rng.standard_normal(image.shape.as_list(), np.float32)}
            found, wanted = await asyncio.gather(session.run(made, fed), plain.run(made, fed))
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert planned.count(True) >= 3


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 1e30, -3e38, 1e-42])
async def test_nonfinite_and_extreme_feeds_equal_numpys_kernels(
    odd: float, graph: af.Graph, planned: list[bool]
) -> None:
    rng = np.random.default_rng(1)
    image = af.placeholder(af.float32, [1, 9, 7, 4])
    made = small_net(image, rng)
    fed = rng.standard_normal((1, 9, 7, 4), np.float32)
    async with af.Session() as session, af.Session(config=NUMPYS) as plain:
        for _ in range(4):
            await session.run(made, {image: fed})
        assert planned[-1]
        fed[0, 3, 3, 1] = odd
        found, wanted = await session.run(made, {image: fed}), await plain.run(made, {image: fed})
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


async def test_each_batch_size_has_its_plan(graph: af.Graph, planned: list[bool]) -> None:
    rng = np.random.default_rng(2)
    image = af.placeholder(af.float32, [None, 9, 7, 4])
    made = small_net(image, rng)
    async with af.Session() as session, af.Session(config=NUMPYS) as plain:
        for count in [1, 2, 1, 3, 1, 2, 12, 3, 2, 1, 12, 12, 3, 0, 0, 0]:
            fed = {image: rng.standard_normal((count, 9, 7, 4), np.float32)}
            np.testing.assert_allclose(await session.run(made, fed), await plain.run(made, fed), rtol=1e-4, atol=1e-4)
    assert planned.count(True) >= 5


async def test_results_are_not_overwritten_by_later_steps(graph: af.Graph, planned: list[bool]) -> None:
    rng = np.random.default_rng(3)
    image = af.placeholder(af.float32, [1, 9, 7, 4])
    made = small_net(image, rng)
    feeds = [rng.standard_normal((1, 9, 7, 4), np.float32) for _ in range(8)]
    async with af.Session() as session:
        first = [(await session.run(made, {image: fed})).copy() for fed in feeds]
        kept = await asyncio.gather(*(session.run(made, {image: fed}) for fed in feeds * 4))
        for number, value in enumerate(kept):
            np.testing.assert_array_equal(value, first[number % 8])
            value.fill(np.nan)
        np.testing.assert_array_equal(await session.run(made, {image: feeds[0]}), first[0])
    assert all(planned)
    assert len(planned) > 32


async def test_sessions_have_separate_plans(graph: af.Graph, planned: list[bool]) -> None:
    rng = np.random.default_rng(8)
    image = af.placeholder(af.float32, [1, 9, 7, 4])
    made = small_net(image, rng)
    feeds = [{image: rng.standard_normal((1, 9, 7, 4), np.float32)} for _ in range(2)]
    async with af.Session() as one:
        wanted = [await one.run(made, fed) for fed in feeds]
        async with af.Session() as other:
            for _ in range(5):
                found = await asyncio.gather(one.run(made, feeds[0]), other.run(made, feeds[1]))
                np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(await one.run(made, feeds[0]), wanted[0])
    assert planned.count(True) >= 7


async def test_stopped_plan_can_run_again(graph: af.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values that a stopped step leaves in the plan's memory do not reach later results."""
    stops: list[bool] = []
    steps: list[tuple[RunPlan, Any]] = []
    run = RunPlan.run

    def checkpoint() -> None:
        if stops:
            raise Stopped

    def watched(plan: RunPlan, given: Any) -> Any:
        steps.append((plan, [each.copy() for each in given]))
        return run(plan, given)

    monkeypatch.setattr(plans, "checkpoint", checkpoint)
    monkeypatch.setattr(plans, "_BETWEEN", 1)
    monkeypatch.setattr(RunPlan, "run", watched)
    rng = np.random.default_rng(9)
    image = af.placeholder(af.float32, [1, 9, 7, 4])
    made = small_net(image, rng)
    async with af.Session() as session:
        fed = {image: rng.standard_normal((1, 9, 7, 4), np.float32)}
        wanted = [await session.run(made, fed) for _ in range(3)][-1]
        plan, given = steps[-1]
        stops.append(True)
        with pytest.raises(Stopped):
            run(plan, given)
        stops.clear()
        np.testing.assert_array_equal(run(plan, given), wanted)
        np.testing.assert_array_equal(await session.run(made, fed), wanted)


async def test_large_batches_use_threads_instead_of_a_plan(
    graph: af.Graph, planned: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv_blocks, "LEAST", 2**10)
    rng = np.random.default_rng(10)
    image = af.placeholder(af.float32, [16, 9, 7, 4])
    made = af.nn.max_pool(small_net(image, rng), [1, 2, 2, 1], [1, 1, 1, 1], "SAME")
    async with af.Session() as session:
        for _ in range(4):
            await session.run(made, {image: rng.standard_normal((16, 9, 7, 4), np.float32)})
    assert not planned


async def test_feeds_may_have_any_layout(graph: af.Graph, planned: list[bool]) -> None:
    rng = np.random.default_rng(4)
    image = af.placeholder(af.float32, [1, 9, 7, 4])
    made = small_net(image, rng)
    plain = rng.standard_normal((1, 9, 7, 4), np.float32)
    spread = np.zeros((1, 18, 7, 8), np.float32)
    spread[:, ::2, :, ::2] = plain
    frozen = plain.copy()
    frozen.flags.writeable = False
    async with af.Session() as session:
        wanted = await session.run(made, {image: plain})
        for _ in range(3):
            for fed in (plain, spread[:, ::2, :, ::2], frozen, plain.astype(">f4"), np.asfortranarray(plain)):
                np.testing.assert_array_equal(await session.run(made, {image: fed}), wanted)
    assert planned


async def test_intermediate_values_may_be_fetched_and_fed(graph: af.Graph) -> None:
    rng = np.random.default_rng(5)
    image = af.placeholder(af.float32, [1, 9, 7, 4])
    made = small_net(image, rng)
    pool = next(op.outputs[0] for op in graph.get_operations() if op.type == "MaxPool")
    fed = rng.standard_normal((1, 9, 7, 4), np.float32)
    async with af.Session() as session:
        for _ in range(4):
            alone = await session.run(made, {image: fed})
            both = await session.run([made, pool], {image: fed})
            np.testing.assert_array_equal(both[0], alone)
            np.testing.assert_array_equal(await session.run(made, {pool: both[1]}), alone)


async def test_shape_error_names_the_node(graph: af.Graph) -> None:
    image = af.placeholder(af.float32)
    weights = np.ones((3, 3, 4, 4), np.float32)
    first = af.nn.relu(af.nn.conv2d(image, weights, padding="SAME"))
    made = af.nn.relu(af.nn.conv2d(first, weights, padding="SAME"))
    async with af.Session() as session:
        for _ in range(4):
            await session.run(made, {image: np.ones((1, 8, 8, 4), np.float32)})
        for _ in range(4):
            with pytest.raises(InvalidArgumentError) as refused:
                await session.run(made, {image: np.ones((1, 8, 8, 3), np.float32)})
            assert refused.value.op_type == "Conv2D"


async def test_traced_step_shows_every_node(graph: af.Graph) -> None:
    image = af.placeholder(af.float32, [1, 9, 7, 4])
    made = small_net(image, np.random.default_rng(6))
    fed = {image: np.ones((1, 9, 7, 4), np.float32)}
    async with af.Session() as session:
        wanted = [await session.run(made, fed) for _ in range(4)][-1]
        stats = af.RunMetadata()
        options = af.RunOptions(trace_level=af.RunOptions.FULL_TRACE)
        found = await session.run(made, fed, options=options, run_metadata=stats)
        np.testing.assert_array_equal(found, wanted)
    assert {"_FusedConv2D", "MaxPool"} <= {each.op for device in stats.step_stats for each in device.nodes}


async def test_closed_session_releases_its_plans(graph: af.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[weakref.ref[RunPlan]] = []
    run = RunPlan.run

    def watched(plan: RunPlan, given: Any) -> Any:
        found.append(weakref.ref(plan))
        return run(plan, given)

    monkeypatch.setattr(RunPlan, "run", watched)
    image = af.placeholder(af.float32, [1, 9, 7, 4])
    made = small_net(image, np.random.default_rng(7))
    async with af.Session() as session:
        for _ in range(4):
            await session.run(made, {image: np.ones((1, 9, 7, 4), np.float32)})
    assert found
    del session
    for _ in range(100):  # the thread of the last step may still hold a reference
        gc.collect()
        if all(plan() is None for plan in found):
            break
        await asyncio.sleep(0.05)
    assert all(plan() is None for plan in found)


async def test_kernel_may_return_its_input(graph: af.Graph, planned: list[bool]) -> None:
    rng = np.random.default_rng(12)
    image = af.placeholder(af.float32, [1, 9, 7, 8])
    weights = rng.standard_normal((3, 3, 8, 8), np.float32) * np.float32(0.3)
    made = af.nn.conv2d(make("TestAtMost", af.nn.conv2d(image, weights, padding="SAME")), weights, padding="SAME")
    fed = rng.standard_normal((1, 9, 7, 8), np.float32)
    async with af.Session() as session, af.Session(config=NUMPYS) as plain:
        for factor in (1, 1, 1, 1, 1000, 1):
            feeds = {image: fed * np.float32(factor)}
            np.testing.assert_allclose(
                await session.run(made, feeds), await plain.run(made, feeds), rtol=1e-4, atol=1e-3
            )
    assert planned == [True, True, False, True]


async def test_failed_step_does_not_prevent_a_plan(graph: af.Graph, planned: list[bool]) -> None:
    image, index = af.placeholder(af.float32, [1, 9, 7, 4]), af.placeholder(af.int32, [1])
    weights = np.ones((3, 3, 4, 4), np.float32)
    first = af.nn.conv2d(image, weights, padding="SAME")
    made = af.nn.conv2d(af.gather(first, index), weights, padding="SAME")
    fed = np.ones((1, 9, 7, 4), np.float32)
    async with af.Session() as session:
        await session.run(made, {image: fed, index: [0]})
        with pytest.raises(InvalidArgumentError):
            await session.run(made, {image: fed, index: [5]})
        for _ in range(3):
            await session.run(made, {image: fed, index: [0]})
    assert planned == [True, True]


async def test_string_ops_are_in_no_plan(graph: af.Graph, planned: list[bool]) -> None:
    image, text = af.placeholder(af.float32, [1, 9, 7, 4]), af.placeholder(af.string, [1])
    weights = np.ones((3, 3, 4, 4), np.float32)
    first = af.nn.conv2d(image, weights, padding="SAME")
    length = af.cast(af.strings.length(text), af.float32)  # between the two convolutions
    made = af.nn.conv2d(first * length, weights, padding="SAME")
    fed = {image: np.ones((1, 9, 7, 4), np.float32), text: [b"four"]}
    async with af.Session() as session, af.Session(config=NUMPYS) as plain:
        for _ in range(4):
            np.testing.assert_allclose(await session.run(made, fed), await plain.run(made, fed), rtol=1e-4)
    assert not planned
