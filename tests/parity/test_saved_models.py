"""SavedModels between aioflow and TensorFlow 2: variables, which of them are trainable, and assets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.interop import Signature
from aioflow.interop.tensorflow import load_saved_model, save_saved_model
from aioflow.protos import parse, to_bytes

tensorflow = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.parity

WEIGHTS = np.arange(6, dtype=np.float32).reshape(3, 2)


async def test_tensorflow_loads_the_variables(tmp_path: Path) -> None:
    with af.Graph().as_default():
        x = af.placeholder("float32", [None, 3], name="x")
        w = af.Variable(WEIGHTS, name="layer/w")
        scale = af.Variable(2.0, name="scale", trainable=False)
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            await save_saved_model(session, tmp_path / "m", Signature({"x": x}, {"y": af.matmul(x, w) * scale}))
    theirs = tensorflow.saved_model.load(str(tmp_path / "m"))
    assert sorted(v.name for v in theirs.variables) == ["layer/w:0", "scale:0"]
    assert [v.name for v in theirs.variables if v.trainable] == ["layer/w:0"]
    values = {v.name: v.numpy() for v in theirs.variables}
    np.testing.assert_array_equal(values["layer/w:0"], WEIGHTS)
    assert values["scale:0"] == 2.0
    call = theirs.signatures["serving_default"]
    given = np.ones((1, 3), np.float32)
    np.testing.assert_allclose(call(x=tensorflow.constant(given))["y"].numpy(), 2 * given @ WEIGHTS)
    ours = load_saved_model(tmp_path / "m")
    assert {name: v.trainable for name, v in ours.variables.items()} == {"layer/w": True, "scale": False}


async def test_tensorflow_loads_the_assets(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("some words")
    with af.Graph().as_default():
        path = af.constant(str(tmp_path / "words.txt"), name="path")
        kept = af.Variable(path, name="kept", trainable=False)
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            signature = Signature({}, {"text": af.read_file(kept)})
            await save_saved_model(session, tmp_path / "m", signature, assets={path: tmp_path / "words.txt"})
    (tmp_path / "words.txt").unlink()
    (tmp_path / "m").rename(tmp_path / "moved")
    theirs = tensorflow.saved_model.load(str(tmp_path / "moved"))
    assert theirs.signatures["serving_default"]()["text"].numpy() == b"some words"


def _batch_normalized() -> Any:
    """Return a Keras model with batch normalization of images and of rows."""
    keras = tensorflow.keras
    given = keras.Input((6, 6, 3))
    hidden = keras.layers.BatchNormalization(name="images")(keras.layers.Conv2D(4, 3, name="filters")(given))
    hidden = keras.layers.Dense(4, name="features")(keras.layers.Flatten()(hidden))
    hidden = keras.layers.BatchNormalization(name="rows")(hidden)
    return keras.Model(given, keras.layers.Dense(2, name="scores")(hidden))


@pytest.mark.parametrize("exported", [True, False])
async def test_loaded_model_has_tensorflows_trainable_variables(tmp_path: Path, exported: bool) -> None:
    model = _batch_normalized()
    if exported:
        model.export(str(tmp_path), verbose=False)
    else:
        tensorflow.saved_model.save(model, str(tmp_path))
    loaded = tensorflow.saved_model.load(str(tmp_path))  # kept, since signatures do not keep the variables alive
    theirs = {v.name.partition(":")[0]: v for v in loaded.signatures["serving_default"].variables}
    ours = load_saved_model(tmp_path)
    assert ours.variables.keys() == theirs.keys()
    assert len(theirs) == 14
    with ours.graph.as_default():
        trained = {name for name, v in ours.variables.items() if v in af.trainable_variables()}
        assert trained == {name for name, v in theirs.items() if v.trainable}
        assert len(trained) == 10
        scores = next(iter(ours.outputs.values()))
        step = af.train.GradientDescentOptimizer(0.1).minimize(af.reduce_mean(af.square(scores - 1.0)))
        images = np.random.default_rng(0).normal(size=(5, 6, 6, 3)).astype(np.float32)
        async with af.Session() as session:
            await session.run(af.global_variables_initializer())
            for name, variable in ours.variables.items():
                np.testing.assert_array_equal(await session.run(variable), theirs[name].numpy())
            for _ in range(3):
                await session.run(step, {next(iter(ours.inputs.values())): images})
            found = await session.run(list(ours.variables.values()))
    for name, value in zip(ours.variables, found, strict=True):
        if name not in trained:
            np.testing.assert_array_equal(value, theirs[name].numpy())


def test_moments_are_not_trainable_without_variable_records(tmp_path: Path) -> None:
    module = tensorflow.Module()
    names = ("scale", "offset", "mean", "variance")
    module.kept = [tensorflow.Variable(np.ones(2, np.float32), name=name) for name in names]

    def call(x: Any) -> Any:
        return tensorflow.compat.v1.nn.fused_batch_norm(x, *module.kept, is_training=False)[0]

    images = tensorflow.TensorSpec((None, 4, 4, 2), tensorflow.float32)
    module.call = tensorflow.function(call, input_signature=[images])
    tensorflow.saved_model.save(module, str(tmp_path), signatures=module.call)
    assert not {v.op.name for v in load_saved_model(tmp_path).variables.values() if not v.trainable}, "it does tell"
    file = tmp_path / "saved_model.pb"
    model = parse("SavedModel", file.read_bytes())
    for node in model.meta_graphs[0].object_graph_def.nodes:
        node.ClearField("variable")
    file.write_bytes(to_bytes(model))
    kept = {v.op.name for v in load_saved_model(tmp_path).variables.values() if not v.trainable}
    assert kept == {"mean", "variance"}
