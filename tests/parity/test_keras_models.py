"""Keras models with random weights, exported by Keras and imported here: the results must be equal.

`keras_layers.MISSING` lists the layers with unsupported ops. Importing them must fail and report exactly those ops.
The applications beyond the first two take minutes: set `AIOFLOW_ALL_KERAS=1` to run them.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.interop.tensorflow import load_saved_model, save_saved_model
from aioflow.interop.unsupported import UnsupportedError
from tests.parity.keras_layers import CASES, IMAGE, MISSING, Spec

tensorflow: Any = pytest.importorskip("tensorflow")
keras: Any = tensorflow.keras
APPLICATIONS = {
    "MobileNetV2": 64,
    "ResNet50": 64,
    "MobileNet": 64,
    "MobileNetV3Small": 64,
    "MobileNetV3Large": 64,
    "ResNet50V2": 64,
    "EfficientNetB0": 64,
    "EfficientNetV2B0": 64,
    "DenseNet121": 64,
    "InceptionV3": 75,
    "InceptionResNetV2": 75,
    "Xception": 71,
    "NASNetMobile": 64,
    "ConvNeXtTiny": 64,
    "VGG16": 32,
}
FEW = 2
_HELD = "Keras exports the model"


@pytest.fixture(autouse=True)
def _forgotten() -> Any:
    """Seed Keras, and clear its session afterwards, since Keras keeps every object that it made."""
    keras.utils.set_random_seed(1)
    yield
    keras.backend.clear_session()


def _value(generator: Any, spec: Spec) -> Any:
    shape, dtype = (2, *spec[0]), spec[1]
    if dtype == "string":
        words = np.array([b"a", b"b", b"hello world", b"unknown"], object)
        return words[generator.integers(0, 4, shape)]
    if dtype.startswith("int"):
        return generator.integers(0, 4, shape).astype(dtype)
    drawn = (
        generator.random(shape) if spec == IMAGE else generator.normal(size=shape)
    )  # some image layers expect values in [0, 1)
    return drawn.astype(dtype)


async def _compare(model: Any, folder: Path, specs: tuple[Spec, ...]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        model.export(str(folder), verbose=False)
    ours = load_saved_model(folder)
    theirs = tensorflow.saved_model.load(str(folder)).signatures["serving_default"]
    generator = np.random.default_rng(0)
    names = sorted(ours.inputs, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])
    feeds = {name: _value(generator, spec) for name, spec in zip(names, specs, strict=True)}
    expected = {k: v.numpy() for k, v in theirs(**{k: tensorflow.constant(v) for k, v in feeds.items()}).items()}
    async with af.Session(graph=ours.graph) as session:
        await ours.initialize(session)
        found = await session.run(dict(ours.outputs), {ours.inputs[name]: value for name, value in feeds.items()})
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        if value.dtype == object:
            assert found[name].tolist() == value.tolist()
        else:
            np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-5)


def _model(name: str) -> Any:
    case = CASES[name]
    inputs = [keras.Input(shape, dtype=dtype) for shape, dtype in case.inputs]
    layer = case.make()
    given = [inputs] if case.together else inputs
    return keras.Model(inputs, layer(*given, **case.call))


@pytest.mark.blocks_loop(_HELD)
@pytest.mark.parametrize("name", sorted(CASES))
async def test_keras_layer(tmp_path: Path, name: str) -> None:
    work = _compare(_model(name), tmp_path / "model", CASES[name].inputs)
    if name not in MISSING:
        await work
        return
    with pytest.raises(UnsupportedError) as caught:
        await work
    assert {each.op for each in caught.value.unsupported} == set(MISSING[name].split())


def test_table_has_every_keras_layer() -> None:
    """Allow layers that only hold others, are abstract, or need another framework."""
    others = """Input InputLayer InputSpec Layer Wrapper Pipeline MaxNumBoundingBoxes FlaxLayer JaxLayer TFSMLayer
        TorchModuleWrapper LSTMCell GRUCell SimpleRNNCell Equalization"""
    older = {"RandomHeight", "RandomWidth", "ThresholdedReLU"}  # Keras keeps them only for old programs
    shown = {getattr(keras.layers, name.split()[0]) for name in CASES}
    kinds = {name: getattr(keras.layers, name) for name in dir(keras.layers) if name[0].isupper()}
    assert sorted(name for name, kind in kinds.items() if kind not in shown) == sorted({*others.split()} | older)


@pytest.mark.blocks_loop(_HELD)
@pytest.mark.parametrize("name", list(APPLICATIONS))
async def test_keras_application(tmp_path: Path, name: str) -> None:
    if list(APPLICATIONS).index(name) >= FEW and not os.environ.get("AIOFLOW_ALL_KERAS"):
        pytest.skip("takes minutes; AIOFLOW_ALL_KERAS=1 runs it")
    shape = (APPLICATIONS[name], APPLICATIONS[name], 3)
    model = getattr(keras.applications, name)(weights=None, input_shape=shape, classes=10)
    await _compare(model, tmp_path, ((shape, "float32"),))


@pytest.mark.blocks_loop(_HELD)
async def test_tensorflow_runs_a_reexported_keras_model(tmp_path: Path) -> None:
    """Import a Keras model, export it, and run it with both of TensorFlow's loaders."""
    inputs = keras.Input((8, 3))
    hidden = keras.layers.BatchNormalization()(keras.layers.LSTM(4)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(hidden))
    x = np.random.default_rng(0).normal(size=(3, 8, 3)).astype(np.float32)
    expected = model(x).numpy()
    with contextlib.redirect_stdout(io.StringIO()):
        model.export(str(tmp_path / "keras"), verbose=False)
    ours = load_saved_model(tmp_path / "keras")
    async with af.Session(graph=ours.graph) as session:
        await ours.initialize(session)
        await save_saved_model(session, tmp_path / "again", ours.signatures)
    function = tensorflow.saved_model.load(str(tmp_path / "again")).signatures["serving_default"]
    (name,) = ours.inputs
    (found,) = function(**{name: tensorflow.constant(x)}).values()
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
    v1 = tensorflow.compat.v1
    with v1.Session(graph=v1.Graph()) as session:
        meta = v1.saved_model.load(session, ["serve"], str(tmp_path / "again"))
        signature = meta.signature_def["serving_default"]
        (output,) = signature.outputs.values()
        found = session.run(output.name, {signature.inputs[name].name: x})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
