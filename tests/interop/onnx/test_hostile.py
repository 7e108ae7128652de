"""Malformed and hostile models: every exception that they raise is an error of aioflow."""

from __future__ import annotations

import random
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import onnx.backend.test as onnx_tests
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, save_model
from onnx.backend.test.loader import load_model_tests

import aioflow
from aioflow.errors import (
    AioflowError,
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
)
from aioflow.interop import onnx
from tests.interop.onnx.test_loading import parse
from tests.support.random_examples import examples

W = np.arange(6, dtype=np.float32).reshape(2, 3)


def weighted(weight: TensorProto) -> ModelProto:
    """Return a model that outputs a weight of shape [2, 3]."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def outside(folder: Path, **entries: object) -> Path:
    """Write a model whose weight is external data with these entries. Return its path."""
    weight = TensorProto(name="w", dims=[2, 3], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        weight.external_data.add(key=key, value=str(value))
    path = folder / "model.onnx"
    path.write_bytes(weighted(weight).SerializeToString())
    return path


async def test_weights_in_a_file_of_the_folder_are_mapped(tmp_path: Path) -> None:
    model = weighted(numpy_helper.from_array(W, "w"))
    save_model(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    loaded = onnx.load(tmp_path / "model.onnx")
    assert (tmp_path / "weights.bin").exists()
    async with aioflow.Session(graph=loaded.graph) as session:
        np.testing.assert_array_equal((await session.run(loaded.outputs))["y"], W)
    with pytest.raises(InvalidArgumentError, match="no folder"):
        onnx.load((tmp_path / "model.onnx").read_bytes())


def test_weights_outside_the_folder_are_rejected(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret").write_bytes(W.tobytes())
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "ours").write_bytes(W.tobytes())
    for location in ("../secret", str(tmp_path / "secret"), "link", "", ".", "a\0b", "\0"):
        with pytest.raises(InvalidArgumentError, match="outside the model's folder"):
            onnx.load(outside(inside, location=location))
    with pytest.raises(NotFoundError):
        onnx.load(outside(inside, location="none"))
    for offset, length in ((4, 24), (1 << 40, 24), (0, 25), (0, 1)):
        with pytest.raises(DataLossError):
            onnx.load(outside(inside, location="ours", offset=offset, length=length))
    for text in ("-4", "x", "9" * 40):
        with pytest.raises(InvalidArgumentError, match="offset"):
            onnx.load(outside(inside, location="ours", offset=text))
    onnx.load(outside(inside, location="ours"))


def cached(folder: Path, location: str) -> Path:
    """Write a model as Hugging Face's cache stores it: a link into a folder of blobs. Return its path."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "revision" / "onnx"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    outside(blobs, location=location).rename(blobs / "a1")
    (blobs / "b2").write_bytes(W.tobytes())
    (folder / "secret").write_bytes(W.tobytes())
    (snapshot / "model.onnx").symlink_to("../../../blobs/a1")
    (snapshot / "model.onnx_data").symlink_to("../../../blobs/b2")
    (snapshot / "escape").symlink_to("../../../secret")
    (snapshot / "own").write_bytes(W.tobytes())
    return snapshot / "model.onnx"


@pytest.mark.parametrize("location", ["model.onnx_data", "own", "../../../blobs/b2"])
async def test_load_reads_weights_in_the_folder_of_the_linked_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    path = cached(tmp_path, location)
    monkeypatch.chdir(path.parent)
    for given in (path, Path("model.onnx")):
        loaded = onnx.load(given)
        async with aioflow.Session(graph=loaded.graph) as session:
            np.testing.assert_array_equal((await session.run(loaded.outputs))["y"], W)


@pytest.mark.parametrize("location", ["escape", "../../../secret", "../../secret", "/etc/hostname", ".", "", "a\0b"])
def test_load_refuses_weights_outside_both_folders_of_a_linked_model(tmp_path: Path, location: str) -> None:
    with pytest.raises(InvalidArgumentError, match="outside the model's folder"):
        onnx.load(cached(tmp_path, location))


def test_load_refuses_weights_linked_past_the_folders_of_the_chain(tmp_path: Path) -> None:
    path = cached(tmp_path, "between")
    (tmp_path / "middle").mkdir()
    (tmp_path / "middle" / "model").symlink_to("../blobs/a1")
    (tmp_path / "middle" / "weights").write_bytes(W.tobytes())
    path.unlink()
    path.symlink_to("../../../middle/model")
    (path.parent / "between").symlink_to("../../../middle/weights")
    with pytest.raises(InvalidArgumentError, match="outside the model's folder"):
        onnx.load(path)


@pytest.mark.parametrize("dims", [[2, 4], [1 << 40, 1 << 40], [0], [3]])
def test_weights_must_fill_their_shape(dims: list[int]) -> None:
    raw = TensorProto(name="w", dims=dims, data_type=TensorProto.FLOAT, raw_data=W.tobytes())
    listed = TensorProto(name="w", dims=dims, data_type=TensorProto.FLOAT, float_data=W.reshape(-1))
    for weight in (raw, listed):
        with pytest.raises(DataLossError, match="'w'"):
            onnx.load(weighted(weight))


def test_errors_of_invalid_nodes_name_the_node() -> None:
    for text, message in (
        ("y = Concat <axis = 1.5> (x, x)", "wrong type"),
        ("y = Concat (x, x)", "no attribute"),
        ("y = Relu (x, x)", "wrong number of inputs"),
        ("y = Concat <axis = 7> (x, x)", "axis"),
        ("y = Transpose <perm = [0, 0]> (x)", "perm"),
    ):
        with pytest.raises(InvalidArgumentError, match=message) as caught:
            onnx.load(parse("g (float[2, 3] x) => (float[2, 3] y) {" + text + "}"))
        assert caught.value.node is not None


def test_versions_unknown_to_the_installed_onnx_are_unimplemented() -> None:
    model = weighted(numpy_helper.from_array(W, "w"))
    model.opset_import[0].version = 10_000
    with pytest.raises(UnimplementedError, match="opset 10000"):
        onnx.load(model)
    model.opset_import[0].version = 18
    model.ir_version = 10_000
    with pytest.raises(UnimplementedError, match="version 10000"):
        onnx.load(model)


def test_endless_nesting_is_rejected() -> None:
    endless = parse("""g (float[2] x) => (float[2] y) { y = mine.f (x) }
        <opset_import: ["": 18, "mine": 1], domain: "mine"> f (a) => (b) { b = mine.f (a) }""")
    with pytest.raises(InvalidArgumentError, match="too deeply"):
        onnx.load(endless)
    branch = "z = Identity (x)"
    for _ in range(28):
        branch = f"""z = If <then_branch = t () => (float[2] z) {{ {branch} }},
                            else_branch = e () => (float[2] w) {{ w = Identity (x) }}> (b)"""
    nested = parse(f"g (bool b, float[2] x) => (float[2] z) {{ {branch} }}")
    with pytest.raises(InvalidArgumentError, match="too deeply"):
        onnx.load(nested)


def mutated(data: bytes, rng: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at, kind = rng.randrange(len(made) + 1), rng.random()
        if kind < 0.5 and at < len(made):
            # 127 and 128 are on both sides of the limit of a one-byte varint.
            made[at] = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
        elif kind < 0.7:
            del made[at : at + rng.randrange(1, 8)]
        elif kind < 0.95:
            made[at:at] = rng.randbytes(rng.randrange(1, 8))
        else:
            del made[at:]
    return bytes(made)


@cache
def small_models() -> list[bytes]:
    """Return the models that the onnx package has as files, with about sixty ops."""
    return [path.read_bytes() for path in sorted(Path(onnx_tests.__file__).parent.glob("data/*/*/model.onnx"))]


@cache
def models_of_every_op() -> list[bytes]:
    """Return the models that the tests of the onnx package create, which takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind="node")
    return [test.model.SerializeToString() for test in tests if test.model is not None]


def loaded_or_refused(models: list[bytes], cases: int, seed: int) -> int:
    """Return how many of the mutated models are loaded; the others are rejected."""
    rng, loaded = random.Random(seed), 0
    for case in range(cases):
        data = mutated(rng.choice(models), rng)
        try:
            onnx.load(data)
            loaded += 1
        except AioflowError:
            pass
        except Exception as error:
            raise AssertionError(f"case {case} of seed {seed}: {data!r}") from error
    return loaded


def test_a_mutated_model_is_loaded_or_refused() -> None:
    assert loaded_or_refused(small_models(), examples(8000), seed=1) > 100


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(100))
def test_a_hundred_thousand_mutated_models_are_loaded_or_refused(seed: int) -> None:
    loaded_or_refused(models_of_every_op(), 1000, seed)
