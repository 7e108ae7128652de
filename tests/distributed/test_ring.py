"""`distributed.all_reduce`: NumPy's values, equal traffic for every task, and replicas that train in step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.distributed import all_reduce
from aioflow.graph.boundary import SEND
from aioflow.testing.gradcheck import check_gradients
from tests.net.clusters import cluster
from tests.support.random_examples import examples

NUMPY = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def device(index: int) -> str:
    return f"/device:CPU:{index}"


def local(devices: int) -> af.Session:
    return af.Session(config=af.SessionConfig(device_count={"CPU": devices}))


def task(index: int) -> str:
    return f"/job:worker/task:{index}"


def fed(values: Sequence[Any], shape: Any = None) -> tuple[list[af.Tensor], dict[Any, Any]]:
    """Return one tensor per device, each fed by a placeholder, and the feeds."""
    tensors, feeds = [], {}
    for index, value in enumerate(values):
        with af.device(device(index)):
            placeholder = af.placeholder(np.asarray(value).dtype, shape)
            tensors.append(af.identity(placeholder))
        feeds[placeholder] = value
    return tensors, feeds


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=examples(25), deadline=None)
@given(
    devices=st.integers(1, 5),
    shape=st.lists(st.integers(0, 5), max_size=3),
    known=st.booleans(),
    subchunks=st.integers(1, 3),
    op=st.sampled_from(["sum", "mean", *NUMPY]),
)
async def test_every_device_has_numpys_result(
    devices: int, shape: list[int], known: bool, subchunks: int, op: str
) -> None:
    values = [np.random.default_rng(d).integers(-40, 40, shape).astype(np.float64) for d in range(devices)]
    with af.Graph().as_default():
        tensors, feeds = fed(values, shape if known else None)
        results = all_reduce(tensors, op, subchunks=subchunks)
        assert [r.device for r in results] == [t.device for t in tensors]
        assert not known or {tuple(r.shape.as_list()) for r in results} == {tuple(shape)}
        async with local(devices) as session:
            found = await session.run(results, feeds)
    # Sums and products of whole numbers are exact in any order.
    expected = sum(values) / devices if op == "mean" else NUMPY[op].reduce(values)
    for value in found:
        np.testing.assert_array_equal(value, expected)


async def test_all_devices_have_the_same_bits() -> None:
    values = [np.random.default_rng(d).standard_normal(1000).astype(np.float32) for d in range(4)]
    with af.Graph().as_default():
        tensors, feeds = fed(values)
        async with local(4) as session:
            found = await session.run(all_reduce(tensors), feeds)
    for value in found:
        np.testing.assert_array_equal(value, found[0])
        np.testing.assert_allclose(value, np.sum(values, 0, np.float64), rtol=1e-4, atol=1e-5)


async def test_a_structure_is_packed_and_restored() -> None:
    rng = np.random.default_rng(0)
    shapes = {"bias": [3], "weights": [2, 4], "scale": []}
    with af.Graph().as_default():
        rows: list[Any] = []
        for index in range(3):
            with af.device(device(index)):
                row: dict[str, Any] = {
                    k: af.Variable(rng.integers(0, 9, s).astype(np.float32)) for k, s in shapes.items()
                }
                row["counts"] = (af.Variable(np.arange(5) + index, name="whole"),)
                rows.append(row)
        results = all_reduce(rows)
        async with local(3) as session:
            await session.run(af.global_variables_initializer())
            before, after = await session.run([rows, results])
    for result in after:
        assert list(result) == list(rows[0])
        for key in shapes:
            np.testing.assert_array_equal(result[key], sum(row[key] for row in before))
        np.testing.assert_array_equal(result["counts"][0], 3 * np.arange(5) + 3)


async def test_a_structure_of_unknown_shapes() -> None:
    values: list[Any] = [np.ones((2, 3)), np.full((4,), 2.0), np.float64(3.0)]
    with af.Graph().as_default():
        rows: list[Any] = []
        feeds: dict[Any, Any] = {}
        for index in range(2):
            placeholders = [af.placeholder(af.float64) for _ in values]
            feeds.update(zip(placeholders, values, strict=True))
            with af.device(device(index)):
                rows.append([af.identity(p) for p in placeholders])
        async with local(2) as session:
            results = await session.run(all_reduce(rows), feeds)
    for result in results:
        for value, expected in zip(result, values, strict=True):
            np.testing.assert_array_equal(value, 2 * expected)


async def test_the_gradient_of_a_sum_is_the_sum_of_the_gradients() -> None:
    values = [np.array([1.0, 2.0, 4.0]), np.array([8.0, 16.0, 32.0]), np.array([64.0, 128.0, 256.0])]
    with af.Graph().as_default():
        tensors, feeds = fed(values, [3])
        seeds = []
        for index, result in enumerate(all_reduce(tensors)):
            with af.device(result.device):
                seeds.append(af.reduce_sum(result * result * (index + 1.0)))
        gradients = af.gradients(seeds, tensors, colocate_gradients_with_ops=True)
        async with local(3) as session:
            found = await session.run(gradients, feeds)
            ways = sent(session, [af.convert_to_tensor(g).op for g in gradients if g is not None], list(feeds))
    for value in found:
        np.testing.assert_array_equal(value, 12.0 * np.sum(values, 0))
    traffic = [sum(sum(sizes) for (source, _), sizes in ways.items() if source == d) for d in range(3)]
    assert traffic == [2 * 2 * (3 - 1) * 8] * 3  # the same traffic forward and backward


@pytest.mark.parametrize("op", ["sum", "mean", "max", "prod"])
def test_the_gradient_agrees_with_finite_differences(op: str) -> None:
    values = [np.random.default_rng(d).standard_normal((2, 3)) for d in range(3)]
    check_gradients(lambda *tensors: all_reduce(tensors, op, subchunks=2), *values)


# ── traffic ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def sent(session: af.Session, fetches: Any, feeds: Sequence[Any] = ()) -> dict[tuple[int, int], list[int]]:
    """Return the bytes of each tensor sent from one device or task to another, keyed by their numbers."""
    plan = session.plan(fetches, feeds)
    by_device = dict(plan.by_device())
    found = defaultdict(list)
    for device_name, node in plan.placed_nodes():
        if node.op == SEND:
            spec = by_device[device_name].spec(node.inputs[0])
            assert spec.dims is not None
            elements = int(np.prod([size or 0 for size in spec.dims]))
            found[number(device_name), number(node.attrs["recv_device"])].append(elements * spec.dtype.size)
    return dict(found)


def number(name: str) -> int:
    spec = af.DeviceSpec.from_string(name)
    return (spec.task or 0) + (spec.device_index or 0)


@pytest.mark.parametrize("tasks", [2, 3, 4])
@pytest.mark.parametrize("subchunks", [1, 3])
async def test_each_task_sends_its_share_to_the_next(tasks: int, subchunks: int) -> None:
    tensors = []
    for index in range(tasks):
        with af.device(task(index)):
            tensors.append(af.Variable(np.full((1200, 120), index + 1.0)).read_value())
    results = [r.op for r in all_reduce(tensors, subchunks=subchunks)]
    async with cluster(*["worker"] * tasks) as servers, af.Session(servers[0].target) as session:
        messages = sent(session, results)
    assert messages.keys() == {(i, (i + 1) % tasks) for i in range(tasks)}
    for sizes in messages.values():
        assert sum(sizes) == 2 * (tasks - 1) * 1200 * 120 * 8 / tasks
        assert len(sizes) == 2 * (tasks - 1) * subchunks


async def test_small_tensors_share_a_message() -> None:
    rows: list[Any] = []
    for index in range(2):
        with af.device(task(index)):
            rows.append([af.Variable(np.zeros(4)).read_value() for _ in range(10)])
    results = [r.op for row in all_reduce(rows) for r in row]
    async with cluster("worker", "worker") as servers, af.Session(servers[0].target) as session:
        messages = sent(session, results)
    assert messages == {(0, 1): [160, 160], (1, 0): [160, 160]}


# ── training ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("replicas", [2, 3, 4])
async def test_replicas_train_like_one_model(replicas: int) -> None:
    """Each task has its own copy of the weights and a share of the batch; NumPy has the whole batch."""
    rng = np.random.default_rng(0)
    inputs, targets = rng.standard_normal((24, 5)), rng.standard_normal((24, 1))
    shares = np.split(inputs, replicas), np.split(targets, replicas)
    weights, gradients = [], []
    for index, (x, y) in enumerate(zip(*shares, strict=True)):
        with af.device(task(index)):
            w = af.Variable(np.zeros((5, 1)), name=f"weights_{index}")
            loss = af.reduce_mean(af.square(af.matmul(x, w) - y))
            gradients.append(af.gradients(loss, [w])[0])
            weights.append(w)
    means = all_reduce(gradients, "mean")
    step = af.group(*[af.assign_sub(w, 0.1 * g) for w, g in zip(weights, means, strict=True)])
    async with cluster(*["worker"] * replicas) as servers, af.Session(servers[-1].target) as session:
        await session.run(af.global_variables_initializer())
        for _ in range(20):
            await session.run(step)
        found = await session.run(weights)
    expected = np.zeros((5, 1))
    for _ in range(20):
        expected -= 0.1 * 2 * inputs.T @ (inputs @ expected - targets) / len(inputs)
    for value in found:
        np.testing.assert_array_equal(value, found[0])  # the same bits, without a parameter server
        np.testing.assert_allclose(value, expected, rtol=1e-12)


# ── rejected arguments ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tensors", "options", "message"),
    [
        ([], {}, "nothing to reduce"),
        ([[1.0], [2.0]], {"op": "median"}, "unknown reduction"),
        ([[1.0], [2.0]], {"subchunks": 0}, "subchunks is out of range"),
        ([np.zeros(3), np.zeros(4)], {}, "different shapes"),
        ([np.zeros(3), np.zeros(3, np.float32)], {}, "different dtypes"),
        ([np.zeros(3), [np.zeros(3)]], {}, "not structured alike"),
        ([np.zeros(3, np.int32)] * 2, {"op": "mean"}, "no mean"),
        ([np.zeros(3, bool)] * 2, {}, "no sum"),
        (np.zeros(3), {}, "tensors"),
    ],
)
def test_invalid_arguments_are_rejected(tensors: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((af.errors.InvalidArgumentError, af.errors.DTypeError), match=message):
        all_reduce(tensors, **options)


@pytest.mark.parametrize("sizes", [(1, 3), (2, 4), (0, 1), (1, 2), (3, 4)])
async def test_tensors_of_different_sizes_are_an_error_of_the_step(sizes: tuple[int, int]) -> None:
    """Sizes whose chunks would broadcast are an error, too."""
    tensors, feeds = fed([np.ones(n) for n in sizes])
    async with local(2) as session:
        with pytest.raises(af.errors.InvalidArgumentError):
            await session.run(all_reduce(tensors), feeds)
