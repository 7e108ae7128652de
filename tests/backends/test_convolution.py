"""Convolutions against loops over every output in float64, and their gradients against the adjoint identity."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aioflow.concurrency.stopping import Stoppable, Stopped, current_work, doing
from aioflow.ops.nn.geometry import same_padding
from aioflow_numpy import conv_core
from aioflow_numpy.conv_scratch import scratch
from aioflow_numpy.convolution import (
    conv2d,
    conv2d_backprop_filter,
    conv2d_backprop_input,
    depthwise_conv2d,
    depthwise_conv2d_backprop_filter,
    depthwise_conv2d_backprop_input,
    output_size,
)
from aioflow_numpy.threads import for_each, thread_count

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]
Geometry = tuple[tuple[int, int], tuple[tuple[int, int], tuple[int, int]], tuple[int, int]]

PLAIN: Geometry = ((1, 1), ((0, 0), (0, 0)), (1, 1))

# (input NHWC, filter HWIO, (strides, padding, dilations)); a padding of None is SAME.
CASES: list[tuple[Shape, Shape, tuple[int, int], Any, tuple[int, int]]] = [
    ((2, 5, 6, 3), (3, 3, 3, 4), (1, 1), None, (1, 1)),
    ((2, 5, 6, 8), (3, 3, 8, 4), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    ((2, 7, 6, 8), (3, 2, 8, 4), (2, 3), None, (1, 1)),
    ((2, 7, 8, 6), (3, 3, 6, 5), (3, 2), ((2, 1), (0, 3)), (1, 1)),
    ((1, 9, 8, 6), (3, 3, 6, 2), (1, 1), None, (2, 3)),
    ((1, 9, 9, 6), (2, 3, 6, 2), (2, 1), ((1, 1), (2, 2)), (2, 2)),
    ((3, 4, 5, 7), (1, 1, 7, 4), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    ((3, 5, 7, 7), (1, 1, 7, 4), (2, 3), ((0, 0), (0, 0)), (1, 1)),
    ((3, 5, 7, 7), (1, 1, 7, 4), (2, 2), ((1, 0), (0, 2)), (1, 1)),
    ((2, 8, 8, 1), (5, 5, 1, 6), (1, 1), None, (1, 1)),
    ((2, 8, 8, 2), (5, 3, 2, 6), (2, 1), ((3, 0), (1, 1)), (1, 2)),
    ((2, 2, 2, 6), (4, 5, 6, 3), (1, 1), ((2, 2), (3, 2)), (1, 1)),
    ((2, 3, 3, 6), (2, 2, 6, 3), (1, 1), ((3, 4), (2, 5)), (1, 1)),
    ((2, 6, 6, 6), (1, 2, 6, 3), (3, 3), ((0, 0), (0, 0)), (1, 1)),
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    ((1, 1, 9, 16), (1, 3, 16, 2), (1, 1), None, (1, 1)),
    ((2, 6, 5, 6), (3, 3, 2, 9), (1, 1), None, (1, 1)),
    ((2, 6, 5, 6), (3, 3, 3, 4), (2, 2), None, (1, 1)),
    ((2, 6, 5, 6), (1, 1, 3, 4), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    ((2, 6, 5, 4), (3, 3, 1, 8), (1, 1), None, (1, 1)),
    ((2, 6, 5, 4), (3, 3, 1, 4), (2, 1), ((1, 0), (2, 2)), (1, 2)),
    ((0, 6, 5, 4), (3, 3, 4, 8), (1, 1), None, (1, 1)),
    ((2, 2, 2, 4), (3, 3, 4, 8), (1, 1), ((0, 0), (0, 0)), (1, 1)),
]


def _geometry(
    shape: Shape, kernel: Shape, strides: tuple[int, int], padding: Any, dilations: tuple[int, int]
) -> Geometry:
    if padding is None:
        padding = tuple(same_padding(shape[1 + k], kernel[k], strides[k], dilations[k]) for k in range(2))
    return strides, padding, dilations


def _oracle(x: Array, w: Array, strides: tuple[int, int], padding: Any, dilations: tuple[int, int]) -> Array:
    """Compute one window at a time, by definition, for any number of groups; NHWC, in float64."""
    kh, kw, per_group, co = w.shape
    padded = np.pad(x.astype(np.float64), ((0, 0), *padding, (0, 0)))
    sizes = [(padded.shape[1 + k] - (w.shape[k] - 1) * dilations[k] - 1) // strides[k] + 1 for k in range(2)]
    out = np.zeros((x.shape[0], max(0, sizes[0]), max(0, sizes[1]), co))
    co_group = co // (x.shape[3] // per_group)
    for n, y, z, o in itertools.product(*(range(size) for size in out.shape)):
        rows = [y * strides[0] + i * dilations[0] for i in range(kh)]
        columns = [z * strides[1] + j * dilations[1] for j in range(kw)]
        first = o // co_group * per_group
        window = padded[n, rows][:, columns, first : first + per_group]
        out[n, y, z, o] = (window * w[..., o]).sum(dtype=np.float64)
    return out


def _random(shape: Shape, seed: int = 0, dtype: Any = np.float64) -> Array:
    values: Array = np.random.default_rng(seed).standard_normal(shape)
    return values.astype(dtype)


def _to(array: Array, data_format: str) -> Array:
    return array if data_format == "NHWC" else np.ascontiguousarray(array.transpose(0, 3, 1, 2))


def _shape_to(shape: Shape, data_format: str) -> Shape:
    return shape if data_format == "NHWC" else (shape[0], shape[3], shape[1], shape[2])


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv2d_is_the_sum_over_each_window(case: Any, data_format: str) -> None:
    shape, kernel = case[:2]
    geometry = _geometry(*case)
    x, w = _random(shape), _random(kernel, 1)
    expected = _to(_oracle(x, w, *geometry), data_format)
    result = conv2d(_to(x, data_format), w, *geometry, data_format)
    assert result.shape == expected.shape
    assert result.dtype == x.dtype
    assert result.flags.c_contiguous
    np.testing.assert_allclose(result, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv2d_backprops_are_the_adjoints_of_the_convolution(case: Any, data_format: str) -> None:
    # The convolution is linear in x and in w, so <conv(u, w), dy> = <u, dx> for every u determines dx. Random
    # directions and one with a single nonzero element suffice in practice.
    shape, kernel = case[:2]
    geometry = _geometry(*case)
    x, w = _random(shape), _random(kernel, 1)
    y = _oracle(x, w, *geometry)
    dy = _random(y.shape, 2)
    args = (_to(dy, data_format), *geometry, data_format)
    dx = conv2d_backprop_input(_shape_to(shape, data_format), w, *args)
    dw = conv2d_backprop_filter(_to(x, data_format), kernel, *args)
    assert dx.shape == _shape_to(shape, data_format)
    assert dw.shape == kernel
    for direction in (_random(shape, 3), _element(shape)):
        change = _oracle(direction, w, *geometry)
        np.testing.assert_allclose((change * dy).sum(), (_to(direction, data_format) * dx).sum(), rtol=1e-9, atol=1e-9)
    for direction in (_random(kernel, 3), _element(kernel)):
        change = _oracle(x, direction, *geometry)
        np.testing.assert_allclose((change * dy).sum(), (direction * dw).sum(), rtol=1e-9, atol=1e-9)


def _element(shape: Shape) -> Array:
    direction = np.zeros(shape)
    if direction.size:
        direction.flat[direction.size // 2] = 1
    return direction


@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (1, 3)])
@pytest.mark.parametrize("dilations", [(1, 1), (2, 3)])
@pytest.mark.parametrize("multiplier", [1, 3])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("padding", [None, ((0, 0), (0, 0)), ((2, 3), (1, 4))])
def test_depthwise_is_grouped_convolution_of_single_channels(
    strides: tuple[int, int], dilations: tuple[int, int], multiplier: int, data_format: str, padding: Any
) -> None:
    shape, kernel = (2, 7, 8, 3), (3, 2, 3, multiplier)
    geometry = _geometry(shape, kernel, strides, padding, dilations)
    x, w = _random(shape), _random(kernel, 1)
    grouped = w.reshape(3, 2, 1, 3 * multiplier)
    expected = _oracle(x, grouped, *geometry)
    np.testing.assert_allclose(
        depthwise_conv2d(_to(x, data_format), w, *geometry, data_format), _to(expected, data_format), atol=1e-11
    )
    dy = _random(expected.shape, 2)
    args = (_to(dy, data_format), *geometry, data_format)
    dx = depthwise_conv2d_backprop_input(_shape_to(shape, data_format), w, *args)
    dw = depthwise_conv2d_backprop_filter(_to(x, data_format), kernel, *args)
    u, v = _random(shape, 3), _random(kernel, 4)
    change = _oracle(u, grouped, *geometry)
    np.testing.assert_allclose((change * dy).sum(), (_to(u, data_format) * dx).sum(), rtol=1e-9)
    change = _oracle(x, v.reshape(grouped.shape), *geometry)
    np.testing.assert_allclose((change * dy).sum(), (v * dw).sum(), rtol=1e-9)


@pytest.mark.parametrize("batch", [0, 1])
def test_empty_depthwise_convolution(batch: int) -> None:
    x, w = np.zeros((batch, 2, 2, 3)), np.ones((3, 3, 3, 2))
    assert depthwise_conv2d(x, w, *PLAIN, "NHWC").shape == (batch, 0, 0, 6)
    dy = np.zeros((batch, 0, 0, 6))
    np.testing.assert_array_equal(depthwise_conv2d_backprop_input(x.shape, w, dy, *PLAIN, "NHWC"), x)
    np.testing.assert_array_equal(depthwise_conv2d_backprop_filter(x, w.shape, dy, *PLAIN, "NHWC"), 0 * w)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2), (np.float32, 1e-5), (np.float64, 1e-12)]
)
def test_floats_keep_their_dtype_and_narrow_ones_sum_in_float32(dtype: Any, tolerance: float) -> None:
    geometry = _geometry((2, 6, 6, 32), (3, 3, 32, 4), (1, 1), None, (1, 1))
    x, w = _random((2, 6, 6, 32), 0, dtype), _random((3, 3, 32, 4), 1, dtype)
    expected = _oracle(x, w, *geometry)
    y = conv2d(x, w, *geometry, "NHWC")
    assert y.dtype == dtype
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=tolerance, atol=tolerance * 10)
    assert conv2d_backprop_input(x.shape, w, y, *geometry, "NHWC").dtype == dtype
    assert conv2d_backprop_filter(x, w.shape, y, *geometry, "NHWC").dtype == dtype


@pytest.mark.parametrize("high", [100, 2**31 - 1])
def test_int32_is_exact_and_wraps(high: int) -> None:
    # The small values go through float64, the large ones cannot.
    generator = np.random.default_rng(0)
    x = generator.integers(-high, high, (2, 4, 4, 3), np.int32)
    w = generator.integers(-high, high, (2, 2, 3, 5), np.int32)
    y = conv2d(x, w, *PLAIN, "NHWC")
    assert y.dtype == np.int32
    patch = x[1, 2:4, 1:3].astype(object)
    exact = int((patch[..., np.newaxis] * w.astype(object)).sum(axis=(0, 1, 2))[4])
    assert int(y[1, 2, 1, 4]) == (exact + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_same_padding_has_a_window_for_every_stride(size: int, kernel: int, stride: int, dilation: int) -> None:
    lo, hi = same_padding(size, kernel, stride, dilation)
    assert 0 <= hi - lo <= 1
    assert output_size(size, kernel, stride, dilation, lo, hi) == -(-size // stride)


def test_output_size_counts_windows() -> None:
    assert output_size(7, 3, 2, 1, 0, 0) == 3
    assert output_size(7, 3, 2, 2, 1, 0) == 2
    assert output_size(2, 3, 1, 1, 0, 0) == 0
    assert output_size(2, 9, 1, 1, 0, 0) == 0


def test_inputs_may_be_any_view_and_are_not_written() -> None:
    x = _random((4, 9, 9, 12))[::2, 1:, ::-1, ::2]
    w = _random((4, 3, 3, 6), 1).transpose(1, 2, 3, 0)
    geometry = _geometry(x.shape, w.shape, (1, 1), None, (1, 1))
    dy = _random((4, 2, 8, 9), 2).transpose(1, 2, 3, 0)
    for array in (x, w, dy):
        array.flags.writeable = False
    np.testing.assert_allclose(conv2d(x, w, *geometry, "NHWC"), _oracle(x, w, *geometry), atol=1e-11)
    dense = [np.ascontiguousarray(array) for array in (x, w, dy)]
    np.testing.assert_allclose(
        conv2d_backprop_input(x.shape, w, dy, *geometry, "NHWC"),
        conv2d_backprop_input(x.shape, dense[1], dense[2], *geometry, "NHWC"),
    )
    np.testing.assert_allclose(
        conv2d_backprop_filter(x, w.shape, dy, *geometry, "NHWC"),
        conv2d_backprop_filter(dense[0], w.shape, dense[2], *geometry, "NHWC"),
    )


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
@pytest.mark.parametrize("channels", [1, 8])
def test_many_blocks_equal_one_block(monkeypatch: pytest.MonkeyPatch, strides: tuple[int, int], channels: int) -> None:
    x, w = _random((3, 13, 11, channels)), _random((3, 3, channels, 4), 1)
    geometry = _geometry(x.shape, w.shape, strides, None, (1, 1))
    expected = _oracle(x, w, *geometry)
    dy = _random(expected.shape, 2)
    whole = _three_directions(x, w, dy, geometry)
    monkeypatch.setattr(conv_core, "_BLOCK_BYTES", 2048)
    monkeypatch.setattr(conv_core, "_MIN_PRODUCT", 1)
    for a, b in zip(_three_directions(x, w, dy, geometry), whole, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)
    np.testing.assert_allclose(whole[0], expected, atol=1e-11)


def _three_directions(x: Array, w: Array, dy: Array, geometry: Geometry) -> tuple[Array, Array, Array]:
    return (
        conv2d(x, w, *geometry, "NHWC"),
        conv2d_backprop_input(x.shape, w, dy, *geometry, "NHWC"),
        conv2d_backprop_filter(x, w.shape, dy, *geometry, "NHWC"),
    )


def test_concurrent_calls_do_not_disturb_each_other() -> None:
    x, w = _random((8, 14, 14, 16), 0, np.float32), _random((3, 3, 16, 16), 1, np.float32)
    geometry = _geometry(x.shape, w.shape, (1, 1), None, (1, 1))
    expected = _three_directions(x, w, x, geometry)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: _three_directions(x, w, x, geometry), range(24)))
    for result in results:
        for a, b in zip(result, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_for_each_does_all_and_raises_the_first_error() -> None:
    done: list[int] = []
    threads = thread_count()
    for_each(done.append, range(100))
    assert sorted(done) == list(range(100))

    def fail(item: int) -> None:
        if item == 3:
            raise RuntimeError("three")

    with pytest.raises(RuntimeError, match="three"):
        for_each(fail, range(100))
    assert thread_count() == threads


def test_for_each_skips_the_rest_of_a_stopped_step() -> None:
    work, done = Stoppable(), list[int]()

    def one(number: int) -> None:
        done.append(number)
        work.stop()

    with pytest.raises(Stopped):
        doing(work, for_each, one, range(1000))
    assert len(done) <= thread_count()


def test_for_each_passes_on_the_current_work() -> None:
    work, seen = Stoppable(), list[Any]()
    doing(work, for_each, lambda number: seen.append(current_work()), range(1000))
    assert seen == [work] * 1000


def test_scratch_is_aligned_and_not_kept_when_large() -> None:
    small = scratch("a test", (3, 5), np.dtype(np.float64))
    assert small.ctypes.data % 64 == 0
    assert np.shares_memory(small, scratch("a test", (2,), np.dtype(np.int8)))
    large = scratch("a test", (32 << 20,), np.dtype(np.int8))
    assert not np.shares_memory(large, scratch("a test", (32 << 20,), np.dtype(np.int8)))


ONE = np.ones((1, 1, 1, 1))
BAD_CALLS: list[tuple[str, Callable[[], object]]] = [
    ("rank of x", lambda: conv2d(np.ones((2, 3, 3)), np.ones((1, 1, 3, 1)), *PLAIN, "NHWC")),
    ("rank of w", lambda: conv2d(np.ones((1, 2, 3, 3)), np.ones((1, 3, 1)), *PLAIN, "NHWC")),
    ("format", lambda: conv2d(np.ones((1, 2, 3, 3)), np.ones((1, 1, 3, 1)), *PLAIN, "NWHC")),
    ("format of a shape", lambda: conv2d_backprop_input((1, 1, 1, 1), ONE, ONE, *PLAIN, "HW")),
    ("channels", lambda: conv2d(np.ones((1, 2, 3, 3)), np.ones((1, 1, 2, 2)), *PLAIN, "NHWC")),
    ("groups", lambda: conv2d(np.ones((1, 2, 3, 4)), np.ones((1, 1, 2, 3)), *PLAIN, "NHWC")),
    ("stride", lambda: conv2d(np.ones((1, 2, 3, 4)), np.ones((1, 1, 4, 3)), (0, 1), *PLAIN[1:], "NHWC")),
    ("gradient", lambda: conv2d_backprop_input((1, 2, 2, 1), ONE, ONE, *PLAIN, "NHWC")),
    ("depthwise channels", lambda: depthwise_conv2d(np.ones((1, 2, 3, 4)), np.ones((1, 1, 3, 1)), *PLAIN, "NHWC")),
]


@pytest.mark.parametrize("call", [call for _, call in BAD_CALLS], ids=[name for name, _ in BAD_CALLS])
def test_invalid_arguments_raise_value_error(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        call()
