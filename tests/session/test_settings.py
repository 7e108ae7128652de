"""Tests that wrong settings and time limits are rejected at once, by name."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow import errors
from aioflow.net.comm import CommOptions
from aioflow.net.transports import connect

WRONG: dict[str, list[Any]] = {
    "allow_soft_placement": [1, "yes", None],
    "log_device_placement": [1, "yes", None],
    "inline_budget": ["fast", None, math.nan],
    "yield_every": ["often", None, math.nan],
    "threads": [-3, -1, 1.5, "2", None, True],
    "switch_interval": ["often", 0, -1.0, math.nan],
    "check_finite": ["yes", 0],
    "plan_cache_size": [0, -1, 2.5, "many", None],
    "operation_timeout": ["long", math.nan, True, [1], 10**400],
    "executor": ["foo", None, 1],
    "device_count": [2, {"CPU": "2"}, {"CPU": -1}, {"CPU": 1.5}, {1: 1}, None, ["CPU"]],
    "optimizations": [1, None, {"arithmetic": 1}, ["arithmetic"]],
    "placement": [None, 1],
    "replace_after": [-1, "never", 0.5],
    "compression": [True, 16],
    "fetch_to_host": ["no", None],
    "reproducible": ["yes", 0],
    "delegate": [1, True, ["onnxruntime"]],
    "max_value_bytes": [-1, "1 GB", 1e9],
    "partial_runs": [0, -1, 1.5, None],
    "partial_run_timeout": ["long", math.nan, True],
}
CASES = [pytest.param(name, value, id=f"{name}={value!r:.20}") for name, values in WRONG.items() for value in values]


def test_every_setting_has_wrong_values() -> None:
    assert list(WRONG) == [field.name for field in dataclasses.fields(af.SessionConfig)]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_wrong_setting_is_named_in_the_error(name: str, value: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        af.SessionConfig(**{name: value})
    assert f"SessionConfig.{name}" in caught.value.message
    assert caught.value.expected is not None
    assert caught.value.actual is not None


@pytest.mark.parametrize(
    "settings",
    [
        {"threads": np.int64(2), "operation_timeout": np.float32(0.5)},
        {"operation_timeout": math.inf, "inline_budget": -1.0},
        {"operation_timeout": 0, "switch_interval": None, "max_value_bytes": None},
        {"device_count": {"GPU": 0}, "optimizations": {"arithmetic": False}},
    ],
)
def test_valid_settings_are_accepted(settings: dict[str, Any]) -> None:
    config = af.SessionConfig(**settings)
    assert {name: getattr(config, name) for name in settings} == settings


@pytest.mark.parametrize(
    "settings", [{"placement": "nearest"}, {"compression": "zip"}, {"optimizations": {"faster": True}}]
)
def test_session_rejects_unknown_setting_values(settings: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidArgumentError) as caught:
        af.Session(config=af.SessionConfig(**settings))
    assert "one of" in caught.value.expected or "among" in caught.value.expected


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (lambda: af.Session(af.Graph()), "Session(graph=graph)"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: af.Session(graph="x"), "Session(graph=graph)"),  # type: ignore[arg-type]
        (lambda: af.Session(config={}), "Session(config=aioflow.SessionConfig("),  # type: ignore[arg-type]
        (lambda: af.Session(config=1), "Session(config=aioflow.SessionConfig("),  # type: ignore[arg-type]
    ],
)
def test_session_error_shows_the_correct_call(wrong: Callable[[], Any], right: str) -> None:
    with pytest.raises(errors.DTypeError) as caught:
        wrong()
    assert right in caught.value.expected


# ── time limits ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def _run(session: af.Session, x: af.Tensor, seconds: Any) -> None:
    await session.run(x, timeout=seconds)


async def _stream(session: af.Session, x: af.Tensor, seconds: Any) -> None:
    session.stream(x, timeout=seconds)


async def _partial_run(session: af.Session, x: af.Tensor, seconds: Any) -> None:
    y = x + 1.0
    handle = await session.partial_run_setup(y, [x])
    try:
        await session.partial_run(handle, y, {x: 1.0}, timeout=seconds)
    finally:
        await session.partial_run(handle, y, {x: 1.0})


async def _options(session: af.Session, x: af.Tensor, seconds: Any) -> None:
    await session.run(x, options=af.RunOptions(timeout=seconds))


async def _coroutine(session: af.Session, x: af.Tensor, seconds: Any) -> None:
    af.py_coroutine(asyncio.sleep, [x], [], timeout=seconds)


async def _retries(session: af.Session, x: af.Tensor, count: Any) -> None:
    af.py_coroutine(asyncio.sleep, [x], [], retries=count)


async def _join(session: af.Session, x: af.Tensor, seconds: Any) -> None:
    async with af.train.Coordinator() as coord:
        await coord.join(stop_grace_period_secs=seconds)


async def _wait_for_stop(session: af.Session, x: af.Tensor, seconds: Any) -> None:
    await af.train.Coordinator().wait_for_stop(seconds)


async def _connect(session: af.Session, x: af.Tensor, seconds: Any) -> None:
    await connect("inproc://nobody", seconds)


async def _session_connect(session: af.Session, x: af.Tensor, seconds: Any) -> None:
    await session.connect(wait=seconds)


async def _connect_timeout(session: af.Session, x: af.Tensor, seconds: Any) -> None:
    af.Session("aioflow://127.0.0.1:1", connect_timeout=seconds)


async def _comm(session: af.Session, x: af.Tensor, seconds: Any) -> None:
    CommOptions(close_timeout=seconds)


async def _saver(session: af.Session, x: af.Tensor, hours: Any) -> None:
    af.train.Saver([af.Variable(1.0)], keep_checkpoint_every_n_hours=hours)


TIMED: dict[str, Callable[[af.Session, af.Tensor, Any], Awaitable[None]]] = {
    "run": _run,
    "options": _options,
    "stream": _stream,
    "partial run": _partial_run,
    "coroutine": _coroutine,
    "retries": _retries,
    "join": _join,
    "wait for a stop": _wait_for_stop,
    "connect": _connect,
    "connect of a session": _session_connect,
    "connect timeout": _connect_timeout,
    "comm": _comm,
    "saver": _saver,
}


NO_TIME = {"text": "a", "nan": math.nan, "list": [1.0], "bool": True, "huge": 10**400}
NO_TIMES = [(where, wrong) for where in TIMED for wrong in NO_TIME if (where, wrong) != ("retries", "huge")]


@pytest.mark.parametrize(("where", "wrong"), NO_TIMES)
async def test_invalid_timeout_is_rejected_and_the_session_stays_usable(where: str, wrong: str) -> None:
    x = af.placeholder_with_default(1.0, [])
    async with af.Session() as session:
        with pytest.raises(errors.InvalidArgumentError) as caught:
            await TIMED[where](session, x, NO_TIME[wrong])
        assert caught.value.expected is not None
        assert caught.value.actual is not None
        assert await session.run(x, timeout=3600) == 1.0


@pytest.mark.parametrize("seconds", [0, -1.0, -math.inf])
@pytest.mark.parametrize("where", ["connect of a session", "connect timeout"])
async def test_nonpositive_wait_for_a_connection_is_rejected(where: str, seconds: Any) -> None:
    async with af.Session() as session:
        with pytest.raises(errors.InvalidArgumentError, match="out of range"):
            await TIMED[where](session, af.constant(1.0), seconds)


@pytest.mark.parametrize("seconds", [0, -1.0, np.float32(-1), -math.inf])
async def test_nonpositive_timeout_expires_at_once(seconds: Any) -> None:
    async with af.Session() as session:
        with pytest.raises(errors.DeadlineExceededError):
            await session.run(af.py_coroutine(asyncio.sleep, [3600.0], []), timeout=seconds)


@pytest.mark.parametrize("wrong", [{"options": 1}, {"options": {}}, {"options": af.RunOptions(), "run_metadata": {}}])
async def test_run_rejects_invalid_options_and_metadata(wrong: dict[str, Any]) -> None:
    async with af.Session() as session:
        with pytest.raises(errors.DTypeError, match=r"options|run_metadata"):
            await session.run(af.constant(1.0), **wrong)
