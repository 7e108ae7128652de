"""Tests of parts whose sizes are known only when the inputs arrive."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow_onnxruntime import sessions
from aioflow_onnxruntime.kernels import Delegated
from tests.backends.onnxruntime.steps import BY_ONNXRUNTIME, floats, layers, run_twice
from tests.interop.onnx_out.running import same

_HEADS, _DEPTH = 4, 8


def attention(x: af.Tensor, mask: af.Tensor) -> af.Tensor:
    """Return an attention layer over [rows, steps, 32] with computed head shapes, as exporters write it."""
    rows, steps = af.unstack(af.shape(x)[:2])
    weights = [af.constant(floats(32, 32) / np.float32(6)) for _ in range(4)]

    def heads(weight: af.Tensor) -> af.Tensor:
        product = af.reshape(af.matmul(af.reshape(x, [-1, 32]), weight), af.stack([rows, steps, _HEADS, _DEPTH]))
        return af.transpose(product, [0, 2, 1, 3])

    query, key, value = map(heads, weights[:3])
    seen = af.nn.softmax(af.matmul(query, key, transpose_b=True) / np.float32(np.sqrt(_DEPTH)) + mask)
    merged = af.reshape(af.transpose(af.matmul(seen, value), [0, 2, 1, 3]), [-1, 32])
    return x + af.reshape(af.matmul(merged, weights[3]), af.shape(x))


def masks(rows: int, steps: int) -> Any:
    return np.where(np.arange(steps) < steps - 1, 0, -1e9).astype(np.float32) * np.ones((rows, 1, 1, 1), np.float32)


async def test_net_with_open_rows_and_steps_is_one_part(
    parts: list[Delegated], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, mask = af.placeholder("float32", [None, None, 32]), af.placeholder("float32", [None, 1, 1, None])
    y = attention(attention(x, mask), mask)
    ran: list[Any] = []
    original = sessions.EnginePart.run

    def noted(part: sessions.EnginePart, values: Any) -> Any:
        ran.append(values)
        return original(part, values)

    monkeypatch.setattr(sessions.EnginePart, "run", noted)
    async with af.Session(config=BY_ONNXRUNTIME) as session, af.Session() as ours:
        for shape in [(2, 5), (2, 5), (1, 1), (3, 9), (0, 4)]:
            feeds = {x: floats(*shape, 32), mask: masks(*shape)}
            _, found = await run_twice(session, parts, y, feeds)
            same(await ours.run(y, feeds), found, 1e-5)
            assert ran.pop() is not None
        assert len(parts) == 1
        wrong = {x: floats(2, 5, 32), mask: masks(2, 3)}
        errors: list[af.errors.InvalidArgumentError] = []
        for each in (session, ours):
            with pytest.raises(af.errors.InvalidArgumentError) as caught:
                await each.run(y, wrong)
            errors.append(caught.value)
        assert errors[0].node == errors[1].node
        same(await ours.run(y, feeds), await session.run(y, feeds), 1e-5)


async def test_unread_outputs_do_not_exclude_a_node(parts: list[Delegated]) -> None:
    """An example is a batch normalization, one of whose outputs has an unknown shape until it is computed."""
    x = images = af.placeholder("float32", [None, 8, 8, 4])
    means, variances = floats(8), np.ones(8, np.float32)
    for channels in (4, 8):
        images = af.nn.conv2d(images, af.constant(floats(3, 3, channels, 8) / 6), [1, 1, 1, 1], "SAME")
        normal = af.raw_ops.FusedBatchNormV3(
            x=images, scale=floats(8), offset=floats(8), mean=means, variance=variances, is_training=False
        )
        images = af.nn.relu(normal.y)
    halves = af.split(images, [3, 5], axis=3)
    async with af.Session(config=BY_ONNXRUNTIME) as session:
        for rows in (2, 5):
            before, found = await run_twice(session, parts, halves[1], {x: floats(rows, 8, 8, 4)})
            same(before, found, 1e-5)
            assert len(parts) == 1
            assert len([node for node in parts[0].graph.nodes.values() if node.op == "FusedBatchNormV3"]) == 2


async def test_memory_error_names_the_node_that_grows(parts: list[Delegated]) -> None:
    rows, columns = af.placeholder("float32", [None, 1]), af.placeholder("float32", [1, None])
    table = af.multiply(af.tanh(rows), columns, name="table")
    y = af.tanh(table) + 1.0
    config = af.SessionConfig(delegate="onnxruntime", max_value_bytes=100 * 100 * 4)
    async with af.Session(config=config) as session:
        await run_twice(session, parts, y, {rows: floats(100, 1), columns: floats(1, 100)})
        with pytest.raises(af.errors.ResourceExhaustedError) as caught:
            await session.run(y, {rows: floats(101, 1), columns: floats(1, 100)})
        assert caught.value.node == "table"


async def test_size_given_as_a_value_is_not_cached_across_calls(parts: list[Delegated]) -> None:
    x, shape = af.placeholder("float32", [None, None]), af.placeholder("int32", [2])
    y = af.tanh(af.reshape(af.tanh(x), shape)) * 2.0
    async with af.Session(config=BY_ONNXRUNTIME) as session, af.Session() as ours:
        for sizes in [(4, 8), (2, 16), (1, 32), (4, 8)]:
            feeds = {x: floats(8, 4), shape: np.array(sizes, np.int32)}
            _, found = await run_twice(session, parts, y, feeds)
            same(await ours.run(y, feeds), found, 1e-5)


async def test_number_of_remembered_shapes_is_limited(parts: list[Delegated], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_REMEMBERED", 4)
    x = af.placeholder("float32", [None, 8])
    y = layers(x, 8)
    async with af.Session(config=BY_ONNXRUNTIME) as session:
        await run_twice(session, parts, y, {x: floats(1, 8)})
        async with asyncio.TaskGroup() as tg:
            for rows in range(30):
                tg.create_task(session.run(y, {x: floats(rows, 8)}))
        [part] = parts
        assert part.part is not None
        assert len(part.part._largest) <= 4
