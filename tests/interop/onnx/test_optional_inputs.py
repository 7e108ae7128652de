"""Inputs of ONNX models with an initializer, which is their default value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, parser

import aioflow as af
from aioflow.errors import InvalidArgumentError
from aioflow.interop import onnx
from aioflow.interop.onnx import backend
from aioflow.interop.unsupported import UnsupportedError

X = np.array([1, 2, 3], np.float32)
ADD = "g (float[N] x, float[K] w) => (float[M] y) <float[1] w = {10}> { y = Add(x, w) }"

__all__ = ["ADD", "parse"]


def parse(text: str, ir_version: int = 9) -> ModelProto:
    return parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": 18]>\n{text}')


async def run(loaded: Any, **feeds: Any) -> Any:
    inputs = loaded.signature().all_inputs
    async with af.Session(graph=loaded.graph) as session:
        return (await session.run(loaded.outputs, {inputs[name]: value for name, value in feeds.items()}))["y"]


async def test_optional_input_has_a_default_and_can_be_fed() -> None:
    loaded = onnx.load(parse(ADD))
    assert (list(loaded.inputs), list(loaded.optional)) == (["x"], ["w"])
    assert list(loaded.signature().all_inputs) == ["x", "w"]
    assert loaded.optional["w"].dims == (None,)
    np.testing.assert_array_equal(await run(loaded, x=X), X + 10)
    np.testing.assert_array_equal(await run(loaded, x=X, w=X), X + X)


async def test_inputs_with_an_initializer_are_weights_before_format_4() -> None:
    loaded = onnx.load(parse(ADD, 3))
    assert (list(loaded.inputs), list(loaded.optional)) == (["x"], [])
    np.testing.assert_array_equal(await run(loaded, x=X), X + 10)


async def test_values_needed_by_the_import_are_constants() -> None:
    text = """g (float[N] x, int64[A] axes, float[K] w, int64[1] axis) => (float[M, 1] y)
        <int64[1] axes = {1}, float[1] w = {10}, int64[1] axis = {0}>
        { h = Add(x, w)  e = Unsqueeze(h, axis)  s = Squeeze(e, axis)  y = Unsqueeze(s, axes) }"""
    loaded = onnx.load(parse(text))
    assert list(loaded.optional) == ["w"]  # `axes` has an unknown number of elements
    np.testing.assert_array_equal(await run(loaded, x=X, w=X), (X + X)[:, None])


def test_optional_inputs_do_not_hide_unsupported_ops() -> None:
    text = "g (float[N] x, int64[A] axes) => (float y) <int64[1] axes = {1}> { h = Unsqueeze(x, axes)  y = Nothing(h) }"
    with pytest.raises(UnsupportedError) as caught:
        onnx.load(parse(text))
    assert [each.op for each in caught.value.unsupported] == ["Nothing"]


async def test_trained_weights_are_variables_and_not_inputs() -> None:
    loaded = onnx.load(parse(ADD), trainable=True)
    assert (list(loaded.optional), list(loaded.variables)) == ([], ["w"])
    number = onnx.load(parse("g (int64[N] x, int64[1] w) => (int64[N] y) <int64[1] w = {2}> { y = Add(x, w) }"))
    assert list(number.optional) == ["w"]


def test_the_error_for_a_default_of_another_shape_names_the_input() -> None:
    with pytest.raises(InvalidArgumentError, match="input 'w'"):
        onnx.load(parse("g (float[N] x, float[4] w) => (float[M] y) <float[1] w = {10}> { y = Add(x, w) }"))


def test_backend_takes_optional_inputs_last_or_by_name() -> None:
    rep = backend.prepare(parse(ADD))
    try:
        for given, wanted in (([X], X + 10), ([X, X], X + X), ({"w": X, "x": X}, X + X)):
            np.testing.assert_array_equal(rep.run(given)[0], wanted)
        for wrong in ([], {"w": X}, {"x": X, "z": X}, [X, X, X]):
            with pytest.raises(InvalidArgumentError, match="not those of the model"):
                rep.run(wrong)
    finally:
        rep.close()


async def test_saved_models_have_the_default(tmp_path: Path) -> None:
    loaded = onnx.load(parse(ADD))
    async with af.Session(graph=loaded.graph) as session:
        await af.saved.save(session, tmp_path / "m", loaded.signature())
        proto = await onnx.export(loaded, session=session)
    for again in (af.saved.load(tmp_path / "m"), onnx.load(proto)):
        np.testing.assert_array_equal(await run(again, x=X), X + 10)
