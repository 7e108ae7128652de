"""Outputs of ONNX models that are lists of dictionaries, as in scikit-learn's classifiers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import aioflow as af
from aioflow.errors import AioflowError, InvalidArgumentError
from aioflow.graph.labelled import LabelledTensor
from aioflow.interop import onnx
from aioflow.interop.model import Model
from aioflow.interop.onnx import backend
from aioflow.interop.unsupported import UnsupportedError
from tests.support.cancelling import cancel_at_each_turn
from tests.support.loops import on_each_loop

X = np.array([[0.25, 0.75], [0.5, 0.125]], np.float32)
ROWS = [{"a": 0.75, "b": 0.25}, {"a": 0.125, "b": 0.5}]

__all__ = ["zip_map"]


def zip_map(shape: Any = ("N", 2), *after: Any, **labels: Any) -> ModelProto:
    """Return a model that doubles and halves its input, and labels the columns."""
    key = TensorProto.STRING if "classlabels_strings" in labels else TensorProto.INT64
    rows = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    nodes = [
        helper.make_node("Add", ["x", "x"], ["twice"]),
        helper.make_node("Mul", ["twice", "half"], ["p"]),
        helper.make_node("ZipMap", ["p"], ["maps"], "zip", domain="ai.onnx.ml", **labels),
        *after,
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None if shape is None else list(shape))],
        [helper.make_value_info("maps", helper.make_sequence_type_proto(rows))],
        [helper.make_tensor("half", TensorProto.FLOAT, [], [0.5])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def labelled(model: Model) -> LabelledTensor:
    found: Any = model.outputs["maps"]
    assert isinstance(found, LabelledTensor)
    return found


async def run(model: ModelProto, x: Any) -> Any:
    loaded = onnx.load(model)
    async with af.Session(graph=loaded.graph) as session:
        return (await session.run(loaded.outputs, {loaded.inputs["x"]: x}))["maps"]


async def test_run_returns_a_dictionary_for_each_row() -> None:
    assert await run(zip_map(classlabels_strings=["b", "a"]), X) == ROWS
    found = await run(zip_map(classlabels_int64s=[7, 3]), X)
    assert found == [{7: 0.25, 3: 0.75}, {7: 0.5, 3: 0.125}]
    assert [list(row) for row in found] == [[3, 7], [3, 7]]  # sorted, as in onnxruntime
    assert await run(zip_map(classlabels_int64s=[7, 7]), X) == [{7: 0.25}, {7: 0.5}]
    assert await run(zip_map(classlabels_int64s=[7, 3]), X[:0]) == []


@pytest.mark.parametrize("shape", [None, [2], ["N"]])
async def test_run_takes_a_vector_as_one_row(shape: Any) -> None:
    assert await run(zip_map(shape, classlabels_strings=["b", "a"]), X[0]) == ROWS[:1]


async def test_large_outputs_become_the_same_dictionaries() -> None:
    x = np.random.default_rng(0).random((70_000, 2)).astype(np.float32)  # converted in a thread
    assert await run(zip_map(classlabels_int64s=[0, 1]), x) == [{0: a, 1: b} for a, b in x.tolist()]


async def test_every_kind_of_fetch_returns_dictionaries() -> None:
    model = onnx.load(zip_map(classlabels_strings=["b", "a"]))
    x, maps = model.inputs["x"], labelled(model)
    async with af.Session(graph=model.graph) as session:
        assert await session.run(maps, {x: X}) == ROWS
        twice, again, tensor = await session.run([maps, (maps,), maps.values], {x: X})
        assert (twice, again) == (ROWS, (ROWS,))
        np.testing.assert_array_equal(tensor, X)
        assert await session.make_callable(maps, [x])(X) == ROWS
        batched = session.batched({"maps": maps}, [x])
        assert (await batched(X))["maps"] == ROWS
        async with session.stream(maps, [{x: X}]) as stream:
            assert [each async for each in stream] == [ROWS]


async def test_ops_take_the_values_of_labelled_columns() -> None:
    model = onnx.load(zip_map(classlabels_strings=["b", "a"]))
    maps = labelled(model)
    assert (maps.labels, maps.dims, maps.dtype) == (("b", "a"), (None, 2), af.float32)
    assert re.fullmatch(r"<LabelledTensor values=<.*> labels=\['b', 'a'\]>", repr(maps))
    with model.graph.as_default():
        best = af.argmax(model.outputs["maps"], 1)
    async with af.Session(graph=model.graph) as session:
        np.testing.assert_array_equal(await session.run(best, {model.inputs["x"]: X}), [1, 0])


async def test_saved_and_exported_models_have_the_values(tmp_path: Path) -> None:
    model = onnx.load(zip_map(classlabels_strings=["b", "a"]))
    async with af.Session(graph=model.graph) as session:
        await af.saved.save(session, tmp_path / "m", model.signature())
        proto = await onnx.export(model, session=session)
    for loaded in (af.saved.load(tmp_path / "m"), onnx.load(proto)):
        async with af.Session(graph=loaded.graph) as session:
            found = await session.run(loaded.outputs, {loaded.inputs["x"]: X})
        np.testing.assert_array_equal(found["maps"], X)


def test_backend_returns_dictionaries() -> None:
    [found] = backend.run_model(zip_map(classlabels_strings=["b", "a"]), [X])
    assert found == ROWS


@pytest.mark.parametrize(
    ("shape", "labels"),
    [
        (["N", 2], {"classlabels_int64s": [1, 2, 3]}),
        (["N", 2, 2], {"classlabels_int64s": [1, 2]}),
        (["N", 2], {}),
        (["N", 2], {"classlabels_int64s": [1, 2], "classlabels_strings": ["a", "b"]}),
    ],
)
def test_load_refuses_labels_that_do_not_fit(shape: list[Any], labels: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="labels") as caught:
        onnx.load(zip_map(shape, **labels))
    assert caught.value.node == "zip"


@pytest.mark.parametrize("shape", [None, ["N", "M"]])
async def test_step_refuses_columns_without_labels(shape: Any) -> None:
    with pytest.raises(AioflowError, match="shape"):
        await run(zip_map(shape, classlabels_int64s=[1, 2, 3]), X)


def test_load_refuses_ops_on_dictionaries() -> None:
    with pytest.raises(UnsupportedError, match="list of dictionaries"):
        onnx.load(zip_map(("N", 2), helper.make_node("Identity", ["maps"], ["copy"]), classlabels_int64s=[1, 2]))


@on_each_loop
async def test_a_fetch_of_many_dictionaries_may_be_cancelled_at_any_turn() -> None:
    model = onnx.load(zip_map(classlabels_int64s=[0, 1]))
    x = np.ones([40_000, 2], np.float32)

    async with af.Session(graph=model.graph) as session:

        async def work() -> None:
            assert len(await session.run(labelled(model), {model.inputs["x"]: x})) == len(x)

        await cancel_at_each_turn(work, work, turns=8)
