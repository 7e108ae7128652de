"""ONNX's image and signal ops against onnxruntime, beyond onnx's own tests, with known and unknown sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.interop.onnx.one_node import one_node, run_model

onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 7, 9)).astype(np.float32)


async def same(op: str, inputs: Mapping[str, Any], *, atol: float = 1e-5, **how: Any) -> None:
    """Check that the node matches onnxruntime, with known and with unknown sizes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    for known in (True, False):
        model = one_node(op, inputs, known_shapes=known, **how)
        expected = _theirs(model, inputs, options)
        for found, wanted in zip(await run_model(model, inputs), expected, strict=True):
            assert found.dtype == wanted.dtype
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=atol)


def _theirs(model: Any, inputs: Mapping[str, Any], options: Any) -> Any:
    for output in model.graph.output:
        output.ClearField("type")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = {each.name for each in session.get_inputs()}
    return session.run(None, {name: value for name, value in inputs.items() if name in names})


COORDINATES = ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("scales", [(1, 1, 2, 1.5), (1, 1, 0.5, 0.7), (1, 1, 1, 3)])
async def test_resize_by_scales(mode: str, coordinates: str, scales: Any) -> None:
    inputs = {"x": X, "roi": None, "scales": np.array(scales, np.float32)}
    how: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if coordinates == "align_corners":  # for fractions onnxruntime uses the resulting size, onnx the requested one
        inputs["scales"] = np.array([1, 1, 2, 3], np.float32)
    for weights in (["scales"], []):
        await same("Resize", inputs, weights=weights, opset=13, atol=1e-4, **how)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", COORDINATES)
async def test_resize_to_sizes_by_nearest(rounding: str, coordinates: str) -> None:
    inputs = {"x": X, "roi": None, "scales": None, "sizes": np.array([2, 3, 14, 5], np.int64)}
    how: dict[str, Any] = {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": coordinates}
    await same("Resize", inputs, weights=["sizes"], opset=13, **how)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("outside", [0, 1])
async def test_resize_with_antialias(mode: str, outside: int) -> None:
    inputs = {"x": X, "roi": None, "scales": None, "sizes": np.array([2, 3, 3, 4], np.int64)}
    await same(
        "Resize", inputs, weights=["sizes"], opset=18, mode=mode, antialias=1, exclude_outside=outside, atol=1e-4
    )


async def test_resize_and_upsample_of_old_opsets() -> None:
    scales = np.array([1, 1, 2, 1.5], np.float32)
    for mode in ("nearest", "linear"):
        await same("Resize", {"x": X, "scales": scales}, weights=["scales"], opset=10, mode=mode)
        await same("Upsample", {"x": X, "scales": scales}, weights=["scales"], opset=9, mode=mode)
        await same("Upsample", {"x": X}, opset=7, mode=mode, scales=[1.0, 1.0, 2.0, 1.5])


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("aligned", [0, 1])
async def test_grid_sample_far_outside(mode: str, padding: str, aligned: int) -> None:
    grid = RNG.uniform(-3, 3, (2, 5, 4, 2)).astype(np.float32)
    how = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    await same("GridSample", {"x": X, "grid": grid}, opset=16, atol=1e-4, **how)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
async def test_roi_align(mode: str, ratio: int, coordinates: str) -> None:
    rois = np.array([[1, 1, 6, 5], [0, 0, 3, 3], [2.4, 3.6, 8, 6.5], [-3, -2, 20, 30]], np.float32)
    inputs = {"x": X, "rois": rois, "batches": np.array([0, 1, 1, 0], np.int64)}
    how: dict[str, Any] = {
        "mode": mode,
        "sampling_ratio": ratio,
        "output_height": 3,
        "output_width": 2,
        "spatial_scale": 0.8,
    }
    await same("RoiAlign", inputs, opset=16, coordinate_transformation_mode=coordinates, **how)


async def test_max_roi_pool() -> None:
    rois = np.array([[0, 1, 1, 6, 5], [1, 0, 0, 3, 3], [1, 2.4, 3.6, 8, 5], [0, 5, 5, 4, 4]], np.float32)
    await same("MaxRoiPool", {"x": X, "rois": rois}, opset=13, pooled_shape=[3, 2], spatial_scale=1.0)


@pytest.mark.parametrize("middles", [0, 1])
@pytest.mark.parametrize("classes", [2, 90])
async def test_non_max_suppression_of_classes(middles: int, classes: int) -> None:
    boxes = RNG.random((2, 20, 4)).astype(np.float32)
    scores = RNG.random((2, classes, 20)).astype(np.float32)
    inputs = {
        "boxes": boxes,
        "scores": scores,
        "most": np.array([3], np.int64),
        "overlap": np.array([0.2], np.float32),
        "least": np.array([0.4], np.float32),
    }
    await same("NonMaxSuppression", inputs, opset=13, center_point_box=middles)


@pytest.mark.parametrize("how", [{}, {"onesided": 1}, {"inverse": 1}])
@pytest.mark.parametrize("length", [None, 5, 12])
async def test_dft_with_length(how: Any, length: int | None) -> None:
    parts = 1 if how.get("onesided") else 2
    x = RNG.standard_normal((2, 9, 4, parts)).astype(np.float32)
    given = None if length is None else np.array(length, np.int64)
    await same("DFT", {"x": x, "length": given}, weights=["length"], opset=17, axis=1, atol=1e-4, **how)


@pytest.mark.parametrize("onesided", [0, 1])
async def test_stft(onesided: int) -> None:
    x = RNG.standard_normal((2, 40, 1)).astype(np.float32)
    window = np.hanning(16).astype(np.float32)
    inputs = {"x": x, "step": np.array(5, np.int64), "window": window, "length": np.array(16, np.int64)}
    await same("STFT", inputs, weights=["step", "length"], opset=17, onesided=onesided, atol=1e-4)


PADDINGS: list[dict[str, Any]] = [
    {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
    {"auto_pad": "SAME_LOWER"},
    {"auto_pad": "VALID", "strides": [2, 2]},
    {"pads": [1, 0, 2, 1], "strides": [1, 2], "dilations": [2, 3]},
]


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("op", ["AveragePool", "LpPool", "MaxPool"])
async def test_pool_windows(op: str, ceil_mode: int, padding: dict[str, Any]) -> None:
    how = {"kernel_shape": [3, 3], "ceil_mode": ceil_mode, **padding}
    await same(op, {"x": X}, opset=22, **how)
    if op == "AveragePool":
        await same(op, {"x": X}, opset=22, count_include_pad=1, **how)
    if op == "MaxPool":
        await same(op, {"x": X}, opset=22, outputs=("y", "places"), **how)


@pytest.mark.parametrize("padding", PADDINGS)
async def test_convolution_windows(padding: dict[str, Any]) -> None:
    for x, kernel in ((X, (4, 3, 3, 3)), (X[:, :, 0], (4, 3, 3)), (X[:, :, None], (4, 3, 1, 3, 3))):
        axes = x.ndim - 2
        how = {key: value if key == "auto_pad" else _along(value, axes) for key, value in padding.items()}
        weights = RNG.standard_normal(kernel).astype(np.float32)
        await same("Conv", {"x": x, "w": weights}, weights=["w"], atol=1e-4, **how)


def _along(values: list[int], axes: int) -> list[int]:
    """Convert attributes of two axes to those of the last axis, or of three axes."""
    if axes == 2:
        return values
    if len(values) == 4:
        return [values[1], values[3]] if axes == 1 else [0, *values[:2], 0, *values[2:]]
    return values[1:] if axes == 1 else [1, *values]


@pytest.mark.parametrize(
    "how",
    [
        {"auto_pad": "SAME_UPPER"},
        {"auto_pad": "SAME_LOWER", "dilations": [2, 1]},
        {"output_shape": [14, 26]},
        {"output_shape": [15, 27], "output_padding": [1, 1]},
    ],
)
async def test_transposed_convolution_windows(how: dict[str, Any]) -> None:
    weights = RNG.standard_normal((3, 4, 3, 3)).astype(np.float32)
    await same("ConvTranspose", {"x": X, "w": weights}, weights=["w"], strides=[2, 3], atol=1e-4, **how)
