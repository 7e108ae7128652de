"""Models that are hostile or carelessly written: each raises an error of aioflow, without delay."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, SparseTensorProto, TensorProto, helper, numpy_helper

from aioflow.errors import DataLossError, DTypeError, InvalidArgumentError, OpError, ResourceExhaustedError
from aioflow.interop import onnx
from aioflow.interop.unsupported import UnsupportedError, UnsupportedOp
from tests.interop.onnx.test_hostile import outside, weighted
from tests.interop.onnx.test_loading import parse, run

# -- files ------------------------------------------------------------------------------------------------------------


def test_paths_that_are_not_files_are_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(InvalidArgumentError, match="no file"):
            onnx.load(path)
    for path in ("a\0b", "a" * 5000, tmp_path / "pipe" / "x"):
        with pytest.raises(OpError):
            onnx.load(path)
    for thing in (None, 3, bytearray(b"x")):
        with pytest.raises(DTypeError, match="the model"):
            onnx.load(thing)  # type: ignore[arg-type]


def test_weights_in_pipes_and_circular_links_are_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "here").symlink_to("there")
    (tmp_path / "there").symlink_to("here")
    for location in ("pipe", "here"):
        with pytest.raises(OpError, match="'w'"):
            onnx.load(outside(tmp_path, location=location))


# -- tensors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("external", [False, True])
def test_empty_weights_of_an_impossible_shape_are_rejected(tmp_path: Path, external: bool) -> None:
    weight = TensorProto(name="w", dims=[0, 1 << 62, 1 << 62], data_type=TensorProto.FLOAT, raw_data=b"")
    if external:
        (tmp_path / "nothing").write_bytes(b"")
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="nothing")
    (tmp_path / "model.onnx").write_bytes(weighted(weight).SerializeToString())
    with pytest.raises(InvalidArgumentError, match="an invalid shape"):
        onnx.load(tmp_path / "model.onnx")


@pytest.mark.parametrize("dtype", ["INT4", "UINT4", "FLOAT4E2M1"])
@pytest.mark.parametrize("data", [b"\x01", b"\x01\x02\x03", b"\x01" * 80])
def test_packed_elements_must_fill_their_shape(dtype: str, data: bytes) -> None:
    number = TensorProto.DataType.Value(dtype)
    for weight in (
        TensorProto(name="w", dims=[3], data_type=number, raw_data=data),
        TensorProto(name="w", dims=[3], data_type=number, int32_data=data),
    ):
        with pytest.raises(DataLossError, match="'w'"):
            onnx.load(weighted(weight))
    onnx.load(weighted(TensorProto(name="w", dims=[3], data_type=number, raw_data=data[:1] * 2)))


def test_a_sparse_weight_is_listed_as_unsupported() -> None:
    model = weighted(numpy_helper.from_array(np.zeros((2, 3), np.float32), "other"))
    sparse = SparseTensorProto(dims=[10**15])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64)))
    model.graph.sparse_initializer.append(sparse)
    with pytest.raises(UnsupportedError) as caught:
        onnx.load(model)
    assert caught.value.unsupported == (UnsupportedOp("a sparse initializer", "w", "weights are dense here"),)


# -- graphs of excessive size -----------------------------------------------------------------------------------------


def test_functions_that_double_at_each_level_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioflow.interop.onnx.walking._MOST_INSIDE", 2000)

    def doubling(levels: int) -> ModelProto:
        functions = "".join(
            f"""<opset_import: ["": 18, "mine": 1], domain: "mine">
                f{i} (a) => (c) {{ b = mine.f{i + 1} (a)
                                   c = mine.f{i + 1} (b) }}\n"""
            for i in range(levels)
        )
        last = f'<opset_import: ["": 18], domain: "mine"> f{levels} (a) => (b) {{ b = Relu (a) }}'
        return parse("g (float[2] x) => (float[2] y) { y = mine.f0 (x) }\n" + functions + last)

    onnx.load(doubling(8))
    with pytest.raises(ResourceExhaustedError, match="at most 2000 nodes"):
        onnx.load(doubling(20))


def test_repeated_attempts_at_nested_loops_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioflow.interop.onnx.walking._MOST_INSIDE", 100)
    body = "z = Identity (v)"
    for i in range(6):
        body = f"""z = Loop <body = b{i} (int64 i{i}, bool c{i}, float v) => (bool d{i}, float w{i}) {{
            d{i} = Identity (c{i})\n {body}\n w{i} = Identity (z) }}> (n, t, v)"""
    with pytest.raises(ResourceExhaustedError, match="at most 100 nodes"):
        onnx.load(parse(f"g (int64 n, bool t, float v) => (float z) {{ {body} }}"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ngram_counts", [0, 1 << 62]),
        ("ngram_counts", [-(1 << 62), 0]),
        ("ngram_indexes", [0, 1 << 62, 2]),
        ("ngram_indexes", [0, -1, 2]),
        ("max_skip_count", 1 << 40),
        ("max_skip_count", -5),
    ],
)
def test_invalid_pools_of_n_grams_are_rejected(name: str, value: object) -> None:
    attributes: dict[str, Any] = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 0,
        "ngram_counts": [0, 1],
        "ngram_indexes": [0, 1],
        "pool_int64s": [2, 3, 5],
    }
    x, y = (helper.make_tensor_value_info(name, kind, [4]) for name, kind in (("x", 7), ("y", 1)))
    for changed in ({}, {name: value}):
        node = helper.make_node("TfIdfVectorizer", ["x"], ["y"], **(attributes | changed))
        model = helper.make_model(helper.make_graph([node], "g", [x], [y]), ir_version=9)
        if not changed:
            onnx.load(model)
            continue
        with pytest.raises(InvalidArgumentError, match=name) as caught:
            onnx.load(model)
        assert caught.value.node == "y"


# -- numbers beyond int32 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [(1 << 32) + 1, 1 << 62, (1 << 63) - 1])
@pytest.mark.parametrize(
    "text",
    [
        "n = Reshape (k, one)\n y, z = TopK (x, n)",
        "v = Constant <value_floats = [0.0, 1.0]> ()\n i = Cast <to = 7> (x)\n y = OneHot (i, k, v)",
        "s = SequenceConstruct (x, x)\n y = SequenceAt (s, k)",
        "shape = Constant <value_ints = [1, 2, 1]> ()\n signal = Reshape (x, shape)\n y = DFT <axis = 1> (signal, k)",
    ],
)
@pytest.mark.parametrize("known", [False, True])
async def test_a_large_count_is_not_truncated(text: str, number: int, known: bool) -> None:
    head = f"k = Constant <value_int = {number}> ()\n" if known else ""
    one = "one = Constant <value_ints = [1]> ()\n"
    model = parse(f"g ({'' if known else 'int64 k, '}float[2] x) => (float[N] y) {{ {head} {one} {text} }}")
    x = np.zeros(2, np.float32)
    with pytest.raises(OpError):
        await run(model, *([x] if known else [np.int64(number), x]))


# -- nodes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["Identity", "OptionalGetElement"])
def test_an_omitted_input_cannot_be_an_output(op: str) -> None:
    node = helper.make_node(op, [""], ["y"])
    model = helper.make_model(
        helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])]), ir_version=9
    )
    with pytest.raises(InvalidArgumentError) as caught:
        onnx.load(model)
    assert caught.value.node == "y"


def test_an_output_unknown_to_the_op_is_reported() -> None:
    model = parse("g (float[2] x) => (float[2] z) { y, z = OptionalGetElement (x) }")
    with pytest.raises((InvalidArgumentError, UnsupportedError), match="output"):
        onnx.load(model)


def test_an_error_before_a_node_exists_names_the_models_node() -> None:
    text = "s = Constant <value_ints = [-1]> ()\n y = ConstantOfShape (s)"
    with pytest.raises(InvalidArgumentError, match="negative") as caught:
        onnx.load(parse(f"g () => (float[N] y) {{ {text} }}"))
    assert (caught.value.node, caught.value.op_type) == ("y", "ConstantOfShape")
