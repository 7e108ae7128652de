"""ONNX models whose inputs have no shape, against onnxruntime: ranks known only in the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aioflow.errors import InvalidArgumentError
from tests.interop.onnx.one_node import run_model
from tests.interop.onnx.test_shapes import shapeless

RANDOM = np.random.default_rng(3)


def values(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


ANY_RANK = [values(3), values(2, 3), values(2, 4, 3), values(1, 2, 2, 3)]
IMAGES = [values(2, 3, 5, 5)]
CASES: dict[str, tuple[Any, list[Any]]] = {
    "Softmax": (shapeless("Softmax"), ANY_RANK),
    "Softmax 1": (shapeless("Softmax", axis=1), ANY_RANK[1:]),
    "Softmax -2": (shapeless("Softmax", axis=-2), ANY_RANK[1:]),
    "Softmax 11": (shapeless("Softmax", opset=11), ANY_RANK[1:]),
    "LogSoftmax 0": (shapeless("LogSoftmax", axis=0), ANY_RANK),
    "Hardmax": (shapeless("Hardmax"), ANY_RANK),
    "Flatten": (shapeless("Flatten"), ANY_RANK),
    "Flatten 0": (shapeless("Flatten", axis=0), ANY_RANK),
    "Flatten -1": (shapeless("Flatten", axis=-1), ANY_RANK),
    "Transpose": (shapeless("Transpose"), ANY_RANK),
    "Transpose 021": (shapeless("Transpose", perm=[0, 2, 1]), ANY_RANK[2:3]),
    "Reshape": (shapeless("Reshape", np.array([0, -1])), ANY_RANK[1:]),
    "Gather -1": (shapeless("Gather", np.array([2, -1]), axis=-1), ANY_RANK),
    "Squeeze -1": (shapeless("Squeeze", np.array([-1])), [values(3, 1), values(2, 2, 1)]),
    "Unsqueeze -1": (shapeless("Unsqueeze", np.array([-1])), ANY_RANK),
    "TopK": (shapeless("TopK", np.array([2]), outputs=("y", "i")), ANY_RANK),
    "Trilu": (shapeless("Trilu"), ANY_RANK[1:]),
    "ReduceMean": (shapeless("ReduceMean", np.array([-1])), ANY_RANK),
    "Compress -1": (shapeless("Compress", np.array([True, False, True]), axis=-1), ANY_RANK),
    "LayerNormalization": (shapeless("LayerNormalization", values(3), values(3)), ANY_RANK),
    "LayerNormalization 1": (shapeless("LayerNormalization", values(3), axis=1), ANY_RANK[1:]),
    "BatchNormalization": (
        shapeless("BatchNormalization", *(np.abs(values(3)) for _ in range(4))),
        [values(2, 3), values(2, 3, 4), values(2, 3, 4, 4)],
    ),
    "GlobalAveragePool": (shapeless("GlobalAveragePool"), [values(2, 3, 4), *IMAGES]),
    "GlobalMaxPool": (shapeless("GlobalMaxPool"), [values(2, 3, 4), *IMAGES]),
    "Gemm": (shapeless("Gemm", values(3, 5), values(5)), ANY_RANK[1:2]),
    "MatMul": (shapeless("MatMul", values(3, 5)), ANY_RANK[1:]),
    "Conv": (shapeless("Conv", values(4, 3, 3, 3), pads=[1, 1, 1, 1]), IMAGES),
    "ConvTranspose": (shapeless("ConvTranspose", values(3, 4, 3, 3)), IMAGES),
    "MaxPool": (shapeless("MaxPool", kernel_shape=[2, 2]), IMAGES),
    "AveragePool": (shapeless("AveragePool", kernel_shape=[2, 2], strides=[2, 2]), IMAGES),
    "LRN": (shapeless("LRN", size=3), IMAGES),
    "DepthToSpace": (shapeless("DepthToSpace", blocksize=2), [values(1, 8, 2, 3)]),
    "SpaceToDepth": (shapeless("SpaceToDepth", blocksize=2), [values(1, 2, 4, 6)]),
    "EyeLike": (shapeless("EyeLike"), ANY_RANK[1:2]),
    "Resize": (shapeless("Resize", np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32)), IMAGES),
    "Resize sizes": (
        shapeless("Resize", np.zeros(0, np.float32), np.zeros(0, np.float32), np.array([2, 3, 7, 3])),
        IMAGES,
    ),
    "Pad": (shapeless("Pad", np.array([0, 1, 1, 0])), ANY_RANK[1:2]),
    "GridSample": (shapeless("GridSample", values(2, 2, 2, 2)), IMAGES),
}


@pytest.mark.parametrize("name", CASES)
async def test_inputs_without_a_shape(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model, inputs = CASES[name]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for x in inputs:
        found, wanted = (await run_model(model, {"x": x}))[0], session.run(["y"], {"x": x})[0]
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


async def test_step_rejects_unsupported_ranks() -> None:
    for model in (shapeless("Conv", values(4, 3, 3, 3)), shapeless("Gemm", values(3, 5))):
        with pytest.raises(InvalidArgumentError, match="shape"):
            await run_model(model, {"x": values(3)})
