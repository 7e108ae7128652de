"""Inputs that make each op with a long run time slow: the table of `test_deadlines.py`.

Rows share arrays, of which few are alive at a time. `LEFT` marks a single call of a library, which cannot be stopped
and may be abandoned in its thread.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Final

import numpy as np

import aioflow as af
from aioflow.ops.apply import make_op

__all__ = ["GROWING", "SLOW", "Slow", "SlowStep", "forget"]

MILLION: Final = 1_000_000
_MANY_STRINGS: Final = 1000


@dataclass(frozen=True)
class Slow:
    """A node that takes long.

    Attributes:
        op: Type of the op.
        inputs: Makes the values of the inputs; a tuple stands for a sequence of inputs.
        attrs: Attributes of the node.
        left: Whether the call may be abandoned in its thread.
        small: Makes quick inputs of the same dtypes and ranks, for costs that grow with the value of an input.
        free: Whether the node allocates memory without touching it, and so takes no time.
        note: The special feature of the row, for an op with several rows.
    """

    op: str
    inputs: Callable[[], Sequence[Any]]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    left: bool = False
    small: Callable[[], Sequence[Any]] | None = None
    free: bool = False
    note: str = ""

    def __str__(self) -> str:
        return f"{self.op}-{self.note}" if self.note else self.op


class SlowStep:
    """The node of a row in the default graph, and its inputs.

    Many strings are the values of variables, since feeding them would take longer than the node.

    Attributes:
        node: The operation.
    """

    def __init__(self, row: Slow) -> None:
        self._row = row
        self._fed: list[Any] = []
        self._held: list[tuple[Any, Any, Any]] = []
        inputs = [
            [self._input(item) for item in value] if isinstance(value, tuple) else self._input(value)
            for value in (row.small or row.inputs)()
        ]
        self.node = make_op(row.op, *inputs, **row.attrs)

    def _input(self, value: Any) -> Any:
        source = af.placeholder("string" if value.dtype == object else value.dtype, [None] * np.ndim(value))
        if value.dtype == object and value.size > _MANY_STRINGS:
            variable = af.Variable(source, validate_shape=False, trainable=False)
            self._held.append((variable, source, value))
            return variable.value()
        self._fed.append(source)
        return source

    async def prepare(self, session: af.Session) -> None:
        """Initialize the variables, and run the node with quick inputs if the row has any."""
        for variable, source, value in self._held:
            await session.run(variable.initializer, {source: value})
        if self._row.small is not None:
            for _ in range(3):  # after three quick runs, the node is expected to be short
                await session.run(self.node, self._feeds(self._row.small))

    def feeds(self) -> dict[Any, Any]:
        """Return the feeds that make the node slow."""
        return self._feeds(self._row.inputs)

    def _feeds(self, make: Callable[[], Sequence[Any]]) -> dict[Any, Any]:
        values = [item for value in make() for item in (value if isinstance(value, tuple) else (value,))]
        few = [value for value in values if value.dtype != object or value.size <= _MANY_STRINGS]
        return dict(zip(self._fed, few, strict=True))


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=2)
def floats(*shape: int, dtype: str = "float32") -> Any:
    """Return random numbers between 0 and 1."""
    made = np.random.default_rng(0).random(shape, np.float32)
    return made if dtype == "float32" else made.astype(af.as_dtype(dtype).as_numpy_dtype)


@lru_cache(maxsize=2)
def ints(count: int, high: int, dtype: str = "int32") -> Any:
    return np.random.default_rng(0).integers(0, high, count).astype(dtype)


def scalar(value: Any, dtype: str = "int32") -> Any:
    return np.asarray(value, dtype)


def text(value: bytes) -> Any:
    made = np.empty((), object)
    made[()] = value
    return made


def philox() -> tuple[Any, Any, Any]:
    """Return a key, a counter and the algorithm."""
    return np.array([1], np.uint64), np.array([0, 2], np.uint64), scalar(1)


@lru_cache(maxsize=2)
def texts(count: int, form: str = "%d") -> Any:
    """Return numbers as text."""
    made = np.empty(count, object)
    made[:] = [(form % i).encode() for i in range(count)]
    return made


def repeated(value: bytes, count: int) -> Any:
    made = np.empty(count, object)
    made[:] = [value] * count
    return made


def shape(*sizes: int) -> Any:
    return np.array(sizes, np.int32)


def boxes(count: int) -> Any:
    """Return boxes that cover most of the first image of a batch."""
    return np.array([[0.1, 0.1, 0.9, 0.9]] * count, np.float32)


def numbers(count: int) -> Any:
    return np.zeros(count, np.int32)


@lru_cache(maxsize=1)
def sparse(count: int, size: int = 1 << 20) -> tuple[Any, Any, Any]:
    """Return indices (in order), values and shape of a sparse matrix."""
    rows = np.sort(np.random.default_rng(0).integers(0, size, count))
    indices = np.stack([rows, np.arange(count)], axis=1).astype(np.int64)
    return indices, np.ones(count, np.float32), np.array([size, count], np.int64)


def image(height: int, width: int, kind: str) -> Any:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (500, 500, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(np.tile(noise, (height // 500, width // 500, 1))).save(out, kind, compress_level=1)
    return text(out.getvalue())


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def example() -> bytes:
    """Return a record with ten numbers under x."""
    return af.train.Example(
        features=af.train.Features(feature={"x": af.train.Feature(float_list=af.train.FloatList(value=[1.0] * 10))})
    ).SerializeToString()


@lru_cache(maxsize=1)
def serialized(count: int) -> bytes:
    """Return a serialized TensorProto of `count` strings."""
    size = bytearray()
    while count >> 7 * len(size) > 127:
        size.append(count >> 7 * len(size) & 127 | 128)
    size.append(count >> 7 * len(size))
    dimension = b"\x08" + size
    shape = b"\x12" + bytes([len(dimension)]) + dimension
    return b"\x08\x07\x12" + bytes([len(shape)]) + shape + b"\x42\x03abc" * count


def animation(count: int) -> Any:
    from PIL import Image

    noise = np.random.default_rng(0).integers(
        0, 256, (count, 500, 500), np.uint8
    )  # noise, since equal frames would be merged
    frames = [Image.fromarray(frame) for frame in noise]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    return text(out.getvalue())


LEFT: Final = True


def unary(op: str, count: int = 40, left: bool = LEFT, **attrs: Any) -> Slow:
    return Slow(op, lambda: [floats(count * MILLION)], attrs, left)


def binary(op: str, count: int = 20, left: bool = LEFT, **attrs: Any) -> Slow:
    return Slow(op, lambda: [floats(count * MILLION) + 1, floats(count * MILLION) + 2], attrs, left)


_ROWS: list[Slow] = []

# Costs that grow with the value of an argument, such as a shape or a count.
_ROWS += [
    Slow(
        "Fill", lambda: [shape(200 * MILLION), scalar(1.0, "float32")], small=lambda: [shape(1), scalar(1.0, "float32")]
    ),
    Slow(
        "BroadcastTo",
        lambda: [scalar(True, "bool"), shape(1 << 29)],
        small=lambda: [scalar(True, "bool"), shape(1)],
        free=True,
    ),
    Slow(
        "Range", lambda: [scalar(0), scalar(200 * MILLION), scalar(1)], small=lambda: [scalar(0), scalar(2), scalar(1)]
    ),
    Slow(
        "Range",
        lambda: [scalar(0.0, "float32"), scalar(100e6, "float32"), scalar(1.0, "float32")],
        small=lambda: [scalar(0.0, "float32"), scalar(2.0, "float32"), scalar(1.0, "float32")],
        note="float",
    ),
    Slow(
        "LinSpace",
        lambda: [scalar(0.0, "float32"), scalar(1.0, "float32"), scalar(100 * MILLION)],
        small=lambda: [scalar(0.0, "float32"), scalar(1.0, "float32"), scalar(2)],
    ),
    Slow(
        "OneHot",
        lambda: [ints(10_000, 20_000), scalar(20_000), scalar(1.0, "float32"), scalar(0.0, "float32")],
        small=lambda: [ints(1, 2), scalar(2), scalar(1.0, "float32"), scalar(0.0, "float32")],
    ),
    Slow(
        "OneHot",
        lambda: [ints(10_000, 20_000), scalar(20_000), scalar(1.0, "float32"), scalar(2.0, "float32")],
        small=lambda: [ints(1, 2), scalar(2), scalar(1.0, "float32"), scalar(2.0, "float32")],
        note="not zero",
    ),
    Slow("Tile", lambda: [floats(10), shape(20 * MILLION)], small=lambda: [floats(10), shape(1)]),
    Slow(
        "Pad",
        lambda: [floats(10), np.array([[0, 200 * MILLION]], np.int32)],
        small=lambda: [floats(10), np.array([[0, 1]], np.int32)],
        free=True,
    ),
    Slow(
        "PadV2",
        lambda: [floats(10), np.array([[0, 200 * MILLION]], np.int32), scalar(1.0, "float32")],
        small=lambda: [floats(10), np.array([[0, 1]], np.int32), scalar(1.0, "float32")],
    ),
    Slow(
        "MirrorPad",
        lambda: [floats(60 * MILLION), np.array([[0, 50 * MILLION]], np.int32)],
        {"mode": "REFLECT"},
        small=lambda: [floats(60), np.array([[0, 1]], np.int32)],
    ),
    Slow(
        "SpaceToBatchND",
        lambda: [floats(10, 10, 10, 1), shape(1, 1), np.array([[0, 4000], [0, 4000]], np.int32)],
        small=lambda: [floats(10, 10, 10, 1), shape(1, 1), np.array([[0, 0], [0, 0]], np.int32)],
    ),
    Slow(
        "Bincount",
        lambda: [ints(10, 10), scalar(200 * MILLION), np.zeros(0, np.int32)],
        small=lambda: [ints(10, 10), scalar(10), np.zeros(0, np.int32)],
        free=True,
    ),
    Slow(
        "ScatterNd",
        lambda: [np.zeros((1, 1), np.int32), floats(1), shape(200 * MILLION)],
        small=lambda: [np.zeros((1, 1), np.int32), floats(1), shape(2)],
        free=True,
    ),
    Slow(
        "SparseToDense",
        lambda: [np.zeros((1, 1), np.int32), shape(200 * MILLION), floats(1), scalar(1.0, "float32")],
        small=lambda: [np.zeros((1, 1), np.int32), shape(2), floats(1), scalar(1.0, "float32")],
    ),
    Slow(
        "UnsortedSegmentSum",
        lambda: [floats(10), ints(10, 10), scalar(200 * MILLION)],
        small=lambda: [floats(10), ints(10, 10), scalar(10)],
    ),
    Slow(
        "UnsortedSegmentMax",
        lambda: [floats(10), ints(10, 10), scalar(200 * MILLION)],
        small=lambda: [floats(10), ints(10, 10), scalar(10)],
    ),
    Slow(
        "SegmentSum",
        lambda: [floats(2), np.array([0, 200 * MILLION], np.int32)],
        small=lambda: [floats(2), np.array([0, 1], np.int32)],
        note="far",
    ),
    Slow(
        "DynamicStitch",
        lambda: [(np.array([0, 200 * MILLION], np.int32),), (floats(2),)],
        {"N": 1},
        small=lambda: [(np.array([0, 1], np.int32),), (floats(2),)],
        note="far",
        free=True,
    ),
    Slow(
        "TensorListReserve",
        lambda: [shape(), scalar(200 * MILLION)],
        {"element_dtype": af.float32},
        small=lambda: [shape(), scalar(2)],
    ),
    Slow(
        "ResizeBilinear",
        lambda: [floats(1, 10, 10, 3), shape(6000, 6000)],
        small=lambda: [floats(1, 10, 10, 3), shape(2, 2)],
    ),
    Slow(
        "ResizeBicubic",
        lambda: [floats(1, 10, 10, 3), shape(4000, 4000)],
        small=lambda: [floats(1, 10, 10, 3), shape(2, 2)],
    ),
    Slow(
        "ScaleAndTranslate",
        lambda: [floats(1, 10, 10, 3), shape(4000, 4000), np.full(2, 400, np.float32), np.zeros(2, np.float32)],
        small=lambda: [floats(1, 10, 10, 3), shape(2, 2), np.full(2, 0.2, np.float32), np.zeros(2, np.float32)],
    ),
    Slow(
        "ImageProjectiveTransformV3",
        lambda: [floats(1, 10, 10, 3), floats(1, 8), shape(4000, 4000), scalar(0.0, "float32")],
        {"interpolation": "BILINEAR", "fill_mode": "REFLECT"},
        small=lambda: [floats(1, 10, 10, 3), floats(1, 8), shape(2, 2), scalar(0.0, "float32")],
    ),
    Slow(
        "StatelessRandomGammaV3",
        lambda: [shape(20 * MILLION), *philox(), floats()],
        small=lambda: [shape(2), *philox(), floats()],
    ),
    Slow(
        "SparseCrossV2",
        lambda: [(), (), (), (texts(150).reshape(1, -1),) * 3, text(b"_")],
        {"N": 0, "sparse_types": [], "dense_types": [af.string] * 3},
        small=lambda: [(), (), (), (texts(150)[:3].reshape(1, -1),) * 3, text(b"_")],
    ),
    Slow(
        "SparseCrossHashed",
        lambda: [
            *((), (), (), (ints(6000, 9, "int64").reshape(1, -1),) * 2),
            *(scalar(7, "int64"), scalar(False, "bool"), np.zeros(2, np.int64)),
        ],
        {"N": 0, "sparse_types": [], "dense_types": [af.int64] * 2},
        small=lambda: [
            *((), (), (), (ints(6000, 9, "int64")[:3].reshape(1, -1),) * 2),
            *(scalar(7, "int64"), scalar(False, "bool"), np.zeros(2, np.int64)),
        ],
    ),
    Slow(
        "ResizeNearestNeighbor",
        lambda: [floats(1, 10, 10, 3), shape(8000, 8000)],
        small=lambda: [floats(1, 10, 10, 3), shape(2, 2)],
    ),
    Slow(
        "CropAndResize",
        lambda: [floats(1, 10, 10, 3), boxes(1), numbers(1), shape(3000, 3000)],
        small=lambda: [floats(1, 10, 10, 3), boxes(1), numbers(1), shape(2, 2)],
    ),
    Slow("CropAndResizeGradBoxes", lambda: [floats(9, 1000, 1000, 3), floats(1, 10, 10, 3), boxes(9), numbers(9)]),
    Slow(
        "CropAndResizeGradImage",
        lambda: [floats(9, 1000, 1000, 3), boxes(9), numbers(9), shape(1, 10, 10, 3)],
        {"T": af.float32},
    ),
    Slow("MatrixDiag", lambda: [floats(14_000)]),
    Slow("Diag", lambda: [floats(14_000)]),
    Slow("HistogramFixedWidth", lambda: [floats(40 * MILLION), np.array([0, 1], np.float32), scalar(100)]),
    Slow(
        "StridedSliceGrad",
        lambda: [shape(200 * MILLION), shape(0), shape(2), shape(1), floats(2)],
        small=lambda: [shape(4), shape(0), shape(2), shape(1), floats(2)],
        free=True,
    ),
]

# Random numbers.
_ROWS += [
    Slow(op, lambda: [shape(100 * MILLION)], {"dtype": af.float32, "seed": 1, "seed2": 2}, small=lambda: [shape(2)])
    for op in ("RandomUniform", "RandomStandardNormal", "TruncatedNormal")
]
_ROWS += [
    Slow(op, lambda: [shape(100 * MILLION), shape(1, 2)], {"dtype": af.float32}, small=lambda: [shape(2), shape(1, 2)])
    for op in ("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal")
]
_ROWS += [
    Slow(
        "RandomUniformInt",
        lambda: [shape(100 * MILLION), scalar(0), scalar(1000)],
        small=lambda: [shape(2), scalar(0), scalar(1000)],
    ),
    Slow("RandomGamma", lambda: [shape(60 * MILLION), floats(1)], small=lambda: [shape(2), floats(1)]),
    Slow(
        "RandomPoissonV2",
        lambda: [shape(60 * MILLION), floats(1) * 20],
        {"dtype": af.int32},
        small=lambda: [shape(2), floats(1)],
    ),
    Slow("RandomShuffle", lambda: [floats(40 * MILLION)]),
    Slow("Multinomial", lambda: [floats(10, 10), scalar(5 * MILLION)], small=lambda: [floats(10, 10), scalar(2)]),
]

# Sorting, searching, selection, rearrangement.
_ROWS += [
    Slow("TopKV2", lambda: [floats(40 * MILLION), scalar(10 * MILLION)]),
    Slow("TopKV2", lambda: [floats(400_000, 100), scalar(50)], note="rows"),
    Slow("NthElement", lambda: [floats(60 * MILLION), scalar(10 * MILLION)]),
    Slow("Unique", lambda: [ints(20 * MILLION, 1 << 30)]),
    Slow("Unique", lambda: [texts(2 * MILLION)], note="strings"),
    Slow("UniqueV2", lambda: [ints(20 * MILLION, 1 << 30).reshape(-1, 20), shape(0)]),
    Slow("UniqueWithCounts", lambda: [ints(20 * MILLION, 1 << 30)]),
    Slow("ListDiff", lambda: [ints(20 * MILLION, 1 << 30), ints(10 * MILLION, 1 << 30)]),
    Slow("ListDiff", lambda: [texts(2 * MILLION), texts(MILLION)], note="strings"),
    Slow("LowerBound", lambda: [floats(1, 20 * MILLION), floats(1, 20 * MILLION)]),
    Slow("UpperBound", lambda: [floats(200_000, 10), floats(200_000, 10)], note="rows"),
    Slow("InvertPermutation", lambda: [np.random.default_rng(0).permutation(60 * MILLION).astype(np.int32)]),
    Slow("Where", lambda: [floats(60 * MILLION) > 0.5]),
    Slow("ArgMax", lambda: [floats(100 * MILLION, dtype="float64"), scalar(0)], left=LEFT),
    Slow("InTopKV2", lambda: [floats(4000, 20_000), ints(4000, 1000), scalar(100)]),
    Slow("DynamicPartition", lambda: [floats(40 * MILLION), ints(40 * MILLION, 8)], {"num_partitions": 8}),
    Slow("DynamicStitch", lambda: [(np.arange(40 * MILLION, dtype=np.int32),), (floats(40 * MILLION),)], {"N": 1}),
    Slow("ReverseSequence", lambda: [floats(40_000, 1000), ints(40_000, 1000)], {"seq_dim": 1, "batch_dim": 0}),
    Slow("Roll", lambda: [floats(100 * MILLION), scalar(3), scalar(0)]),
    Slow("UnravelIndex", lambda: [ints(40 * MILLION, 1000), shape(10, 10, 10)]),
]

# Sums, scans, segments.
_ROWS += [
    Slow("Cumsum", lambda: [floats(100 * MILLION), scalar(0)]),
    Slow("Cumsum", lambda: [floats(40 * MILLION, dtype="bfloat16"), scalar(0)], note="bfloat16"),
    Slow("Cumprod", lambda: [floats(100 * MILLION), scalar(0)]),
    Slow("Prod", lambda: [floats(100 * MILLION), scalar(0)], left=LEFT),
    Slow("SegmentSum", lambda: [floats(20 * MILLION), np.arange(20 * MILLION, dtype=np.int32) // 2]),
    Slow("SegmentMean", lambda: [floats(20 * MILLION), np.arange(20 * MILLION, dtype=np.int32) // 2]),
    Slow("SegmentMax", lambda: [floats(20 * MILLION), np.arange(20 * MILLION, dtype=np.int32) // 2]),
    Slow("UnsortedSegmentSum", lambda: [floats(60 * MILLION), ints(60 * MILLION, 1000), scalar(1000)], note="many"),
    Slow("UnsortedSegmentProd", lambda: [floats(20 * MILLION), ints(20 * MILLION, 1000), scalar(1000)]),
    Slow("UnsortedSegmentMax", lambda: [floats(20 * MILLION), ints(20 * MILLION, 1000), scalar(1000)], note="many"),
    Slow("Bincount", lambda: [ints(60 * MILLION, 1000), scalar(1000), np.zeros(0, np.int32)], note="many"),
    Slow("TensorScatterAdd", lambda: [floats(1000), ints(60 * MILLION, 1000)[:, None], floats(60 * MILLION)]),
    Slow("TensorScatterUpdate", lambda: [floats(1000), ints(20 * MILLION, 1000)[:, None], floats(20 * MILLION)]),
    Slow("TensorScatterMax", lambda: [floats(1000), ints(20 * MILLION, 1000)[:, None], floats(20 * MILLION)]),
    Slow("ScatterNd", lambda: [ints(20 * MILLION, 1000)[:, None], floats(20 * MILLION), shape(1000)], note="many"),
    Slow("GatherV2", lambda: [floats(40 * MILLION), ints(40 * MILLION, 40 * MILLION), scalar(0)]),
    Slow("GatherNd", lambda: [floats(40 * MILLION), ints(40 * MILLION, 40 * MILLION)[:, None]]),
]

# Products, decompositions, convolutions.
_ROWS += [
    Slow("MatMul", lambda: [floats(4000, 4000), floats(4000, 4000)], left=LEFT),
    Slow(
        "MatMul",
        lambda: [ints(4 * MILLION, 10).reshape(2000, 2000), ints(4 * MILLION, 10).reshape(2000, 2000)],
        left=LEFT,
        note="int32",
    ),
    Slow(
        "MatMul",
        lambda: [floats(3000, 3000, dtype="bfloat16"), floats(3000, 3000, dtype="bfloat16")],
        left=LEFT,
        note="bfloat16",
    ),
    Slow("BatchMatMulV2", lambda: [floats(2000, 200, 200), floats(2000, 200, 200)]),
    Slow(
        "Einsum",
        lambda: [(floats(300, 300, 300), floats(300, 300, 300))],
        {"equation": "abc,cbd->abd", "N": 2},
        left=LEFT,
    ),
    Slow(
        "Einsum",
        lambda: [(floats(3000, 3000), floats(12))],
        {"equation": "ab,c->abc", "N": 2},
        left=LEFT,
        note="outer",
    ),
    Slow("Svd", lambda: [floats(1500, 1500)], left=LEFT),
    Slow("Svd", lambda: [floats(20_000, 30, 30)], note="batch"),
    Slow("SelfAdjointEigV2", lambda: [floats(2000, 2000)], left=LEFT),
    Slow("Qr", lambda: [floats(3000, 3000)], left=LEFT),
    Slow("Cholesky", lambda: [np.eye(6000, dtype=np.float32)], left=LEFT),
    Slow("CholeskyGrad", lambda: [np.eye(3000, dtype=np.float32), floats(3000, 3000)], left=LEFT),
    Slow("MatrixInverse", lambda: [floats(4000, 4000)], left=LEFT),
    Slow("MatrixSolve", lambda: [floats(4000, 4000), floats(4000, 4000)], left=LEFT),
    Slow("MatrixTriangularSolve", lambda: [np.eye(5000, dtype=np.float32), floats(5000, 5000)], left=LEFT),
    Slow("MatrixDeterminant", lambda: [floats(5000, 5000)], left=LEFT),
    Slow("LogMatrixDeterminant", lambda: [floats(5000, 5000)], left=LEFT),
    Slow("LogMatrixDeterminant", lambda: [floats(40_000, 30, 30)], note="batch"),
    Slow(
        "Conv2D", lambda: [floats(8, 256, 256, 32), floats(5, 5, 32, 64)], {"strides": [1, 1, 1, 1], "padding": "SAME"}
    ),
    Slow(
        "Conv2DBackpropInput",
        lambda: [shape(8, 256, 256, 32), floats(5, 5, 32, 64), floats(8, 256, 256, 64)],
        {"strides": [1, 1, 1, 1], "padding": "SAME"},
    ),
    Slow(
        "Conv2DBackpropFilter",
        lambda: [floats(8, 256, 256, 32), shape(5, 5, 32, 64), floats(8, 256, 256, 64)],
        {"strides": [1, 1, 1, 1], "padding": "SAME"},
    ),
    Slow(
        "DepthwiseConv2dNative",
        lambda: [floats(16, 512, 512, 16), floats(5, 5, 16, 1)],
        {"strides": [1, 1, 1, 1], "padding": "SAME"},
    ),
    Slow(
        "MaxPool",
        lambda: [floats(16, 512, 512, 16)],
        {"ksize": [1, 9, 9, 1], "strides": [1, 1, 1, 1], "padding": "SAME"},
    ),
    Slow(
        "AvgPool",
        lambda: [floats(16, 512, 512, 16)],
        {"ksize": [1, 9, 9, 1], "strides": [1, 1, 1, 1], "padding": "SAME"},
    ),
    Slow(
        "MaxPoolGrad",
        lambda: [floats(8, 512, 512, 16), floats(8, 512, 512, 16), floats(8, 512, 512, 16)],
        {"ksize": [1, 9, 9, 1], "strides": [1, 1, 1, 1], "padding": "SAME"},
    ),
    Slow(
        "AvgPoolGrad",
        lambda: [shape(8, 512, 512, 16), floats(8, 512, 512, 16)],
        {"ksize": [1, 9, 9, 1], "strides": [1, 1, 1, 1], "padding": "SAME"},
    ),
    Slow("LRN", lambda: [floats(8, 256, 256, 64)], left=LEFT),
    Slow("LRNGrad", lambda: [floats(8, 256, 256, 64), floats(8, 256, 256, 64), floats(8, 256, 256, 64)], left=LEFT),
]

# Functions with a long run time per element.
_ROWS += [unary(op) for op in ("Tan", "Sinh", "Acosh", "Softplus", "Softsign")]
_ROWS += [binary(op) for op in ("Pow", "Atan2", "Xlogy", "FloorMod", "NextAfter", "Div")]
_ROWS += [unary(op, 10, left=False) for op in ("Lgamma", "Digamma", "Erfinv", "Ndtri", "Erf", "Erfc")]
_ROWS += [binary(op, 2, left=False) for op in ("Zeta", "Polygamma")]
_ROWS += [
    Slow("Pow", lambda: [ints(40 * MILLION, 10, "int64"), ints(40 * MILLION, 60, "int64")], left=LEFT, note="int64"),
    Slow("Exp", lambda: [floats(40 * MILLION, dtype="bfloat16")], left=LEFT, note="bfloat16"),
    Slow(
        "AddV2",
        lambda: [floats(100 * MILLION, dtype="bfloat16"), floats(100 * MILLION, dtype="bfloat16")],
        left=LEFT,
        note="bfloat16",
    ),
    Slow("Cast", lambda: [floats(100 * MILLION, dtype="float16")], {"DstT": af.bfloat16}, left=LEFT),
    Slow("Softmax", lambda: [floats(40 * MILLION).reshape(-1, 10)], left=LEFT),
    Slow("LogSoftmax", lambda: [floats(40 * MILLION).reshape(-1, 10)], left=LEFT),
    Slow(
        "FusedBatchNormV3",
        lambda: [floats(64, 128, 128, 64), floats(64), floats(64), np.zeros(0, np.float32), np.zeros(0, np.float32)],
        left=LEFT,
    ),
]

# Strings.
_ROWS += [
    Slow("AsString", lambda: [floats(5 * MILLION)]),
    Slow("AsString", lambda: [floats(200_000)], {"width": 4000}, note="width"),
    Slow("StringToNumber", lambda: [texts(4 * MILLION)]),
    Slow("StringJoin", lambda: [(texts(4 * MILLION), texts(4 * MILLION))], {"N": 2, "separator": "-"}),
    Slow("StringLength", lambda: [texts(4 * MILLION)], {"unit": "UTF8_CHAR"}),
    Slow("Substr", lambda: [texts(4 * MILLION), scalar(0), scalar(1)]),
    Slow("StringSplit", lambda: [texts(2 * MILLION, "%d a b"), text(b" ")]),
    Slow("StringSplitV2", lambda: [texts(2 * MILLION, "%d a b"), text(b" ")]),
    Slow("StringSplitV2", lambda: [repeated(b"a " * 10 * MILLION, 1), text(b" ")], note="long"),
    Slow("StringStrip", lambda: [texts(6 * MILLION)]),
    Slow("StringLower", lambda: [texts(6 * MILLION)]),
    Slow("StringUpper", lambda: [texts(6 * MILLION)], {"encoding": "utf-8"}),
    Slow("EncodeBase64", lambda: [texts(4 * MILLION)]),
    Slow("DecodeBase64", lambda: [repeated(b"YWJj", 4 * MILLION)]),
    Slow("RegexReplace", lambda: [texts(2 * MILLION), text(b"1"), text(b"2")]),
    Slow("RegexReplace", lambda: [repeated(b"a " * 4 * MILLION, 1), text(b"a"), text(b"b")], note="long"),
    Slow("RegexFullMatch", lambda: [texts(4 * MILLION), text(b"1*")]),
    Slow("StringToHashBucket", lambda: [texts(2 * MILLION)], {"num_buckets": 100}),
    Slow("StringToHashBucket", lambda: [repeated(b"abcdefgh" * 2 * MILLION, 1)], {"num_buckets": 100}, note="long"),
    Slow("StringToHashBucketStrong", lambda: [texts(MILLION)], {"num_buckets": 100, "key": [1, 2]}),
    Slow("ReduceJoin", lambda: [texts(8 * MILLION).reshape(-1, 4), shape(1)]),
    Slow("DecodeRaw", lambda: [repeated(b"abcdefgh", 4 * MILLION)], {"out_type": af.int32}),
    Slow(
        "DecodeCSV",
        lambda: [texts(MILLION, "%d,2,3"), (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.int32))],
        {"OUT_TYPE": [af.int32] * 3},
    ),
    Slow("Equal", lambda: [texts(8 * MILLION), texts(8 * MILLION)], note="strings"),
    Slow("SerializeTensor", lambda: [texts(4 * MILLION)]),
    Slow("ParseTensor", lambda: [text(serialized(4 * MILLION))], {"out_type": af.string}),
    Slow("Fill", lambda: [shape(20 * MILLION), text(b"x")], small=lambda: [shape(1), text(b"x")], note="strings"),
    Slow("Tile", lambda: [texts(10), shape(2 * MILLION)], small=lambda: [texts(10), shape(1)], note="strings"),
    Slow("GatherV2", lambda: [texts(10), ints(15 * MILLION, 10), scalar(0)], note="strings"),
    Slow(
        "ConcatV2",
        lambda: [(repeated(b"a", 10 * MILLION), repeated(b"b", 10 * MILLION)), scalar(0)],
        {"N": 2},
        note="strings",
    ),
]

# Examples and images.
_ROWS += [
    Slow(
        "ParseExample",
        lambda: [repeated(example(), 300_000), np.zeros(0, object), (), (text(b"x"),), (np.zeros(0, np.float32),)],
        {"Nsparse": 0, "Ndense": 1, "sparse_types": [], "Tdense": [af.float32], "dense_shapes": [[10]]},
    ),
    Slow("DecodePng", lambda: [image(9000, 9000, "PNG")], left=LEFT),
    Slow("DecodeJpeg", lambda: [image(4000, 4000, "JPEG")], left=LEFT),
    Slow("DecodeBmp", lambda: [image(8000, 8000, "BMP")], left=LEFT),
    Slow("DecodeGif", lambda: [animation(240)]),
    Slow("EncodePng", lambda: [ints(60 * MILLION, 256, "uint8").reshape(5000, 4000, 3)], left=LEFT),
    Slow("EncodeJpeg", lambda: [ints(120 * MILLION, 256, "uint8").reshape(5000, 8000, 3)], left=LEFT),
    Slow("AdjustContrastv2", lambda: [floats(4, 2000, 2000, 3), scalar(2.0, "float32")], left=LEFT),
    Slow("ResizeBilinearGrad", lambda: [floats(1, 4000, 4000, 3), floats(1, 10, 10, 3)]),
    Slow("ResizeNearestNeighborGrad", lambda: [floats(1, 4000, 4000, 3), shape(10, 10)]),
    Slow("DrawBoundingBoxes", lambda: [floats(1, 1000, 1000, 3), floats(1, 2 * MILLION, 4)]),
    Slow("RGBToHSV", lambda: [floats(4, 2000, 2000, 3)]),
    Slow("HSVToRGB", lambda: [floats(4, 2000, 2000, 3)]),
    Slow("AdjustHue", lambda: [floats(4, 2000, 2000, 3), scalar(0.3, "float32")]),
    Slow("AdjustSaturation", lambda: [floats(4, 2000, 2000, 3), scalar(0.3, "float32")]),
    Slow("ResizeBicubicGrad", lambda: [floats(1, 4000, 4000, 3), floats(1, 10, 10, 3)]),
    Slow("ResizeArea", lambda: [floats(1, 4000, 4000, 3), shape(10, 10)]),
    Slow(
        "ScaleAndTranslateGrad",
        lambda: [floats(1, 4000, 4000, 3), floats(1, 10, 10, 3), np.full(2, 400, np.float32), np.zeros(2, np.float32)],
    ),
]

# Sparse tensors.
_ROWS += [
    Slow("SparseAdd", lambda: [*sparse(3 * MILLION), *sparse(3 * MILLION), scalar(0.0, "float32")]),
    Slow("SparseReorder", lambda: [sparse(6 * MILLION)[0][::-1].copy(), *sparse(6 * MILLION)[1:]]),
    Slow(
        "SparseConcat",
        lambda: [(sparse(3 * MILLION)[0],) * 2, (sparse(3 * MILLION)[1],) * 2, (sparse(3 * MILLION)[2],) * 2],
        {"concat_dim": 0, "N": 2},
    ),
    Slow("SparseSplit", lambda: [scalar(0, "int64"), *sparse(6 * MILLION)], {"num_split": 8}),
    Slow(
        "SparseSlice",
        lambda: [*sparse(10 * MILLION), np.zeros(2, np.int64), np.array([1 << 19, 10 * MILLION], np.int64)],
    ),
    Slow("SparseReduceSum", lambda: [*sparse(6 * MILLION), shape(1)]),
    Slow("SparseReduceMax", lambda: [*sparse(6 * MILLION), shape(1)]),
    Slow("SparseReduceSumSparse", lambda: [*sparse(6 * MILLION), shape(1)]),
    Slow("SparseSoftmax", lambda: [*sparse(6 * MILLION)]),
    Slow("SparseFillEmptyRows", lambda: [*sparse(6 * MILLION), scalar(1.0, "float32")]),
    Slow(
        "SparseFillEmptyRows",
        lambda: [*sparse(10, 10)[:2], np.array([100 * MILLION, 10], np.int64), scalar(1.0, "float32")],
        small=lambda: [*sparse(10, 10)[:2], np.array([100, 10], np.int64), scalar(1.0, "float32")],
        note="rows",
    ),
    Slow(
        "SparseTensorDenseMatMul",
        lambda: [*sparse(MILLION, 1000)[:2], np.array([1000, MILLION], np.int64), floats(MILLION, 60)],
    ),
    Slow(
        "SparseTensorDenseAdd",
        lambda: [*sparse(MILLION, 100)[:2], np.array([100, MILLION], np.int64), floats(100, MILLION)],
    ),
    Slow(
        "SparseDenseCwiseMul",
        lambda: [*sparse(10 * MILLION, 1)[:2], np.array([1, 10 * MILLION], np.int64), floats(1, 10 * MILLION)],
    ),
    Slow("SparseSparseMaximum", lambda: [*sparse(3 * MILLION), *sparse(3 * MILLION)]),
    Slow(
        "SparseToDense",
        lambda: [
            sparse(6 * MILLION, 10)[0],
            np.array([10, 6 * MILLION], np.int64),
            sparse(6 * MILLION, 10)[1],
            scalar(0.0, "float32"),
        ],
        note="many",
    ),
    Slow("SparseReshape", lambda: [sparse(10 * MILLION)[0], sparse(10 * MILLION)[2], np.array([-1], np.int64)]),
    Slow("SerializeManySparse", lambda: [*sparse(2 * MILLION, MILLION)], {"out_type": af.string}),
]

SLOW: Final = [row for row in _ROWS if not row.free]
GROWING: Final = [row for row in _ROWS if row.small is not None]


def forget() -> None:
    """Free the arrays that the rows share."""
    for kept in (floats, ints, texts, sparse, serialized):
        kept.cache_clear()
