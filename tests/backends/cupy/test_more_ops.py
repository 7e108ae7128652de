"""Ops that the suites in `test_ops_on_the_fake` do not cover, against the CPU; and the differences of a GPU."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest

import aioflow as af
from aioflow.kernels.resources import ResourceManager
from aioflow.testing.evaluate import evaluate
from tests.backends.cupy.evaluation import evaluator
from tests.backends.cupy.fakes import PlainDevice

RAN: Final[list[str]] = []
on_gpu = evaluator(PlainDevice(), lambda node, waited: RAN.append(node.op))

X: Final = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 4)
M: Final = X.reshape(4, 6)
IMAGES: Final = np.linspace(0, 1, 2 * 4 * 5 * 3, dtype=np.float32).reshape(2, 4, 5, 3)
PAIR: Final = np.array([1.4, 0.6], np.float32)
TURNED: Final = np.array([[0.8, -0.6, 1.2, 0.6, 0.8, -0.7, 0, 0.01]], np.float32)
INDICES: Final = np.array([[1], [0], [1]])
HALF: Final = M.astype(ml_dtypes.bfloat16)

# Op, inputs, attributes.
CASES: Final[tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]] = (
    *[(op, (M, M / 2), {}) for op in ("EluGrad", "SeluGrad", "SoftsignGrad", "ReluGrad", "Relu6Grad", "NextAfter")],
    ("LeakyReluGrad", (M, -M), {"alpha": 0.3}),
    *[(op, (M,), {}) for op in ("Ceil", "Rank", "Diag", "MatrixDiag", "PreventGradient")],
    ("DiagPart", (M[:, :4],), {}),
    ("ShapeN", ([M, X],), {}),
    ("IdentityN", ([M, X],), {}),
    ("EnsureShape", (M,), {"shape": [4, None]}),
    ("Bitcast", (M,), {"type": af.int32}),
    ("Bitcast", (np.arange(8, dtype=np.int16).reshape(2, 4),), {"type": af.int64}),
    ("BatchMatMulV2", (X, X), {"adj_y": True}),
    ("BatchMatMul", (X, X), {"adj_x": True}),
    ("BatchMatMulV2", (HALF[None], HALF), {"adj_x": True}),
    ("MatMul", (HALF, HALF), {"transpose_b": True}),
    ("Concat", (np.int32(1), [M, M]), {}),
    ("Split", (np.int32(1), M), {"num_split": 3}),
    ("SplitV", (M, np.array([1, 2, 3]), np.int32(1)), {"num_split": 3}),
    ("Unpack", (M,), {"num": 4}),
    ("Reverse", (M, np.array([True, False])), {}),
    ("ReverseV2", (X, np.array([0, 2])), {}),
    ("PadV2", (M, np.array([[1, 0], [0, 2]]), np.float32(7)), {}),
    ("MirrorPadGrad", (X, np.array([[0, 0], [1, 0], [1, 1]])), {"mode": "REFLECT"}),
    ("LinSpace", (np.float32(0), np.float32(1), np.int32(5)), {}),
    ("Any", (M > 1.5, np.array([1])), {}),
    ("EuclideanNorm", (M, np.array([0])), {}),
    ("Select", (M[:, 0] > 0, M, -M), {}),
    ("StridedSliceGrad", (np.array([4, 6]), np.array([1, 0]), np.array([3, 6]), np.array([1, 2]), M[:2, :3]), {}),
    *[(f"TensorScatter{m}", (M, INDICES, M[:3]), {}) for m in ("Add", "Sub", "Min", "Max")],
    ("TopK", (M,), {"k": 2}),
    ("InTopK", (M, np.array([5, 0, 4, 1])), {"k": 2}),
    ("UniqueV2", (np.array([3, 1, 3, 2]), np.array([0])), {}),
    ("UniqueWithCounts", (np.array([3, 1, 3, 2]),), {}),
    ("UnravelIndex", (np.array([7, 23]), np.array([4, 6])), {}),
    ("InvertPermutation", (np.array([2, 0, 1]),), {}),
    *[(op, (np.sort(M), M[:, :2]), {}) for op in ("LowerBound", "UpperBound")],
    *[(op, (IMAGES, np.array([7, 3], np.int32)), {}) for op in ("ResizeBilinear", "ResizeNearestNeighbor")],
    ("ResizeBilinearGrad", (IMAGES, np.ones((2, 7, 3, 3), np.float32)), {"half_pixel_centers": True}),
    *[(op, (IMAGES, np.array([7, 3], np.int32)), {}) for op in ("ResizeBicubic", "ResizeArea")],
    ("ResizeBicubicGrad", (IMAGES, np.ones((2, 7, 3, 3), np.float32)), {"half_pixel_centers": True}),
    ("ScaleAndTranslate", (IMAGES, np.array([7, 3], np.int32), PAIR, PAIR), {"kernel_type": "lanczos3"}),
    ("ScaleAndTranslateGrad", (IMAGES, np.ones((2, 7, 3, 3), np.float32), PAIR, PAIR), {"kernel_type": "box"}),
    *[(op, (IMAGES,), {}) for op in ("RGBToHSV", "HSVToRGB")],
    *[(op, (IMAGES, np.float32(0.3)), {}) for op in ("AdjustHue", "AdjustSaturation")],
    *[
        (
            "ImageProjectiveTransformV3",
            (IMAGES, transforms, np.array([3, 4], np.int32), np.float32(0.5)),
            {"interpolation": method, "fill_mode": fill},
        )
        for transforms in (TURNED, np.repeat(TURNED, 2, axis=0))
        for method in ("NEAREST", "BILINEAR")
        for fill in ("CONSTANT", "NEAREST", "REFLECT", "WRAP")
    ],
    ("ResizeNearestNeighborGrad", (IMAGES, np.array([7, 3], np.int32)), {"align_corners": True}),
)


def made(op: str, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[list[Any], dict[Any, Any]]:
    """Return the outputs of a node, and feeds for its inputs; a list in `inputs` is one argument."""
    feeds: dict[Any, Any] = {}

    def placed(value: Any) -> Any:
        if isinstance(value, list):
            return [placed(v) for v in value]
        array = np.asarray(value)
        holder = af.placeholder(af.as_dtype(array.dtype), array.shape)
        feeds[holder] = array
        return holder

    outputs = af.extend.apply_op(op, *(placed(i) for i in inputs), **attrs)
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs], feeds


@pytest.mark.parametrize(("op", "inputs", "attrs"), CASES, ids=lambda v: v if isinstance(v, str) else None)
def test_op_equals_the_cpu(op: str, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> None:
    with af.Graph().as_default():
        outputs, feeds = made(op, inputs, attrs)
        RAN.clear()
        for mine, cpu in zip(on_gpu(outputs, feeds), evaluate(outputs, feeds), strict=True):
            assert mine.dtype == cpu.dtype
            half = mine.dtype.itemsize == 2
            np.testing.assert_allclose(mine.astype(np.float64), cpu.astype(np.float64), rtol=0.02 if half else 1e-5)
    assert op in RAN


FOURIER: Final = [
    (f"{kind}{suffix}", rank)
    for kind in ("FFT", "IFFT", "RFFT", "IRFFT")
    for suffix, rank in (("", 1), ("2D", 2), ("3D", 3))
]


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize(("op", "rank"), FOURIER)
def test_fourier_transforms_equal_the_cpu(op: str, rank: int, empty: bool) -> None:
    x = X[:0] if empty else X
    values = x if op.startswith("R") else x + np.complex64(1j) * x[::-1]
    lengths = (np.array((3, 2, 4)[-rank:], np.int32),) if "RFFT" in op else ()
    with af.Graph().as_default():
        outputs, feeds = made(op, (values, *lengths), {})
        RAN.clear()
        ((mine,), (cpu,)) = on_gpu(outputs, feeds), evaluate(outputs, feeds)
    assert (mine.dtype, mine.shape) == (cpu.dtype, cpu.shape)
    np.testing.assert_allclose(mine, cpu, rtol=1e-5, atol=1e-5)
    assert op in RAN


# ── errors that a GPU does not detect, as TensorFlow documents ───────────────────────────────────────────────────────


@pytest.mark.parametrize("op", ["Gather", "GatherV2"])
def test_index_out_of_bounds_gathers_zeros(op: str) -> None:
    rest = (np.int32(1),) if op == "GatherV2" else ()
    with af.Graph().as_default():
        params = M if op == "Gather" else M.T
        outputs, feeds = made(op, (params, np.array([[3, -1], [4, 0]]), *rest), {})
        (found,) = on_gpu(outputs, feeds)
    rows = found if op == "Gather" else np.moveaxis(found, 0, -1)
    np.testing.assert_array_equal(rows, [[M[3], 0 * M[0]], [0 * M[0], M[0]]])


def test_variable_row_out_of_bounds_is_zeros() -> None:
    resources, state = ResourceManager(), {}  # type: ignore[var-annotated]
    with af.Graph().as_default():
        v = af.Variable(M)
        on_gpu([], targets=[v.initializer], resources=resources, state=state)
        rows = af.nn.embedding_lookup(v, np.array([2, 9]))
        (found,) = on_gpu([rows], resources=resources, state=state)
    np.testing.assert_array_equal(found, [M[2], 0 * M[0]])


def test_label_out_of_bounds_makes_only_its_row_nan() -> None:
    with af.Graph().as_default():
        outputs, feeds = made("SparseSoftmaxCrossEntropyWithLogits", (M, np.array([5, 6, -1, 0])), {})
        loss, slope = on_gpu(outputs, feeds)
    assert np.isnan(loss).tolist() == [False, True, True, False]
    assert np.isnan(slope).all(axis=1).tolist() == [False, True, True, False]
    expected = np.log(np.exp(M[0] - M[0, 5]).sum())
    np.testing.assert_allclose(loss[0], expected, rtol=1e-5)
