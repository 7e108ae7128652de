"""SavedModels that TensorFlow wrote (`make_data.py`), without TensorFlow; also damaged, forged and incomplete ones."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aioflow as af
from aioflow.errors import AlreadyExistsError, DataLossError, InvalidArgumentError, NotFoundError, OpError
from aioflow.interop import Model, Signature
from aioflow.interop.tensorflow import load_saved_model, save_saved_model
from aioflow.interop.unsupported import UnsupportedError
from aioflow.protos import message, parse, parse_text, to_bytes
from tests.support.random_examples import examples

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    with np.load(DATA / "expected.npz") as found:
        return {name: found[name] for name in found}


async def _run(model: Model, inputs: dict[str, Any], signature: str | None = None) -> dict[str, Any]:
    wanted = model.signature(signature)
    async with af.Session(graph=model.graph) as session:
        await model.initialize(session)
        return await session.run(dict(wanted.outputs), {wanted.inputs[name]: value for name, value in inputs.items()})


async def test_model_of_tensorflow_1_computes_expected_values(expected: dict[str, Any]) -> None:
    model = load_saved_model(DATA / "saved_model_v1")
    assert sorted(model.variables) == ["bias", "calls", "kernel"]
    assert [name for name, v in model.variables.items() if not v.trainable] == ["calls"]
    assert model.signature().method == "tensorflow/serving/predict"
    assert model.inputs["x"].shape.as_list() == [None, 3]
    found = await _run(model, {"x": expected["x"]})
    np.testing.assert_allclose(found["y"], expected["saved_model_v1/y"], rtol=1e-6)
    assert found["calls"] == expected["saved_model_v1/calls"]  # set by the model's own init node
    assert found["text"] == b"a line\n"


async def test_model_of_tensorflow_2_computes_expected_values(expected: dict[str, Any]) -> None:
    model = load_saved_model(str(DATA / "saved_model_v2"), "serve")
    assert sorted(model.signatures) == ["repeated", "serving_default"]
    assert sorted(v.op.name for v in model.variables.values() if v.trainable) == ["kernel"]
    assert not any(
        op.type == "Const" and op.outputs[0].shape.as_list() == [3, 2] for op in model.graph.get_operations()
    )
    found = await _run(model, {"x": expected["x"]})
    np.testing.assert_allclose(found["y"], expected["saved_model_v2/linear"], rtol=1e-6)
    found = await _run(model, {"x": expected["x"], "n": np.int32(5)}, "repeated")
    np.testing.assert_allclose(found["y"], expected["saved_model_v2/repeated"], rtol=1e-6)
    assert found["text"] == b"another line\n"


async def test_model_of_keras_computes_expected_values(expected: dict[str, Any]) -> None:
    model = load_saved_model(DATA / "keras")
    (name,) = model.inputs
    found = await _run(model, {name: expected["keras/x"]})
    np.testing.assert_allclose(next(iter(found.values())), expected["keras/y"], rtol=1e-5, atol=1e-6)
    assert sorted(model.variables) == ["conv1d/bias", "conv1d/kernel", "dense/bias", "dense/kernel"]


def test_model_can_be_initialized_synchronously(expected: dict[str, Any]) -> None:
    model = load_saved_model(DATA / "saved_model_v1")
    with af.Session(graph=model.graph) as session:
        session.wait_for(model.initialize(session))
        found = session.run_sync(dict(model.outputs), {model.inputs["x"]: expected["x"]})
    np.testing.assert_allclose(found["y"], expected["saved_model_v1/y"], rtol=1e-6)


@pytest.mark.parametrize("name", ["saved_model_v1", "saved_model_v2", "keras"])
async def test_variable_initializers_restore_the_values_of_the_file(name: str, expected: dict[str, Any]) -> None:
    model = load_saved_model(DATA / name)
    with model.graph.as_default():
        async with af.Session() as session:
            await model.initialize(session)
            values = await session.run(dict(model.variables))
            trained = {key: v for key, v in model.variables.items() if v.trainable}
            await session.run([v.assign(af.ones_like(v) * 7.0) for v in trained.values()])
            await session.run(af.global_variables_initializer())
            again = await session.run(dict(model.variables))
    for key in trained:
        np.testing.assert_array_equal(again[key], values[key])
        assert np.all(again[key] != 7)


def test_variables_of_one_name_get_unique_names(tmp_path: Path) -> None:
    def change(meta: Any) -> None:
        for node in meta.object_graph_def.nodes:
            if node.variable.name.startswith("dense/"):
                node.variable.name = "both"
            if node.variable.name == "conv1d/bias":
                node.variable.name = "dense/kernel_1"  # the name of a node of another variable

    model = load_saved_model(_changed(tmp_path, "keras", change))
    assert sorted(model.variables) == ["conv1d/bias_1", "conv1d/kernel", "dense/bias_1", "dense/kernel_1"]
    assert model.variables["dense/kernel_1"].op.name == "dense/kernel_1"


def test_trainable_flag_of_the_object_graph_is_respected(tmp_path: Path) -> None:
    """Match variables despite duplicates.

    Keras exports each variable twice under one name, so the graph has another name for the one in use.
    """

    def change(meta: Any) -> None:
        for node in meta.object_graph_def.nodes:
            if node.variable.name == "dense/bias":
                node.variable.trainable = False

    model = load_saved_model(_changed(tmp_path, "keras", change))
    assert [v.op.name for v in model.variables.values() if not v.trainable] == ["dense/bias_1"]
    assert not model.variables["dense/bias"].trainable


async def test_batch_normalization_moments_are_not_trainable(tmp_path: Path) -> None:
    """Check a TensorFlow 1 file without a list of trainable variables.

    Moments that are also used elsewhere stay trainable.
    """
    with af.Graph().as_default():
        x = af.placeholder(af.float32, [None, 4, 4, 2], name="x")
        scale, offset, mean = (af.Variable(np.ones(2, np.float32), name=n) for n in ("scale", "offset", "mean"))
        variance = af.Variable(np.ones(2, np.float32), name="variance")
        y, _, _ = af.nn.fused_batch_norm(x, scale, offset, mean, variance, is_training=False)
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            for name, outputs in (("alone", {"y": y}), ("beside", {"y": y, "more": mean * 2.0})):
                await save_saved_model(session, tmp_path / name, Signature({"x": x}, outputs))
    for name, fixed in (("alone", ["mean", "variance"]), ("beside", ["variance"])):
        file = tmp_path / name / "saved_model.pb"
        model = parse("SavedModel", file.read_bytes())
        model.meta_graphs[0].ClearField("collection_def")
        file.write_bytes(to_bytes(model))
        found = load_saved_model(tmp_path / name).variables.values()
        assert sorted(v.op.name for v in found if not v.trainable) == fixed


async def test_imported_model_can_be_trained_and_saved_again(tmp_path: Path, expected: dict[str, Any]) -> None:
    model = load_saved_model(DATA / "saved_model_v2")
    x, y = model.inputs["x"], model.outputs["y"]
    with model.graph.as_default():
        loss = af.reduce_mean(af.square(y - 1.0))
        step = af.train.AdamOptimizer(0.1).minimize(loss)
        async with af.Session() as session:
            await model.initialize(session)
            await session.run(
                af.global_variables_initializer()
            )  # of the optimizer's variables; the restored values stay
            np.testing.assert_allclose(
                await session.run(y, {x: expected["x"]}), expected["saved_model_v2/linear"], rtol=1e-6
            )
            before = await session.run(loss, {x: expected["x"]})
            for _ in range(20):
                await session.run(step, {x: expected["x"]})
            after, trained = await session.run([loss, y], {x: expected["x"]})
            assert after < before / 2
            await save_saved_model(session, tmp_path / "again", model.signatures)
    again = load_saved_model(tmp_path / "again")
    assert {"bias", "kernel"} < set(again.variables)  # and the variable that holds the asset's name
    np.testing.assert_allclose((await _run(again, {"x": expected["x"]}))["y"], trained, rtol=1e-6)


async def test_assets_are_saved_with_the_model(tmp_path: Path, expected: dict[str, Any]) -> None:
    shutil.copytree(DATA / "saved_model_v2", tmp_path / "first")
    model = load_saved_model(tmp_path / "first")
    assert list(model.assets.values()) == [str(tmp_path / "first" / "assets" / "words.txt")]
    async with af.Session(graph=model.graph) as session:
        await model.initialize(session)
        await save_saved_model(session, tmp_path / "second", model.signatures, assets=model.assets)
    shutil.rmtree(tmp_path / "first")
    again = load_saved_model(tmp_path / "second")
    found = await _run(again, {"x": expected["x"], "n": np.int32(5)}, "repeated")
    assert found["text"] == b"another line\n"


async def test_assets_of_one_name_get_unique_names(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "words.txt").write_text(name)
    with af.Graph().as_default():
        paths = {af.constant(f"{name}", name=name): tmp_path / name / "words.txt" for name in ("one", "two")}
        values = {path.op.name: af.Variable(path, name=f"kept_{path.op.name}") for path in paths}
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            texts = {name: af.read_file(value) for name, value in values.items()}
            await save_saved_model(session, tmp_path / "m", Signature({}, texts), assets=paths)
    assert sorted(os.listdir(tmp_path / "m" / "assets")) == ["words.txt", "words_1.txt"]
    assert await _run(load_saved_model(tmp_path / "m"), {}) == {"one": b"one", "two": b"two"}


async def test_missing_asset_leaves_no_saved_model(tmp_path: Path) -> None:
    with af.Graph().as_default():
        path = af.constant("none")
        async with af.Session() as session:
            with pytest.raises(NotFoundError, match="nowhere"):
                await save_saved_model(
                    session,
                    tmp_path / "m",
                    Signature({}, {"y": af.identity(path)}),
                    assets={path: tmp_path / "nowhere"},
                )
    assert not (tmp_path / "m" / "saved_model.pb").exists()


async def test_save_replaces_existing_model_only_with_overwrite(tmp_path: Path) -> None:
    for number in (1.0, 2.0):
        with af.Graph().as_default():
            x = af.placeholder(af.float32, [], name="x")
            v = af.get_variable("v", initializer=af.constant(number))
            async with af.Session() as session:
                await session.run(v.initializer)
                signature = Signature({"x": x}, {"y": x * v})
                if number > 1:
                    with pytest.raises(AlreadyExistsError, match="overwrite=True"):
                        await save_saved_model(session, tmp_path, signature)
                    assert (await _run(load_saved_model(tmp_path), {"x": 3.0}))["y"] == 3.0
                await save_saved_model(session, tmp_path, signature, tags=["serve", "cpu"], overwrite=True)
    with pytest.raises(NotFoundError, match="cpu"):
        load_saved_model(tmp_path, ["serve"])
    assert (await _run(load_saved_model(tmp_path, ["cpu", "serve"]), {"x": 3.0}))["y"] == 6.0
    assert (await _run(load_saved_model(tmp_path), {"x": 3.0}))["y"] == 6.0


async def test_model_without_variables_is_saved_to_a_store() -> None:
    pytest.importorskip("fsspec")
    with af.Graph().as_default():
        x = af.placeholder(af.float32, [2], name="x")
        async with af.Session() as session:
            await save_saved_model(session, "memory://models/doubled", Signature({"x": x}, {"y": x * 2.0}))
    found = await _run(load_saved_model("memory://models/doubled"), {"x": [1.0, 2.0]})
    assert found["y"].tolist() == [2, 4]


async def test_unsupported_model_is_refused_and_writes_no_files(tmp_path: Path) -> None:
    with af.Graph().as_default():
        x = af.placeholder(af.float32, [], name="x")
        v = af.get_variable("v", initializer=af.constant(1.0))
        async with af.Session() as session:
            with pytest.raises(InvalidArgumentError, match="signature"):
                await save_saved_model(session, tmp_path, {})
            with pytest.raises(af.errors.FailedPreconditionError):
                await save_saved_model(session, tmp_path, Signature({"x": x}, {"y": x * v}))
            other = v.initialized_value()
            with pytest.raises(UnsupportedError, match="_InitializedValue"):
                await save_saved_model(session, tmp_path, Signature({"x": x}, {"y": x * other}))
            with af.Graph().as_default():
                foreign = af.constant(1.0)
            with pytest.raises(OpError):
                await save_saved_model(session, tmp_path, Signature({"x": x}, {"y": foreign}))
    assert os.listdir(tmp_path) == []


# -- malformed --------------------------------------------------------------------------------------------------------


def _changed(folder: Path, name: str, change: Any) -> Path:
    """Copy a model, apply `change` to its first graph, and return the folder."""
    shutil.copytree(DATA / name, folder, dirs_exist_ok=True)
    text = folder / "saved_model.pbtxt"
    model = (
        parse_text("SavedModel", text.read_bytes())
        if text.exists()
        else parse("SavedModel", (folder / "saved_model.pb").read_bytes())
    )
    change(model.meta_graphs[0])
    text.unlink(missing_ok=True)
    (folder / "saved_model.pb").write_bytes(to_bytes(model))
    return folder


def test_missing_or_unreadable_model_file_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(NotFoundError, match=r"saved_model\.pb"):
            load_saved_model(folder)
    (tmp_path / "saved_model.pb").write_bytes(b"\xff" * 50)
    with pytest.raises(DataLossError, match=r"saved_model\.pb"):
        load_saved_model(tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "..", "C:\\secret", "a\0b", "..\\b", ""])
def test_asset_name_outside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    def change(meta: Any) -> None:
        meta.asset_file_def[0].filename = name

    with pytest.raises(InvalidArgumentError, match="asset"):
        load_saved_model(_changed(tmp_path, "saved_model_v2", change))


def test_missing_ops_in_functions_are_listed(tmp_path: Path) -> None:
    def change(meta: Any) -> None:
        for node in meta.graph_def.node:
            if node.name == "Placeholder":
                node.op = "Nonsense"
        for function in meta.graph_def.library.function:
            for node in function.node_def:
                if node.op == "MatMul":
                    node.op = "MadMul"

    with pytest.raises(UnsupportedError) as caught:
        load_saved_model(_changed(tmp_path, "saved_model_v2", change))
    assert {each.op for each in caught.value.unsupported} == {"MadMul"}
    assert any("linear" in each.node for each in caught.value.unsupported)


async def test_selected_signatures_load_without_the_others(tmp_path: Path, expected: dict[str, Any]) -> None:
    def change(meta: Any) -> None:
        for function in meta.graph_def.library.function:
            for node in function.node_def:
                node.op = {"ReadFile": "Nonsense"}.get(node.op, node.op)

    folder = _changed(tmp_path, "saved_model_v2", change)
    for signatures in (None, ["repeated"], ["serving_default", "repeated"]):
        with pytest.raises(UnsupportedError, match="Nonsense"):
            load_saved_model(folder, signatures=signatures)
    for one in ("serving_default", ["serving_default"]):
        model = load_saved_model(folder, signatures=one)
        assert list(model.signatures) == ["serving_default"]
        found = await _run(model, {"x": expected["x"]})
        np.testing.assert_allclose(found["y"], expected["saved_model_v2/linear"], rtol=1e-6)
    with pytest.raises(NotFoundError, match="repeated"):
        load_saved_model(folder, signatures=["serving_default", "nothing"])


def _recursive(meta: Any) -> None:
    for function in meta.graph_def.library.function:
        if "signature_wrapper__linear" in function.signature.name:
            for node in function.node_def:
                if "f" in node.attr:
                    node.attr["f"].func.name = function.signature.name


def _without_output(meta: Any) -> None:
    meta.signature_def["serving_default"].outputs["y"].name = "nowhere:0"


def _port(meta: Any) -> None:
    meta.signature_def["serving_default"].outputs["y"].name = "StatefulPartitionedCall:77"


def _cycle(meta: Any) -> None:
    node = next(node for node in meta.graph_def.node if node.op == "StatefulPartitionedCall")
    node.input.append(f"^{node.name}")


def _no_restore(meta: Any) -> None:
    meta.saver_def.restore_op_name = "nothing"


def _no_file(meta: Any) -> None:
    meta.saver_def.filename_tensor_name = ""


def _assigns_nothing(meta: Any) -> None:
    next(node for node in meta.graph_def.node if node.op == "Placeholder").op = "AssignVariableOp"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("saved_model_v2", _recursive),
        ("saved_model_v2", _without_output),
        ("saved_model_v2", _port),
        ("saved_model_v2", _cycle),
        ("saved_model_v1", _assigns_nothing),
        ("saved_model_v1", _no_restore),
        ("saved_model_v1", _no_file),
    ],
)
async def test_inconsistent_model_is_refused(tmp_path: Path, name: str, change: Any, expected: dict[str, Any]) -> None:
    with pytest.raises(OpError):
        await _run(load_saved_model(_changed(tmp_path, name, change)), {"x": expected["x"]})


async def test_cyclic_object_graph_with_wrong_ids_still_loads(tmp_path: Path, expected: dict[str, Any]) -> None:
    def change(meta: Any) -> None:
        objects = meta.object_graph_def
        for node in objects.nodes:
            node.children.add(node_id=0, local_name="up")
            node.children.add(node_id=1 << 30, local_name="nowhere")
        for function in objects.concrete_functions.values():
            function.bound_inputs[:] = [1 << 30, -1, 0, *function.bound_inputs]

    model = load_saved_model(_changed(tmp_path, "saved_model_v2", change))
    found = await _run(model, {"x": expected["x"]})
    np.testing.assert_allclose(found["y"], expected["saved_model_v2/linear"], rtol=1e-6)


def test_constant_of_huge_shape_is_refused(tmp_path: Path) -> None:
    """Refuse a constant of a few bytes whose shape claims 1 TiB."""

    def change(meta: Any) -> None:
        tensor = message("TensorProto")(dtype=1, float_val=[1.0])
        tensor.tensor_shape.dim.add(size=1 << 38)
        for node in meta.graph_def.node:
            if node.op == "Const":
                node.attr["value"].tensor.CopyFrom(tensor)
                node.attr["dtype"].type = 1

    with pytest.raises(OpError):
        load_saved_model(_changed(tmp_path, "saved_model_v1", change))


def _loaded_or_refused(folder: Path, data: bytes, changes: list[tuple[int, int]]) -> None:
    made = bytearray(data)
    for at, value in changes:
        made[at % len(made)] = value
    (folder / "saved_model.pb").write_bytes(made)
    with contextlib.suppress(OpError):
        load_saved_model(folder)


CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6)
QUICK = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


@pytest.fixture
def mutable(tmp_path: Path) -> tuple[Path, bytes]:
    shutil.copytree(DATA / "saved_model_v2", tmp_path, dirs_exist_ok=True)
    return tmp_path, (tmp_path / "saved_model.pb").read_bytes()


@settings(max_examples=examples(100), **QUICK)  # type: ignore[arg-type]
@given(changes=CHANGES)
def test_mutated_model_is_loaded_or_refused(mutable: tuple[Path, bytes], changes: list[tuple[int, int]]) -> None:
    _loaded_or_refused(*mutable, changes)


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(20))
def test_mutated_model_is_loaded_or_refused_100_000_times(quick_path: Path, part: int) -> None:
    """Mutate mostly the smaller model: functions, branches and loops of the other are slow."""
    version = 2 if part % 5 == 0 else 1
    shutil.copytree(DATA / f"saved_model_v{version}", quick_path, dirs_exist_ok=True)
    text, rng = quick_path / "saved_model.pbtxt", random.Random(part)
    if text.exists():
        data = to_bytes(parse_text("SavedModel", text.read_text()))
        text.unlink()
    else:
        data = (quick_path / "saved_model.pb").read_bytes()
    for _ in range(5000):
        changes = [(rng.randrange(len(data)), rng.randrange(256)) for _ in range(rng.randint(1, 6))]
        try:
            _loaded_or_refused(quick_path, data, changes)
        except Exception as error:
            raise AssertionError(f"part {part}: {changes}") from error
