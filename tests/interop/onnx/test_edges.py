"""Edge cases that ONNX specifies: no elements, one element, and values that are not numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from aioflow.interop import onnx
from tests.interop.onnx.one_node import one_node, run_model


async def given(op: str, inputs: dict[str, Any], outputs: tuple[str, ...] = ("y",), **options: Any) -> list[Any]:
    arrays = {name: None if value is None else np.asarray(value) for name, value in inputs.items()}
    return await run_model(one_node(op, arrays, outputs, **options), {k: v for k, v in arrays.items() if v is not None})


@pytest.mark.parametrize("weights", [(), ("a", "b", "c")])
@pytest.mark.parametrize(("start", "limit", "delta"), [(-6, -8, 2), (1, 4, -1), (3, 3, 1), (2, 0, 1)])
@pytest.mark.parametrize("dtype", [np.int64, np.float32])
async def test_a_range_away_from_its_limit_is_empty(
    start: int, limit: int, delta: int, dtype: Any, weights: tuple[str, ...]
) -> None:
    numbers = {"a": np.asarray(start, dtype), "b": np.asarray(limit, dtype), "c": np.asarray(delta, dtype)}
    model = one_node("Range", numbers, weights=weights)
    [y] = await run_model(model, {name: value for name, value in numbers.items() if name not in weights})
    assert y.dtype == dtype
    assert y.shape == (0,)


async def test_floats_as_text_keep_their_digits() -> None:
    cases = {1e-10: b"1e-10", 0.1: b"0.1", -0.0: b"-0", 1e30: b"1e+30", 123456.5: b"123456.5"}
    for dtype in (np.float32, np.float64):
        [y] = await given("Cast", {"x": np.array([*cases], dtype)}, to=8)
        assert [float(text) for text in y] == pytest.approx([*cases], rel=1e-7)
        [y] = await given("Cast", {"x": np.array([np.inf, -np.inf, np.nan], dtype)}, to=8)
        assert y.tolist() == [b"INF", b"-INF", b"NaN"]
    [y] = await given("Cast", {"x": np.array([*cases])}, to=8)
    assert y.tolist() == [*cases.values()]


@pytest.mark.parametrize("known_shapes", [False, True])
async def test_the_last_part_of_a_split_may_be_smaller(known_shapes: bool) -> None:
    for size, sizes in ((5, [2, 2, 1]), (4, [2, 2, 0]), (1, [1, 0, 0]), (0, [0, 0, 0])):
        x = np.arange(2.0 * size, dtype=np.float32).reshape(2, size)
        parts = await given("Split", {"x": x}, ("a", "b", "c"), known_shapes=known_shapes, axis=1, num_outputs=3)
        assert [part.shape for part in parts] == [(2, n) for n in sizes]
        np.testing.assert_array_equal(np.concatenate(parts, 1), x)


async def test_shrink_applies_a_float_bias_to_integers() -> None:
    [y] = await given("Shrink", {"x": np.array([-5, 0, 1, 9], np.int16)}, lambd=1.0, bias=0.5)
    np.testing.assert_array_equal(y, np.array([-4, 0, 0, 8], np.int16))
    [y] = await given("Shrink", {"x": np.array([0, 1, 9], np.uint8)}, lambd=0.5, bias=0.5)
    np.testing.assert_array_equal(y, np.array([0, 0, 8], np.uint8))


@pytest.mark.parametrize("axis", [0, 1])
async def test_hardmax_of_no_elements_is_empty(axis: int) -> None:
    [y] = await given("Hardmax", {"x": np.zeros((0, 2), np.float32)}, axis=axis)
    assert y.shape == (0, 2)


async def test_resizing_to_one_element_takes_the_first_one() -> None:
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 4)
    inputs = {"x": x, "roi": None, "scales": np.array([1, 1, 0.3], np.float32)}
    for mode in ("linear", "nearest"):
        options = {"mode": mode, "coordinate_transformation_mode": "pytorch_half_pixel"}
        model = one_node("Resize", inputs, weights=("scales",), **options)  # type: ignore[arg-type]
        [y] = await run_model(model, {"x": x})
        np.testing.assert_array_equal(y, [[[1]]])


@pytest.mark.parametrize("known_shapes", [False, True])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
async def test_same_padding_of_dilated_windows(mode: str, known_shapes: bool) -> None:
    """Windows have two elements, with dilation 2 and stride 3."""
    for size in (1, 4, 6, 7):
        x = np.random.default_rng(size).standard_normal((1, 1, size)).astype(np.float32)
        count = -(-size // 3)
        total = max(0, 3 * (count - 1) + 3 - size)
        before = total // 2 if mode == "SAME_UPPER" else total - total // 2
        framed = np.pad(x, [(0, 0), (0, 0), (before, total - before)], constant_values=-np.inf)
        expected = [max(framed[0, 0, 3 * i], framed[0, 0, 3 * i + 2]) for i in range(count)]
        options: dict[str, Any] = {"kernel_shape": [2], "dilations": [2], "strides": [3], "auto_pad": mode}
        [y] = await given("MaxPool", {"x": x}, known_shapes=known_shapes, **options)
        np.testing.assert_array_equal(y, [[expected]])


@pytest.mark.parametrize("known_shapes", [False, True])
@pytest.mark.parametrize("least", [np.float32(-np.inf), np.float32(np.nan), np.int8(-128), np.uint8(0)], ids=repr)
async def test_max_pool_finds_the_first_element_of_windows_of_the_least_value(least: Any, known_shapes: bool) -> None:
    x = np.full((1, 2, 3, 3), least)
    x[0, 1, 2, 2] = 1
    how: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 0, 0]}
    y, places = await given("MaxPool", {"x": x}, ("y", "places"), known_shapes=known_shapes, **how)
    np.testing.assert_array_equal(places, [[[[0, 1], [3, 4]], [[9, 10], [12, 13 if np.isnan(least) else 17]]]])
    np.testing.assert_array_equal(y, x.reshape(-1)[places])


@pytest.mark.parametrize("spatial", [(5,), (4, 5), (3, 4, 5)])
async def test_conv_groups_without_known_shapes(spatial: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, *spatial)).astype(np.float32)
    w = np.arange(1, 7, dtype=np.float32).reshape(6, 1, *[1] * len(spatial)).repeat(2, 1)
    model = one_node("Conv", {"x": x, "w": w}, weights=("w",), known_shapes=False, group=2)
    sums = [x[:, 2 * (i // 3) : 2 * (i // 3) + 2].sum(1) * (i + 1) for i in range(6)]
    np.testing.assert_allclose((await run_model(model, {"x": x}))[0], np.stack(sums, 1), rtol=1e-5)
    exported = await onnx.export(onnx.load(model))
    assert [a.i for node in exported.graph.node for a in node.attribute if a.name == "group"] == [2]


async def test_int8_volumes_are_pooled() -> None:
    x = np.arange(-32, 32, dtype=np.int8).reshape(1, 1, 4, 4, 4)
    [y] = await given("MaxPool", {"x": x}, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    assert y.dtype == np.int8
    np.testing.assert_array_equal(y, x[:, :, 1::2, 1::2, 1::2])


@pytest.mark.parametrize("known_shapes", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
async def test_top_k_orders_nan_and_equal_elements_as_onnx(
    dtype: str, largest: int, axis: int, known_shapes: bool
) -> None:
    """NaN is the largest number, and the first of equal elements comes first, as in onnx's own evaluator."""
    rng = np.random.default_rng(3)
    x = rng.integers(-2, 3, (6, 7)).astype(dtype)
    if dtype == "float32":
        x[rng.random(x.shape) < 0.2] = np.nan
        x[rng.random(x.shape) < 0.1] = np.inf
        x[rng.random(x.shape) < 0.1] = -np.inf
    inputs = {"x": x, "k": np.array([5])}
    model = one_node("TopK", inputs, ("v", "i"), known_shapes=known_shapes, axis=axis, largest=largest)
    found = await run_model(model, inputs)
    for ours, theirs in zip(found, ReferenceEvaluator(model).run(None, inputs), strict=True):
        np.testing.assert_array_equal(ours, theirs)
