"""Saving a model to a folder and loading it: the same results, in a graph that can be trained and saved again."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import aioflow as af
from aioflow import errors
from aioflow.formats import temporary_folders
from aioflow.interop import safetensors
from aioflow.interop.unsupported import UnsupportedError
from aioflow.memory.frozen import is_frozen
from aioflow.saved import Signature, load, save
from tests.saved.models import GIVEN, WANTED, WEIGHTS, built, calling, graph_with_a_layer, outputs


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_saved_model_loads_with_the_same_results(tmp_path: Path) -> None:
    async with built() as (session, model):
        assert await save(session, tmp_path / "model", model.signature) == str(tmp_path / "model")
    assert files(tmp_path / "model") == [
        "aioflow.json",
        "graph.aiograph",
        "ops.json",
        "weights.manifest.json",
        "weights.safetensors",
    ]
    found = load(tmp_path / "model")
    assert list(found.signatures) == ["serving_default"]
    assert (found.inputs["x"].name, found.outputs["y"].name) == ("x:0", "y:0")
    assert found.inputs["x"].shape.as_list() == [None, 3]
    assert sorted(found.variables) == ["layer/b", "layer/w"], "and not what it does not need"
    np.testing.assert_allclose((await outputs(tmp_path / "model", x=GIVEN))["y"], WANTED, rtol=1e-6)


async def test_saved_values_are_those_of_the_session(tmp_path: Path) -> None:
    async with built() as (session, model):
        (w,) = model.graph.get_collection("variables", "layer/w")
        await w.load(2 * WEIGHTS, session)
        await save(session, tmp_path / "model", model.signature)
    found = load(tmp_path / "model")
    async with calling(found) as session:
        np.testing.assert_array_equal(await session.run(found.variables["layer/w"]), 2 * WEIGHTS)


async def test_uninitialized_variables_are_rejected_and_leave_no_files(tmp_path: Path) -> None:
    model = graph_with_a_layer()
    async with af.Session(graph=model.graph) as session:
        with pytest.raises(errors.FailedPreconditionError):
            await save(session, tmp_path / "model", model.signature)
    assert names(tmp_path) == []


async def test_loaded_model_can_be_trained_and_saved_again(tmp_path: Path) -> None:
    async with built() as (session, model):
        await save(session, tmp_path / "first", model.signature)
    found = load(tmp_path / "first")
    with found.graph.as_default():
        loss = af.reduce_sum(af.square(found.outputs["y"]))
        assert [v.op.name for v in af.trainable_variables()] == ["layer/w"]
        step = af.train.GradientDescentOptimizer(0.1).minimize(loss)
        start = af.global_variables_initializer()
    async with af.Session(graph=found.graph) as session:
        await session.run(start)  # reads the file, as `initialize` does
        feeds = {found.inputs["x"]: GIVEN}
        before = await session.run(loss, feeds)
        for _ in range(5):
            await session.run(step, feeds)
        after = await session.run(loss, feeds)
        assert after < before
        await save(session, tmp_path / "second", found.signatures)
    again = (await outputs(tmp_path / "second", x=GIVEN))["y"]
    np.testing.assert_allclose(np.sum(again**2), after, rtol=1e-5)


async def test_training_does_not_change_the_mapped_file(tmp_path: Path) -> None:
    async with built() as (session, model):
        await save(session, tmp_path / "model", model.signature)
    before = (tmp_path / "model" / "weights.safetensors").read_bytes()
    found = load(tmp_path / "model")
    w = found.variables["layer/w"]
    with found.graph.as_default():
        update = w.assign_add(WEIGHTS)
    async with calling(found) as session, calling(load(tmp_path / "model")) as other:
        await session.run(update.op)
        np.testing.assert_array_equal(await session.run(w), 2 * WEIGHTS)
        np.testing.assert_array_equal(await other.run("layer/w/Read/ReadVariableOp:0"), WEIGHTS)
    assert (tmp_path / "model" / "weights.safetensors").read_bytes() == before


async def test_signatures_may_share_nodes(tmp_path: Path) -> None:
    with af.Graph().as_default() as graph:
        x = af.placeholder("float32", [2], name="x")
        middle = af.multiply(x, 2.0, name="middle")
        last = af.add(middle, 1.0, name="last")
        calls: dict[str, Any] = {
            "all": ({"x": x}, {"last": last}),
            "end": Signature({"middle": middle}, {"last": last}, "tail"),
        }
        async with af.Session() as session:
            await save(session, tmp_path / "model", calls)
    found = load(tmp_path / "model")
    assert found.signature("end").method == "tail"
    async with calling(found) as session:
        for name, wanted in (("all", [3.0, 5.0]), ("end", [2.0, 3.0])):
            signature = found.signature(name)
            (given,) = signature.inputs.values()
            value = await session.run(signature.outputs["last"], {given: [1.0, 2.0]})
            assert value.tolist() == wanted
    with pytest.raises(errors.NotFoundError, match="no such signature"):
        found.signature()
    assert graph is not found.graph


async def test_input_in_the_middle_becomes_a_placeholder_without_its_ancestors(tmp_path: Path) -> None:
    with af.Graph().as_default():
        source = af.py_func(lambda: np.float32(1), [], af.float32)
        middle = af.add(source, 1.0, name="middle")
        async with af.Session() as session:
            await save(session, tmp_path / "model", Signature({"m": middle}, {"y": af.square(middle, name="y")}))
    found = load(tmp_path / "model")
    assert found.inputs["m"].op.type == "Placeholder"
    assert (await outputs(tmp_path / "model", m=3.0))["y"] == 9.0


async def test_branches_and_loops_are_restored(tmp_path: Path) -> None:
    with af.Graph().as_default():
        n = af.placeholder("int32", [], name="n")
        total = af.while_loop(lambda i, _: i < n, lambda i, s: (i + 1, s + i), (af.constant(0), af.constant(0)))[1]
        chosen = af.cond(n > 3, lambda: total * 10, lambda: total)
        async with af.Session() as session:
            await save(session, tmp_path / "model", Signature({"n": n}, {"y": chosen}))
    assert (await outputs(tmp_path / "model", n=3))["y"] == 3
    assert (await outputs(tmp_path / "model", n=5))["y"] == 100


async def test_devices_are_not_saved(tmp_path: Path) -> None:
    with af.Graph().as_default():
        with af.device("/device:CPU:1"):
            v = af.Variable(1.5, name="v")
        y = af.add(v, 1.0, name="y")
        async with af.Session(config=af.SessionConfig(device_count={"CPU": 2})) as session:
            await session.run(v.initializer)
            await save(session, tmp_path / "model", Signature({}, {"y": y}))
    assert (await outputs(tmp_path / "model"))["y"] == 2.5


async def test_imported_graph_without_variable_objects_can_be_saved(tmp_path: Path) -> None:
    model = graph_with_a_layer()
    definition = model.graph.as_graph_def()
    with af.Graph().as_default() as graph:
        af.import_graph_def(definition, name="")
    async with af.Session(graph=graph) as session:
        await session.run([graph.get_operation_by_name(f"layer/{name}/Assign") for name in "wb"])
        signature = Signature({"x": graph.get_tensor_by_name("x:0")}, {"y": graph.get_tensor_by_name("y:0")})
        await save(session, tmp_path / "model", signature)
    np.testing.assert_allclose((await outputs(tmp_path / "model", x=GIVEN))["y"], WANTED, rtol=1e-6)


@pytest.mark.parametrize("trainable", [False, True])
async def test_model_of_another_format_can_be_saved(tmp_path: Path, trainable: bool) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])
    product = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    graph = helper.make_graph([product], "g", [x], [y], [numpy_helper.from_array(WEIGHTS, "w")])
    proto = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    model = af.interop.onnx.load(proto, trainable=trainable)
    async with calling(model) as session:
        wanted = await session.run(model.outputs["y"], {model.inputs["x"]: GIVEN})
        await save(session, tmp_path / "model", model.signatures)
    assert len(load(tmp_path / "model").variables) == trainable
    np.testing.assert_array_equal((await outputs(tmp_path / "model", x=GIVEN))["y"], wanted)


async def test_variable_read_only_by_rows_is_saved_whole(tmp_path: Path) -> None:
    with af.Graph().as_default():
        table = af.Variable(np.arange(12.0).reshape(6, 2), name="table")
        ids = af.placeholder("int32", [None], name="ids")
        rows = af.nn.embedding_lookup(table, ids)
        async with af.Session() as session:
            await session.run(table.initializer)
            await save(session, tmp_path / "model", Signature({"ids": ids}, {"rows": rows}))
    np.testing.assert_array_equal((await outputs(tmp_path / "model", ids=[4, 0]))["rows"], [[8, 9], [0, 1]])


# ── large constants ──────────────────────────────────────────────────────────────────────────────────────────────────


async def save_constants(place: Path | str, values: Any) -> None:
    """Save the sums of x and each constant; the first constant is also used inside a function."""
    with af.Graph().as_default():
        x = af.placeholder("float32", [], name="x")

        @af.function
        def moved(given: Any) -> Any:
            return given + af.cast(af.constant(values[0], name="inner"), "float32")

        sums = {f"y{i}": x + af.cast(af.constant(v, name=f"c{i}"), "float32") for i, v in enumerate(values)}
        async with af.Session() as session:
            await save(session, place, Signature({"x": x}, {**sums, "inner": af.identity(moved(x))}))


LARGE: dict[str, Any] = {
    "float32": np.linspace(0, 1, 4096, dtype=np.float32).reshape(64, 64),
    "bool": np.arange(5000) % 3 == 0,
    "bfloat16": np.arange(4096).astype(af.bfloat16.as_numpy_dtype),
    "complex64": np.arange(1024).astype(np.complex64),
    "int16": np.arange(4096, dtype=np.int16),
}


@pytest.mark.parametrize("dtype", LARGE)
async def test_large_constants_are_stored_once_among_the_weights(tmp_path: Path, dtype: str) -> None:
    value, small = LARGE[dtype], LARGE[dtype].reshape(-1)[:100]
    await save_constants(tmp_path / "model", [value, small, value.copy()])
    assert (tmp_path / "model" / "graph.aiograph").stat().st_size < 4096, "the graph has none but the small one"
    stored = safetensors.open(tmp_path / "model" / "weights.safetensors")
    assert len(stored) == 1, "equal ones are stored once"
    (kept,) = stored.values()
    np.testing.assert_array_equal(kept, value)
    found = await outputs(tmp_path / "model", x=2.0)
    wanted = np.real(value).astype(np.float32) + 2
    np.testing.assert_array_equal(found["y0"], wanted)
    np.testing.assert_array_equal(found["y2"], wanted)
    np.testing.assert_array_equal(found["inner"], wanted)
    np.testing.assert_array_equal(found["y1"], wanted.reshape(-1)[:100])


async def test_large_constants_are_read_from_a_store() -> None:
    place = f"memory://{uuid.uuid4().hex}/model"
    await save_constants(place, [LARGE["float32"]])
    np.testing.assert_array_equal((await outputs(place, x=2.0))["inner"], LARGE["float32"] + 2)


async def test_string_constants_stay_in_the_graph(tmp_path: Path) -> None:
    words = np.array([b"word %d" % i for i in range(2000)], object)
    with af.Graph().as_default():
        async with af.Session() as session:
            await save(session, tmp_path / "model", Signature({}, {"y": af.identity(af.constant(words))}))
    assert "weights.safetensors" not in files(tmp_path / "model")
    assert (await outputs(tmp_path / "model"))["y"].tolist() == words.tolist()


async def test_large_constant_is_a_view_of_the_mapped_file(tmp_path: Path) -> None:
    await save_constants(tmp_path / "model", [LARGE["float32"]])
    found = load(tmp_path / "model")
    value = found.graph.get_operation_by_name("c0").get_attr("value")
    assert is_frozen(value)
    assert not value.flags.writeable


async def test_model_with_large_constants_can_be_saved_again(tmp_path: Path) -> None:
    await save_constants(tmp_path / "first", [LARGE["float32"]])
    found = load(tmp_path / "first")
    async with calling(found) as session:
        await save(session, tmp_path / "second", found.signatures)
    for name in ("graph.aiograph", "weights.safetensors"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


async def test_definition_with_mapped_constants_round_trips(tmp_path: Path) -> None:
    await save_constants(tmp_path / "model", [LARGE["float32"]])
    definition = load(tmp_path / "model").graph.as_graph_def()
    assert af.GraphDef.from_bytes(definition.to_bytes()) == definition
    assert af.GraphDef.from_json(definition.to_json()) == definition
    assert af.GraphDef.FromString(definition.SerializeToString()).nodes
    assert copy.deepcopy(definition) == definition


# ── assets ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def save_reader(folder: Path, place: Path | str, constant: bool = True) -> None:
    (folder / "vocab.txt").write_text("one\ntwo\n")
    (folder / "other").mkdir()
    (folder / "other" / "vocab.txt").write_text("three\n")
    paths = [folder / "vocab.txt", folder / "other" / "vocab.txt", folder / "vocab.txt"]
    with af.Graph().as_default():
        tensors = [af.constant(str(path)) if constant else af.placeholder("string", []) for path in paths]
        texts = {f"text{i}": af.read_file(tensor) for i, tensor in enumerate(tensors)}
        async with af.Session() as session:
            await save(session, place, Signature({}, texts), assets=dict(zip(tensors, paths, strict=True)))


@pytest.mark.parametrize("constant", [True, False])
async def test_assets_are_copied_and_found_after_a_move(tmp_path: Path, constant: bool) -> None:
    await save_reader(tmp_path, tmp_path / "model", constant)
    (tmp_path / "vocab.txt").unlink()
    for path in (tmp_path / "model").rglob("*"):
        assert path.is_dir() or str(tmp_path).encode() not in path.read_bytes(), "no path of this machine is in it"
    (tmp_path / "model").rename(tmp_path / "moved")
    found = load(tmp_path / "moved")
    assert sorted(str(Path(p).relative_to(tmp_path)) for p in set(found.assets.values())) == [
        "moved/assets/vocab.txt",
        "moved/assets/vocab_1.txt",
    ]
    assert await outputs(tmp_path / "moved") == {"text0": b"one\ntwo\n", "text1": b"three\n", "text2": b"one\ntwo\n"}
    async with calling(found) as session:
        await save(session, tmp_path / "again", found.signatures, found.assets)
    assert (await outputs(tmp_path / "again"))["text1"] == b"three\n"


async def test_asset_path_in_a_variable_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("words")
    with af.Graph().as_default():
        path = af.constant(str(tmp_path / "words.txt"), name="path")
        kept = af.Variable(path, name="kept")
        async with af.Session() as session:
            await session.run(kept.initializer)
            signature = Signature({}, {"y": af.read_file(kept)})
            with pytest.raises(errors.UnimplementedError, match="value of a variable"):
                await save(session, tmp_path / "m", signature, {path: tmp_path / "words.txt"})
    assert names(tmp_path) == ["words.txt"]


async def test_missing_asset_is_an_error_and_leaves_no_files(tmp_path: Path) -> None:
    with af.Graph().as_default():
        path = af.constant("none")
        async with af.Session() as session:
            with pytest.raises(errors.NotFoundError, match="nowhere"):
                await save(
                    session, tmp_path / "m", Signature({}, {"y": af.identity(path)}), {path: tmp_path / "nowhere"}
                )
    assert names(tmp_path) == []


# ── unsupported nodes ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_all_unsupported_nodes_are_reported_at_once(tmp_path: Path) -> None:
    with af.Graph().as_default():
        forgotten = af.placeholder("float32", [], name="forgotten")
        called = af.py_func(lambda: np.float32(1), [], af.float32, name="called")
        queue = af.FIFOQueue(3, af.float32, shapes=[()], name="queue")
        y = af.add_n([forgotten, called, queue.dequeue(name="taken")], name="y")
        af.py_func(lambda: np.float32(1), [], af.float32, name="beside")
        async with af.Session() as session:
            with pytest.raises(UnsupportedError) as caught:
                await save(session, tmp_path / "model", Signature({}, {"y": y}))
    assert {each.node for each in caught.value.unsupported} == {"forgotten", "called", "queue", "taken"}
    assert "cannot be saved" in caught.value.message
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda m: {}, "needs a signature"),
        (lambda m: {"f": ({"x": m.x}, {})}, "no outputs"),
        (lambda m: {"f": ({"x": m.x, "again": m.x}, {"y": m.y})}, "one tensor"),
        (lambda m: {"f": ({}, {"y": m.graph.get_operation_by_name("layer/w").outputs[0]})}, "handle"),
        (lambda m: {"f": ({}, {"y": "nowhere:0"})}, "nowhere"),
        (lambda m: {"f": [m.x]}, "signature 'f'"),
        (lambda m: m.y, "the signatures"),
    ],
)
async def test_malformed_signature_is_rejected(tmp_path: Path, wrong: Any, message: str) -> None:
    async with built() as (session, model):
        with pytest.raises((errors.InvalidArgumentError, errors.NotFoundError), match=message):
            await save(session, tmp_path / "model", wrong(model))


# ── the folder ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_existing_folder_is_replaced_only_if_it_is_a_model_and_overwrite_is_set(tmp_path: Path) -> None:
    async with built() as (session, model):
        (tmp_path / "empty").mkdir()
        await save(session, tmp_path / "empty", model.signature)
        with pytest.raises(errors.AlreadyExistsError, match="overwrite"):
            await save(session, tmp_path / "empty", model.signature)
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "precious").write_text("data")
        for overwrite in (False, True):
            with pytest.raises(errors.AlreadyExistsError, match="no model"):
                await save(session, tmp_path / "other", model.signature, overwrite=overwrite)
        assert files(tmp_path / "other") == ["precious"]


async def test_replacement_removes_the_old_files(tmp_path: Path) -> None:
    await save_reader(tmp_path, tmp_path / "model")
    async with built() as (session, model):
        for _ in range(2):
            await save(session, tmp_path / "model", model.signature, overwrite=True)
    assert len(files(tmp_path / "model")) == 5
    np.testing.assert_allclose((await outputs(tmp_path / "model", x=GIVEN))["y"], WANTED, rtol=1e-6)


def full(*_: Any) -> None:
    raise errors.ResourceExhaustedError("the disk is full")


async def test_failed_replacement_leaves_the_model_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with built() as (session, model):
        await save(session, tmp_path / "model", model.signature)
        monkeypatch.setattr("aioflow.saved.writing.write_checkpoint", full)
        with pytest.raises(errors.ResourceExhaustedError, match="full"):
            await save(session, tmp_path / "model", model.signature, overwrite=True)
    np.testing.assert_allclose((await outputs(tmp_path / "model", x=GIVEN))["y"], WANTED, rtol=1e-6)


async def test_concurrent_saves_leave_one_whole_model(tmp_path: Path) -> None:
    async with built() as (session, model):
        results = await asyncio.gather(
            *(save(session, tmp_path / "model", model.signature) for _ in range(4)), return_exceptions=True
        )
    assert sum(isinstance(result, str) for result in results) == 1
    assert {type(r) for r in results if not isinstance(r, str)} <= {errors.AlreadyExistsError}
    assert names(tmp_path) == ["model"]
    np.testing.assert_allclose((await outputs(tmp_path / "model", x=GIVEN))["y"], WANTED, rtol=1e-6)


async def test_save_removes_temporary_folders_of_a_killed_program(tmp_path: Path) -> None:
    left = tmp_path / ".model.0123456789ab.tmp"
    (left / "assets").mkdir(parents=True)
    with temporary_folders.temporary_folder(tmp_path / "model") as used:
        (used.path / "file").write_text("somebody is writing")
        async with built() as (session, model):
            await save(session, tmp_path / "model", model.signature)
        assert not left.exists()
        assert used.path.exists()


async def test_equal_models_have_equal_files(tmp_path: Path) -> None:
    async with built() as (session, model):
        for name in ("a", "b"):
            await save(session, tmp_path / name, model.signature)
    digests = [
        {name: hashlib.sha256((tmp_path / folder / name).read_bytes()).hexdigest() for name in files(tmp_path / folder)}
        for folder in ("a", "b")
    ]
    assert digests[0] == digests[1]


async def test_save_to_a_store(tmp_path: Path) -> None:
    place = f"memory://{uuid.uuid4().hex}/model"
    async with built() as (session, model):
        assert await save(session, place, model.signature) == place
        with pytest.raises(errors.AlreadyExistsError):
            await save(session, place, model.signature)
        await save(session, place, model.signature, overwrite=True)
    np.testing.assert_allclose((await outputs(place, x=GIVEN))["y"], WANTED, rtol=1e-6)


async def test_load_without_a_model_is_reported(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(errors.NotFoundError, match="no model"):
            load(place)
