"""Optional inputs of ONNX models, which have an initializer, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.interop import onnx
from tests.interop.onnx.test_optional_inputs import ADD, parse

X = np.array([1, 2, 3], np.float32)
ONE = np.array([1])
MODELS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "add": (ADD, [{}, {"w": X}, {"w": X[:1]}]),
    "reshape": (
        "g (float[N] x, int64[2] s) => (float[A, B] y) <int64[2] s = {3, 1}> { y = Reshape(x, s) }",
        [{}, {"s": np.array([1, 3])}],
    ),
    "axes": ("g (float[N] x, int64[1] a) => (float y) <int64[1] a = {0}> { y = ReduceSum(x, a) }", [{}, {"a": -ONE}]),
    "top": (
        """g (float[N] x, int64[1] k, float[3] w) => (float[K] y, int64[K] i) <int64[1] k = {2}, float[3] w = {0, 0, 0}>
        { z = Add(x, w)  y, i = TopK(z, k) }""",
        [{}, {"k": ONE, "w": -X}],
    ),
    "slice": (
        """g (float[N] x, int64[1] a, int64[1] b) => (float[M] y) <int64[1] a = {0}, int64[1] b = {2}>
        { y = Slice(x, a, b) }""",
        [{}, {"b": ONE}, {"a": ONE}],
    ),
    "output": (
        "g (float[N] x, float[3] w) => (float[3] w, float[N] y) <float[3] w = {1, 2, 3}> { y = Identity(x) }",
        [{}, {"w": -X}],
    ),
    "branch": (
        """g (float[N] x, float[3] w, bool b) => (float[N] y) <float[3] w = {1, 1, 1}, bool b = {1}>
        { y = If <then_branch = t () => (float[3] p) { p = Add(x, w) },
                  else_branch = e () => (float[3] q) { q = Sub(x, w) }> (b) }""",
        [{}, {"b": np.array(False)}, {"w": X}],
    ),
}


@pytest.mark.parametrize("name", MODELS)
async def test_optional_inputs(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    text, cases = MODELS[name]
    model = parse(text)
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    loaded = onnx.load(model)
    signature = loaded.signature()
    assert list(loaded.inputs) == [each.name for each in theirs.get_inputs()]
    assert list(loaded.optional) == [each.name for each in theirs.get_overridable_initializers()]
    async with aioflow.Session(graph=loaded.graph) as ours:
        for case in cases:
            feeds = {"x": X, **case}
            found = await ours.run(loaded.outputs, {signature.all_inputs[key]: value for key, value in feeds.items()})
            for value, wanted in zip(found.values(), theirs.run(None, feeds), strict=True):
                np.testing.assert_array_equal(value, wanted)
