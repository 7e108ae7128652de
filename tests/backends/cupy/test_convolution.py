"""The GPU's convolutions and pools against the CPU's, which have their own tests against TensorFlow."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aioflow as af
from aioflow.typing import PaddingLike
from aioflow_cupy import convolution, cudnn
from aioflow_cupy.windows import ImageWindows
from tests.backends.cupy.evaluation import evaluator
from tests.backends.cupy.fakes import PlainDevice
from tests.support.dense import dense

RNG = np.random.default_rng(3)
ON_GPU: list[str] = []
evaluate_here = evaluator(PlainDevice(), lambda node, waited: ON_GPU.append(node.op))


def normal(tensor: Any, dtype: Any = np.float32) -> Any:
    """Return a random value for a placeholder."""
    return RNG.normal(size=tensor.shape.as_list()).astype(dtype)


def both(tensors: list[Any], feeds: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Return pairs of values: from the fake GPU and from the CPU."""
    from aioflow.testing.evaluate import evaluate

    return list(zip(evaluate_here(tensors, feeds), evaluate(tensors, feeds), strict=True))


CASES = [
    {"strides": s, "dilations": d, "padding": p, "data_format": f, "groups": g}
    for (s, d), p, f, g in itertools.product(
        [((1, 1), (1, 1)), ((2, 1), (1, 1)), ((1, 1), (2, 2))],
        ["SAME", "VALID", "EXPLICIT"],
        ["NHWC", "NCHW"],
        [1, 2, 4],
    )
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(str(v) for v in c.values()))
def test_convolutions(case: dict[str, Any]) -> None:
    channels_last = case["data_format"] == "NHWC"
    shape = (2, 7, 6, 4) if channels_last else (2, 4, 7, 6)

    def axes(pair: Any) -> list[int]:
        return [1, *pair, 1] if channels_last else [1, 1, *pair]

    explicit = [0, 0, 1, 2, 0, 1, 0, 0] if channels_last else [0, 0, 0, 0, 1, 2, 0, 1]
    attrs = {
        "strides": axes(case["strides"]),
        "dilations": axes(case["dilations"]),
        "padding": case["padding"],
        "explicit_paddings": explicit if case["padding"] == "EXPLICIT" else [],
        "data_format": case["data_format"],
    }
    with af.Graph().as_default():
        image, kernel = af.placeholder(af.float32, shape), af.placeholder(af.float32, (3, 2, 4 // case["groups"], 8))
        made = af.extend.make("Conv2D", image, kernel, **attrs)
        tensors = [made, *af.gradients(af.reduce_sum(made * made), [image, kernel])]
        feeds = {x: normal(x) for x in (image, kernel)}
        ON_GPU.clear()
        for gpu, cpu in both(tensors, feeds):
            np.testing.assert_allclose(gpu, cpu, rtol=2e-4, atol=2e-4)
    assert {"Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"} <= set(ON_GPU)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_depthwise(padding: PaddingLike) -> None:
    image, kernel = af.placeholder(af.float32, (2, 6, 5, 3)), af.placeholder(af.float32, (2, 3, 3, 2))
    made = af.nn.depthwise_conv2d_native(image, kernel, [1, 2, 2, 1], padding)
    tensors = [made, *af.gradients(af.reduce_sum(made * made), [image, kernel])]
    feeds = {x: normal(x) for x in (image, kernel)}
    for gpu, cpu in both(tensors, feeds):
        np.testing.assert_allclose(gpu, cpu, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_keeps_its_dtype(dtype: Any) -> None:
    image, kernel = af.placeholder(dtype, (1, 5, 5, 2)), af.placeholder(dtype, (3, 3, 2, 2))
    made = af.nn.conv2d(image, kernel, [1, 1, 1, 1], "SAME")
    feeds = {x: normal(x, dtype) for x in (image, kernel)}
    ((gpu, cpu),) = both([made], feeds)
    assert gpu.dtype == dtype
    np.testing.assert_allclose(gpu.astype(np.float32), cpu.astype(np.float32), rtol=0.05, atol=0.05)


def test_large_batch_is_split_into_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "_PATCH_BYTES", 2000)
    with af.Graph().as_default():
        image, kernel = af.placeholder(af.float32, (5, 6, 6, 2)), af.placeholder(af.float32, (3, 3, 2, 3))
        made = af.nn.conv2d(image, kernel, [1, 1, 1, 1], "SAME")
        tensors = [made, *af.gradients(af.reduce_sum(made * made), [image, kernel])]
        feeds = {x: normal(x) for x in (image, kernel)}
        for gpu, cpu in both(tensors, feeds):
            np.testing.assert_allclose(gpu, cpu, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("pool", ["MaxPool", "AvgPool"])
def test_pools(pool: str, padding: str, data_format: str) -> None:
    shape = (2, 7, 6, 3) if data_format == "NHWC" else (2, 3, 7, 6)
    window = [1, 3, 2, 1] if data_format == "NHWC" else [1, 1, 3, 2]
    strides = [1, 2, 2, 1] if data_format == "NHWC" else [1, 1, 2, 2]
    with af.Graph().as_default():
        image = af.placeholder(af.float32, shape)
        made = af.extend.make(pool, image, ksize=window, strides=strides, padding=padding, data_format=data_format)
        (slope,) = dense(af.gradients(af.reduce_sum(made * made), [image]))
        (second,) = af.gradients(af.reduce_sum(slope * slope), [image])
        value = RNG.integers(0, 4, shape).astype(
            np.float32
        )  # with ties: the first of the largest elements gets the gradient
        for gpu, cpu in both([made, slope, second], {image: value}):
            np.testing.assert_allclose(gpu, cpu, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 3, 2**31 - 1])
@pytest.mark.parametrize("height", [9, 2**31 - 1])
@pytest.mark.parametrize("pool", ["MaxPool", "AvgPool"])
def test_pools_with_windows_larger_than_the_image(pool: str, height: int, stride: int) -> None:
    """Window positions outside the image cost no time and no memory."""
    image = af.placeholder(af.float32, (2, 5, 4, 3))
    ksize, strides = [1, height, 7, 1], [1, stride, stride, 1]
    made = af.extend.make(pool, image, ksize=ksize, strides=strides, padding="SAME", data_format="NHWC")
    tensors = [made, *af.gradients(af.reduce_sum(made * made), [image])]
    for gpu, cpu in both(tensors, {image: normal(image)}):
        np.testing.assert_allclose(gpu, cpu, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [(size, kernel) for size in (1, 2, 5) for kernel in (1, 2, 3, 4, 9, 12)])
def test_trimmed_windows_read_the_same_elements(sizes: tuple[int, int]) -> None:
    size, kernel = sizes
    for stride, before, after in itertools.product((1, 2, 4, 9), (0, 1, 3, 7), (0, 2, 8)):
        count = (size + before + after - kernel) // stride + 1
        if count > 0:
            padding = ((before, after), (before, after))
            whole = ImageWindows((size, size), (kernel, kernel), (stride, stride), (1, 1), padding, (count, count))
            assert inside(whole.trimmed()) == inside(whole)


def inside(g: ImageWindows) -> dict[int, list[int]]:
    """Return the image elements that each window along an axis reads; all are within the padded image."""
    padded = g.pad(np, np.arange(1, g.size[0] * g.size[1] + 1).reshape(1, *g.size, 1))
    found: dict[int, list[int]] = {n: [] for n in range(g.count[0] * g.count[1])}
    for _, _, where in g.taps():
        read = padded[where].reshape(-1)
        assert len(read) == len(found)
        for n, element in enumerate(read.tolist()):
            found[n] += [element] if element else []
    return found


def test_mismatched_depths_are_rejected() -> None:
    from aioflow.errors import InvalidArgumentError

    with af.Graph().as_default():
        image = af.placeholder(af.float32)
        made = af.nn.conv2d(image, np.zeros((3, 3, 2, 4), np.float32), [1, 1, 1, 1], "VALID")
        with pytest.raises(InvalidArgumentError, match="input depth"):
            evaluate_here([made], {image: np.zeros((1, 5, 5, 3), np.float32)})


class _NoPlans:
    """A cuDNN frontend that supports no graph and counts the requests."""

    class cudnnGraphNotSupportedError(Exception):  # cuDNN's name
        pass

    data_type = SimpleNamespace(FLOAT="float", HALF="half", BFLOAT16="bfloat16")

    def __init__(self) -> None:
        self.asked = 0

    def backend_version(self) -> int:
        return 91000

    def pygraph(self, **options: Any) -> Any:
        self.asked += 1
        raise self.cudnnGraphNotSupportedError("no engine")


@pytest.mark.parametrize(("channels", "asked"), [(2, 1), (1, 0)])
def test_unsupported_cudnn_plan_falls_back_to_a_matrix_product(
    monkeypatch: pytest.MonkeyPatch, channels: int, asked: int
) -> None:
    frontend = _NoPlans()
    monkeypatch.setattr(cudnn, "_frontend", lambda: frontend)
    with af.Graph().as_default():
        image, kernel = af.placeholder(af.float32, (1, 5, 5, 2)), af.placeholder(af.float32, (3, 3, channels, 4))
        made = af.nn.conv2d(image, kernel, [1, 1, 1, 1], "SAME")
        ((gpu, cpu),) = both([made], {x: normal(x) for x in (image, kernel)})
        np.testing.assert_allclose(gpu, cpu, rtol=2e-4, atol=2e-4)
    assert frontend.asked == asked  # a grouped convolution does not even ask cuDNN


class _Addressed(np.ndarray[Any, Any]):
    """An array whose `data` is CuPy's, and that refuses an export through DLPack."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=int(self.ctypes.data))

    @data.setter
    def data(self, value: Any) -> None:
        raise AttributeError

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("an export during a capture orders the legacy stream")


class _Recording:
    """A cuDNN frontend whose graphs record what they are executed with."""

    class cudnnGraphNotSupportedError(Exception):  # cuDNN's name
        pass

    data_type = SimpleNamespace(FLOAT="float", HALF="half", BFLOAT16="bfloat16")
    heur_mode = SimpleNamespace(A="a", FALLBACK="fallback")

    def __init__(self) -> None:
        self.streams: list[int] = []
        self.executed: list[tuple[dict[Any, Any], Any]] = []

    def create_handle(self) -> str:
        return "handle"

    def set_stream(self, handle: str, stream: int) -> None:
        self.streams.append(stream)

    def pygraph(self, **options: Any) -> Any:
        names = iter("ab")
        return SimpleNamespace(
            tensor=lambda **layout: next(names),
            conv_fprop=lambda **given: _Described(),
            build=lambda heuristics: None,
            get_workspace_size=lambda: 16,
            execute=lambda pack, workspace, handle: self.executed.append((pack, workspace)),
        )


class _Described:
    """The result tensor of a graph of cuDNN."""

    def set_output(self, on: bool) -> _Described:
        return self

    def set_dim(self, dim: list[int]) -> _Described:
        return self

    def set_stride(self, stride: list[int]) -> _Described:
        return self


@pytest.mark.parametrize("dtype", [af.float32, af.bfloat16])
def test_cudnn_gets_addresses_and_the_current_stream(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    frontend = _Recording()
    monkeypatch.setattr(cudnn, "_frontend", lambda: frontend)
    xp = SimpleNamespace(
        empty=lambda shape, kind: np.empty(shape, kind).view(_Addressed),
        ascontiguousarray=lambda array: np.array(array, order="C").view(_Addressed),
        uint8=np.uint8,
        cuda=SimpleNamespace(get_current_stream=lambda: SimpleNamespace(device_id=0, ptr=7)),
    )
    binding: Any = SimpleNamespace(output_dtypes=(dtype,), backend=SimpleNamespace(uses_cudnn=True))
    forward: Any = cudnn.preferred("forward", binding)
    image, kernel = np.ones((1, 5, 5, 2), dtype.np_dtype), np.ones((3, 3, 2, 4), dtype.np_dtype)
    windows = ImageWindows((5, 5), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), (5, 5))
    made = forward(xp, image, kernel, windows)
    assert made.shape == (1, 5, 5, 4)
    ((pack, workspace),) = frontend.executed
    assert len(pack) == 3
    assert made.ctypes.data in pack.values()
    assert all(type(address) is int for address in (*pack.values(), workspace))  # the frontend's own test
    assert frontend.streams == [7]
