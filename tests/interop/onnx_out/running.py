"""Helpers that export a built graph, run the model elsewhere, and compare the results with a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

import aioflow as af
from aioflow.interop.onnx import export

Arrays: TypeAlias = Sequence[NDArray[Any]]
# Called with a model and its feeds; returns the outputs.
Runner: TypeAlias = Callable[[onnx.ModelProto, Mapping[str, NDArray[Any]]], Arrays | Awaitable[Arrays]]


async def compare(
    build: Callable[..., Any],
    arrays: Arrays,
    run: Runner,
    *,
    dynamic: bool = False,
    tolerance: float = 1e-5,
    opset: int = 20,
) -> onnx.ModelProto:
    """Check that the model computes the values, dtypes and shapes of a session. Return the model.

    Args:
        build: Called with placeholders, one per array; returns a tensor or several.
        arrays: Values of the placeholders.
        run: Computes the exported model.
        dynamic: Whether all sizes are unknown when the graph is built.
        tolerance: Relative and absolute tolerance for floats; other dtypes must be equal.
        opset: ONNX opset to export.
    """
    with af.Graph().as_default() as graph:
        inputs = {}
        for i, array in enumerate(arrays):
            shape = [None] * array.ndim if dynamic else array.shape
            inputs[f"input_{i}"] = af.placeholder(af.as_dtype(array.dtype), shape, name=f"given_{i}")
        made = build(*inputs.values())
    outputs = {f"output_{i}": t for i, t in enumerate(made if isinstance(made, list | tuple) else [made])}
    async with af.Session(graph=graph) as session:
        if graph.get_collection(af.GraphKeys.GLOBAL_VARIABLES):
            with graph.as_default():
                initializer = af.global_variables_initializer()
            await session.run(initializer)
        wanted = await session.run(list(outputs.values()), dict(zip(inputs.values(), arrays, strict=True)))
        model = await export(session, outputs, inputs, opset=opset)
    check(model, list(inputs), list(outputs))
    given = run(model, dict(zip(inputs, map(np.asarray, arrays), strict=True)))
    found = await given if isawaitable(given) else given
    for ours, theirs in zip(wanted, found, strict=True):
        same(ours, theirs, tolerance)
    return model


def check(model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Check that the model is valid, with consistent shapes and exactly these inputs and outputs."""
    if all(value.type.tensor_type.HasField("shape") for value in (*model.graph.input, *model.graph.output)):
        onnx.checker.check_model(model, full_check=True)  # does not support values of unknown rank
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    assert [value.name for value in model.graph.input] == list(inputs)
    assert [value.name for value in model.graph.output] == list(outputs)


def same(ours: Any, theirs: Any, tolerance: float) -> None:
    """Assert that both values have one shape and dtype and equal elements."""
    given, other = np.asarray(ours), np.asarray(theirs)
    assert other.shape == given.shape
    if given.dtype == object:
        # Strings arrive as `str` or as `bytes`.
        texts = [t.decode() if isinstance(t, bytes) else t for t in given.reshape(-1)]
        others = [t.decode() if isinstance(t, bytes) else t for t in other.reshape(-1)]
        assert others == texts
        return
    assert other.dtype == given.dtype
    if given.dtype.kind in "biu":
        np.testing.assert_array_equal(other, given)
    else:
        np.testing.assert_allclose(other.astype(np.float64), given.astype(np.float64), rtol=tolerance, atol=tolerance)
