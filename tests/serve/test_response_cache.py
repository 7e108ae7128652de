"""The cache of responses: its hits, its limit, and the models that must not have one."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DeadlineExceededError, InvalidArgumentError, OpError
from aioflow.serve import ModelOptions, Repository
from aioflow.serve.models import ServedModel
from aioflow.serve.protocol import InferRequest, RequestedOutput
from aioflow.serve.response_cache import ResponseCache
from tests.serve.folders import rows, save_model, scaled
from tests.serve.service import asked, families, serving, values
from tests.support.waiting import eventually

OPTIONS = ModelOptions(response_cache=1 << 20)


async def test_equal_requests_are_computed_once(tmp_path: Path) -> None:
    folder = await save_model(tmp_path / "m", scaled(2))
    async with serving({"m": folder}, OPTIONS) as (_, client):
        for _ in range(3):
            response = await client.post("/v2/models/m/infer", json=asked(rows()))
            np.testing.assert_allclose(values(response), rows() * 2, rtol=1e-6)
        await client.post("/v2/models/m/infer", json=asked(rows(seed=1)))
        (found,) = (await client.get("/v2/models/m/stats")).json()["model_stats"]
        assert found["execution_count"] == 2
        stats = found["inference_stats"]
        assert [stats[name]["count"] for name in ("success", "cache_hit", "cache_miss")] == [4, 2, 2]
        metrics = await families(client)
        assert metrics["aioflow_cache_lookups_total"] == {("m", "hit", "1"): 2, ("m", "miss", "1"): 2}
        assert metrics["aioflow_cache_bytes"]["m", "1"] > 0
        # A reload empties it: the new version may answer otherwise.
        shutil.rmtree(folder)
        await save_model(folder, scaled(3))
        await client.post("/v2/repository/models/m/load")
        response = await client.post("/v2/models/m/infer", json=asked(rows()))
        np.testing.assert_allclose(values(response), rows() * 3, rtol=1e-6)


class HeldCalls:
    """The calls of a model, each of which waits until its future in `begun` has an outcome, which may be an error."""

    def __init__(self, model: ServedModel) -> None:
        self._calls = model.calls[model.signature_name]
        model.calls = {model.signature_name: self}  # type: ignore[dict-item]  # stands for SignatureCalls
        self.begun: list[asyncio.Future[None]] = []

    async def __call__(self, *given: Any) -> Any:
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begun.append(outcome)
        await outcome
        return await self._calls(*given)


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[tuple[ServedModel, HeldCalls]]:
    """Yield a model with a cache, and its held calls."""
    async with Repository({"m": await save_model(tmp_path / "m", scaled(2))}, OPTIONS) as repository:
        await repository.load_all()
        with repository.used("m") as model:
            yield model, HeldCalls(model)


async def test_concurrent_equal_requests_share_one_computation(held: tuple[ServedModel, HeldCalls]) -> None:
    model, calls = held
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(model.infer(InferRequest({"x": rows()}, priority=1))) for _ in range(4)]
        urgent = group.create_task(model.infer(InferRequest({"x": rows()}, priority=0)))
        await eventually(lambda: len(calls.begun) == 2)
        with pytest.raises(DeadlineExceededError, match="not answered in time"):
            await model.infer(InferRequest({"x": rows()}, timeout=0.01, priority=1))
        tasks[1].cancel()  # a waiter
        for each in calls.begun:
            each.set_result(None)
    for task in (tasks[0], *tasks[2:], urgent):
        np.testing.assert_allclose(task.result().outputs["y"], rows() * 2, rtol=1e-6)
        assert not task.result().outputs["y"].flags.writeable
    assert model.cache is not None
    assert (len(calls.begun), model.cache.hits, model.cache.misses) == (2, 2, 2)


@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_another_waiter_computes_if_the_first_request_ends(held: tuple[ServedModel, HeldCalls], how: str) -> None:
    model, calls = held
    async with asyncio.TaskGroup() as group:
        first = group.create_task(quiet(model.infer(InferRequest({"x": rows()}))))
        others = [group.create_task(model.infer(InferRequest({"x": rows()}))) for _ in range(3)]
        await eventually(lambda: len(calls.begun) == 1)
        if how == "cancelled":
            first.cancel()
        else:
            calls.begun[0].set_exception(DeadlineExceededError("late"))
        await eventually(lambda: len(calls.begun) == 2)
        calls.begun[1].set_result(None)
    for task in others:
        np.testing.assert_allclose(task.result().outputs["y"], rows() * 2, rtol=1e-6)
    assert len(calls.begun) == 2


async def test_a_late_request_names_its_own_limit_although_it_waited(held: tuple[ServedModel, HeldCalls]) -> None:
    model, calls = held
    async with asyncio.TaskGroup() as group:
        first = group.create_task(quiet(model.infer(InferRequest({"x": rows()}))))
        await eventually(lambda: len(calls.begun) == 1)
        second = group.create_task(quiet(model.infer(InferRequest({"x": rows()}, timeout=60.0))))
        await asyncio.sleep(0)
        for number in range(2):
            await eventually(lambda number=number: len(calls.begun) > number)  # type: ignore[misc]  # bound at once
            calls.begun[number].set_exception(DeadlineExceededError("late", expected="at most the rest"))
    assert isinstance(first.result(), DeadlineExceededError)
    assert getattr(second.result(), "expected", None) == "at most 60.0 s"


async def test_an_error_ends_all_waiters_and_is_not_kept(held: tuple[ServedModel, HeldCalls]) -> None:
    model, calls = held
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(quiet(model.infer(InferRequest({"x": rows()})))) for _ in range(3)]
        await eventually(lambda: len(calls.begun) == 1)
        calls.begun[0].set_exception(InvalidArgumentError("refused"))
    errors = [task.result() for task in tasks]
    assert [getattr(each, "message", None) for each in errors] == ["refused"] * 3
    assert len({id(each) for each in errors}) == 3
    async with asyncio.TaskGroup() as group:
        again = group.create_task(model.infer(InferRequest({"x": rows()})))
        await eventually(lambda: len(calls.begun) == 2)
        calls.begun[1].set_result(None)
    np.testing.assert_allclose(again.result().outputs["y"], rows() * 2, rtol=1e-6)


async def quiet(call: Awaitable[object]) -> object:
    """Return the result of a call, or its error."""
    try:
        return await call
    except OpError as error:
        return error


def two_texts() -> tuple[Mapping[str, af.Tensor], Mapping[str, af.Tensor]]:
    a, b = (af.placeholder("string", [None], name=name) for name in "ab")
    return {"a": a, "b": b}, {"ab": af.strings.join([a, b]), "ba": af.strings.join([b, a])}


async def test_requests_that_differ_share_no_response(tmp_path: Path) -> None:
    async with Repository({"m": await save_model(tmp_path / "m", two_texts)}, OPTIONS) as repository:
        await repository.load_all()
        with repository.used("m") as model:
            for a, b in (([b"x", b"yz"], [b"", b""]), ([b"xy", b"z"], [b"", b""]), ([b"", b""], [b"x", b"yz"])):
                inputs = {"a": np.array(a, object), "b": np.array(b, object)}
                for name, first, second in (("ab", a, b), ("ba", b, a)):
                    answer = await model.infer(InferRequest(inputs, [RequestedOutput(name)]))
                    assert answer.outputs[name].tolist() == [i + j for i, j in zip(first, second, strict=True)]
            assert model.cache is not None
            assert (model.cache.hits, model.cache.misses) == (0, 6)


async def test_least_recently_used_response_is_dropped(tmp_path: Path) -> None:
    options = ModelOptions(response_cache=1200)  # two responses of 12 bytes, with their overhead
    async with Repository({"m": await save_model(tmp_path / "m", scaled(2))}, options) as repository:
        await repository.load_all()
        with repository.used("m") as model:
            cache = model.cache
            assert cache is not None
            for seed in (0, 1, 0, 2, 0, 1):
                await model.infer(InferRequest({"x": rows(seed=seed)}))
                assert cache.bytes <= 1200
            assert (cache.hits, cache.misses) == (2, 4)
            await model.infer(InferRequest({"x": rows(1000)}))  # larger than the cache
            assert (cache.bytes, cache.misses) == (2 * (512 + 12), 5)


def test_strings_count_with_the_memory_of_their_objects() -> None:
    cache = ResponseCache(100_000)
    for key in range(100):
        cache.put(bytes([key]), {"t": np.array([b"%d" % (key * 1000 + each) for each in range(100)], np.object_)})
    kept = [found["t"] for key in range(100) if (found := cache.get(bytes([key]))) is not None]
    assert kept
    assert sum(sys.getsizeof(each) for array in kept for each in array.tolist()) <= 100_000


def counting() -> tuple[Mapping[str, af.Tensor], Mapping[str, af.Tensor]]:
    x = af.placeholder("float32", [None, 3], name="x")
    return {"x": x}, {"y": x + af.assign_add(af.Variable(np.float32(0)), 1.0)}


def noisy() -> tuple[Mapping[str, af.Tensor], Mapping[str, af.Tensor]]:
    x = af.placeholder("float32", [None, 3], name="x")
    return {"x": x}, {"y": x + af.random_normal([3])}


def reading() -> tuple[Mapping[str, af.Tensor], Mapping[str, af.Tensor]]:
    x = af.placeholder("string", [], name="x")
    return {"x": x}, {"y": af.io.read_file(x)}


@pytest.mark.parametrize("build", [counting, noisy, reading])
async def test_models_with_other_results_each_time_are_refused(tmp_path: Path, build: object) -> None:
    folder = await save_model(tmp_path / "m", build)  # type: ignore[arg-type]  # a builder
    async with Repository({"m": folder}, OPTIONS) as repository:
        with pytest.raises(InvalidArgumentError, match="cannot be cached"):
            await repository.load("m")
