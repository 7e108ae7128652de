"""SavedModels of ours in TensorFlow 2's loader: variables, which of them are trained, assets and tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aioflow as af
from aioflow.interop import Signature
from aioflow.interop.tensorflow import load_saved_model, save_saved_model

tensorflow = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.parity

WEIGHTS = np.arange(6, dtype=np.float32).reshape(3, 2)


async def test_tensorflow_knows_the_variables(tmp_path: Path) -> None:
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


async def test_tensorflow_finds_the_assets(tmp_path: Path) -> None:
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
