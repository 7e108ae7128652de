"""Errors of array ops: at graph construction where shapes are known, otherwise at run time, always typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.config import SessionConfig
from aioflow.errors import DTypeError, InvalidArgumentError, ResourceExhaustedError, UnimplementedError
from aioflow.ops.apply import make, make_list
from aioflow.testing.evaluate import evaluate


def ints(*values: Any) -> Any:
    return np.array(values, np.int32)


M = np.zeros((2, 3), np.float32)
V = np.zeros(3, np.float32)

# Each case: a builder, and argument values that are invalid for every shape.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "reshape count": (lambda t, s: af.reshape(t, s), (M, ints(4))),
    "reshape two open": (lambda t, s: af.reshape(t, s), (M, ints(-1, -1))),
    "reshape negative": (lambda t, s: af.reshape(t, s), (M, ints(-2, 3))),
    "transpose twice": (lambda t, p: af.transpose(t, p), (M, ints(0, 0))),
    "transpose range": (lambda t, p: af.transpose(t, p), (M, ints(0, 2))),
    "expand_dims": (lambda t, a: af.expand_dims(t, a), (M, ints(4)[0])),
    "broadcast_to": (lambda t, s: af.broadcast_to(t, s), (M, ints(2, 4))),
    "broadcast_to rank": (lambda t, s: af.broadcast_to(t, s), (M, ints(3))),
    "concat axis": (lambda t, a: af.concat([t, t], a), (M, ints(2)[0])),
    "split parts": (lambda t, a: af.split(t, 2, axis=a), (M, ints(1)[0])),
    "split axis": (lambda t, a: af.split(t, 1, axis=a), (M, ints(2)[0])),
    "split sizes": (lambda t, s: af.split(t, s, axis=1, num=2), (M, ints(1, 1))),
    "split sizes negative": (lambda t, s: af.split(t, s, axis=1, num=2), (M, ints(-2, 5))),
    "split two open": (lambda t, s: af.split(t, s, axis=1, num=2), (M, ints(-1, -1))),
    "tile negative": (lambda t, n: af.tile(t, n), (M, ints(1, -1))),
    "tile count": (lambda t, n: af.tile(t, n), (M, ints(1))),
    "slice begin": (lambda t, b, s: af.slice(t, b, s), (M, ints(-1, 0), ints(1, 1))),
    "slice size": (lambda t, b, s: af.slice(t, b, s), (M, ints(1, 0), ints(2, 1))),
    "slice rank": (lambda t, b, s: af.slice(t, b, s), (M, ints(1), ints(1))),
    "item": (lambda t, n: t[n], (M, ints(2)[0])),
    "item negative": (lambda t, n: t[n], (M, ints(-3)[0])),
    "item later": (lambda t, n: t[..., n], (M, ints(3)[0])),
    "stride zero": (lambda t, s: t[::s], (M, ints(0)[0])),
    "too many items": (lambda t, n: t[n, 0, 0], (M, ints(0)[0])),
    "pad negative": (lambda t, p: af.pad(t, p), (V, ints([-1, 0]))),
    "pad rank": (lambda t, p: af.pad(t, p), (M, ints([1, 0]))),
    "reflect": (lambda t, p: af.pad(t, p, "REFLECT"), (V, ints([3, 0]))),
    "symmetric": (lambda t, p: af.pad(t, p, "SYMMETRIC"), (V, ints([0, 4]))),
    "space_to_batch": (lambda t, b: af.space_to_batch_nd(t, b, [[0, 0]]), (M, ints(2))),
    "space_to_batch block": (lambda t, b: af.space_to_batch_nd(t, b, [[0, 0]]), (M, ints(0))),
    "batch_to_space": (lambda t, b: af.batch_to_space_nd(t, b, [[0, 0]]), (M, ints(4))),
    "batch_to_space crops": (lambda t, c: af.batch_to_space_nd(t, [2], c), (M, ints([4, 4]))),
    "batch_to_space no pairs": (lambda t, c: af.batch_to_space_nd(t, [2], c), (M, np.zeros((1, 0), np.int32))),
    "batch_to_space more pairs": (lambda t, c: af.batch_to_space_nd(t, [2], c), (M, ints([0, 0], [0, 0]))),
    "batch_to_space fewer pairs": (lambda t, c: af.batch_to_space_nd(t, [2], c), (M, np.zeros((0, 2), np.int32))),
    "space_to_batch triples": (lambda t, p: af.space_to_batch_nd(t, [1], p), (M, ints([0, 0, 0]))),
    "space_to_batch fewer pairs": (lambda t, p: af.space_to_batch_nd(t, [1, 1], p), (M[None], ints([0, 0]))),
    "fill": (lambda d: af.fill(d, 1.0), (ints(-1),)),
    "range delta": (lambda d: af.range(0, 3, d), (ints(0)[0],)),
    "range way": (lambda d: af.range(0, 3, d), (ints(-1)[0],)),
    "linspace": (lambda n: af.linspace(0.0, 1.0, n), (ints(0)[0],)),
    "one_hot": (lambda d: af.one_hot([1], d), (ints(-1)[0],)),
    "gather high": (lambda t, n: af.gather(t, n), (V, ints(0, 3))),
    "gather negative": (lambda t, n: af.gather(t, n), (V, ints(-1))),
    "gather scalar": (lambda t, n: af.gather(t, n), (V, ints(-1)[0])),
    "gather axis": (lambda t, a: af.gather(t, [0], axis=a), (V, ints(1)[0])),
    "gather batch": (lambda t, n: af.gather(t, n, batch_dims=1), (M, ints([3], [0]))),
    "gather old": (lambda t, n: make("Gather", t, n), (V, ints(3))),
    "gather_nd": (lambda t, n: af.gather_nd(t, n), (M, ints([0, 3]))),
    "gather_nd negative": (lambda t, n: af.gather_nd(t, n), (M, ints([-1]))),
    "scatter_nd": (lambda n: af.scatter_nd(n, [1.0], [3]), (ints([3]),)),
    "scatter_nd negative": (lambda n: af.scatter_nd(n, [1.0], [3]), (ints([-1]),)),
    "scatter_nd shape": (lambda s: af.scatter_nd([[0]], [1.0], s), (ints(2, 2),)),
    "tensor_scatter": (lambda t, n: af.tensor_scatter_add(t, n, [1.0]), (V, ints([5]))),
    "reverse twice": (lambda t, a: af.reverse(t, a), (M, ints(0, -2))),
    "reverse range": (lambda t, a: af.reverse(t, a), (M, ints(2))),
    "reverse_sequence": (lambda t, n: af.reverse_sequence(t, n, 1), (M, ints(4, 0))),
    "roll axis": (lambda t, a: af.roll(t, 1, a), (V, ints(1)[0])),
    "roll lengths": (lambda t, a: af.roll(t, [1, 2], a), (V, ints(0))),
    "permutation high": (lambda p: af.invert_permutation(p), (ints(0, 2),)),
    "permutation twice": (lambda p: af.invert_permutation(p), (ints(0, 0),)),
    "permutation negative": (lambda p: af.invert_permutation(p), (ints(0, -1),)),
    "partition": (lambda t, p: af.dynamic_partition(t, p, 2), (V, ints(0, 1, 2))),
    "stitch": (lambda n: af.dynamic_stitch([n], [[1.0]]), (ints(-1),)),
    "unravel_index": (lambda n: af.unravel_index(n, [2, 2]), (ints(4),)),
    "band": (lambda t, n: af.matrix_band_part(t, n, 0), (M, ints(3)[0])),
}


@pytest.mark.parametrize("when", ["constant", "fed"])
@pytest.mark.parametrize("name", CASES)
def test_invalid_values_are_refused(name: str, when: str) -> None:
    # Constants are refused by the shape function or the kernel, fed values by the kernel.
    build, arrays = CASES[name]
    with af.Graph().as_default():
        if when == "constant":
            with pytest.raises(InvalidArgumentError) as raised:
                evaluate(_listed(build(*[af.constant(a) for a in arrays])))
        else:
            inputs = [af.placeholder(a.dtype, [None] * np.ndim(a)) for a in arrays]
            with pytest.raises(InvalidArgumentError) as raised:
                evaluate(_listed(build(*inputs)), dict(zip(inputs, arrays, strict=True)))
        # A node that is under construction may have no name yet.
        assert raised.value.node or raised.value.op_type
        assert raised.value.op_type is not None
        assert raised.value.expected is not None
        assert raised.value.actual is not None


def _listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, list | tuple) else [made]


# Shapes that are known only at run time.
FED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "concat": (lambda a, b: af.concat([a, b], 0), (M, np.zeros((2, 2), np.float32))),
    "stack": (lambda a, b: af.stack([a, b]), (V, np.zeros(2, np.float32))),
    "unstack": (lambda a: af.unstack(a, num=2), (V,)),
    "squeeze": (lambda a: af.squeeze(a, [0]), (M,)),
    "ensure_shape": (lambda a: af.ensure_shape(a, [None, 4]), (M,)),
    "bitcast": (lambda a: af.bitcast(a, "float64"), (M,)),
    "select": (lambda a, b: af.where(True, a, b), (V, np.zeros(2, np.float32))),
    "select rows": (lambda c, a: af.where(c, a, a), (np.array([True]), M)),
    "updates": (lambda u: af.scatter_nd([[0]], u, [3]), (V,)),
    "index vectors": (lambda n: af.gather_nd([1.0, 2.0], n), (ints([0, 0]),)),
    "partitions": (lambda a, p: af.dynamic_partition(a, p, 2), (V, ints(0, 1))),
    "stitch": (lambda a: af.dynamic_stitch([[0, 1]], [a]), (V,)),
    "diag_part": (lambda a: af.diag_part(a), (M,)),
    "set_diag": (lambda a, d: af.matrix_set_diag(a, d), (M, V)),
    "space_to_depth": (lambda a: af.space_to_depth(a, 2), (np.zeros((1, 3, 2, 1), np.float32),)),
    "depth_to_space": (lambda a: af.depth_to_space(a, 2), (np.zeros((1, 2, 2, 3), np.float32),)),
    "split": (lambda a: af.split(a, 2), (V,)),
    "searchsorted": (lambda a, b: af.searchsorted(a, b), (M, np.zeros((3, 1), np.float32))),
    "sequence lengths": (lambda a: af.reverse_sequence(a, [1, 1, 1], 1), (M,)),
    "strided gradient": (lambda g: make("StridedSliceGrad", [4], [0], [2], [1], g), (V,)),
}


@pytest.mark.parametrize("name", FED)
def test_invalid_shapes_are_refused_at_run_time(name: str) -> None:
    build, arrays = FED[name]
    with af.Graph().as_default():
        inputs = [af.placeholder(a.dtype, [None] * a.ndim) for a in arrays]
        made = _listed(build(*inputs))
        with pytest.raises(InvalidArgumentError) as raised:
            evaluate(made, dict(zip(inputs, arrays, strict=True)))
    assert raised.value.node is not None
    assert raised.value.expected is not None
    assert raised.value.actual is not None


BUILT: dict[str, Callable[[Any], Any]] = {
    "squeeze axis": lambda t: af.squeeze(t, [5]),
    "squeeze size": lambda t: af.squeeze(t, [0]),
    "concat ranks": lambda t: af.concat([t, af.zeros([3])], 0),
    "concat scalars": lambda t: af.concat([t[0, 0], t[0, 0]], 0),
    "stack shapes": lambda t: af.stack([t, af.zeros([3])]),
    "stack axis": lambda t: af.stack([t, t], axis=3),
    "unstack unknown": lambda t: af.unstack(af.placeholder("float32")),
    "unstack number": lambda t: af.unstack(t, num=3),
    "split number": lambda t: af.split(t, 4),
    "split scalar": lambda t: af.split(t, af.constant(2)),
    "split unknown": lambda t: af.split(t, af.placeholder("int32", [None])),
    "expand_dims none": lambda t: af.expand_dims(t),
    "item out": lambda t: t[2],
    "items": lambda t: t[0, 0, 0],
    "two ellipses": lambda t: t[..., ..., 0],
    "zero stride": lambda t: t[::0],
    "shape tensor": lambda t: af.reshape(t, 6),
    "fill value": lambda t: af.fill([2], [1.0, 2.0]),
    "zeros": lambda t: af.zeros([-1]),
    "mode": lambda t: af.pad(t, [[0, 0], [0, 0]], "EDGE"),  # type: ignore[arg-type]  # wrong on purpose
    "gather batch": lambda t: af.gather(t, [0], axis=0, batch_dims=1),
    "batch_dims": lambda t: af.gather(t, [0], batch_dims=3),
    "policy": lambda t: evaluate([af.gather_nd(t, [[0]], bad_indices_policy="WRAP")]),  # type: ignore[arg-type]  # wrong on purpose
    "where": lambda t: af.where(True, t),
    "mask scalar": lambda t: af.boolean_mask(t, True),
    "mask shape": lambda t: af.boolean_mask(t, [True]),
    "meshgrid": lambda t: af.meshgrid([1], indexing="zz"),  # type: ignore[arg-type]  # wrong on purpose
    "searchsorted": lambda t: af.searchsorted(t, t, side="up"),  # type: ignore[arg-type]  # wrong on purpose
    "matrix": lambda t: af.matrix_transpose(af.zeros([3])),
    "one_hot axis": lambda t: af.one_hot([1], 2, axis=3),
    "diagonal": lambda t: af.matrix_diag(t, k=1),
    "vect_c": lambda t: af.space_to_depth(af.zeros([1, 2, 2, 4]), 2, data_format="NCHW_VECT_C"),  # type: ignore[arg-type]  # wrong on purpose
    "broadcast": lambda t: af.broadcast_static_shape([2, 3], [4]),
    "sequence axis": lambda t: af.reverse_sequence(t, [1, 1]),
    "concat in the old order": lambda t: af.concat(0, [t, t]),
    "concat of one along a fraction": lambda t: af.concat([t], 0.5),
    "concat of one along text": lambda t: af.concat([t], "a"),
    "concat of one along nothing": lambda t: af.concat([t], None),  # type: ignore[arg-type]  # wrong on purpose
    "concat of one along a list": lambda t: af.concat([t], [0]),
    "concat of two along a list": lambda t: af.concat([t, t], [0]),
    "overflow": lambda t: af.fill([2**31 - 1, 2**31 - 1, 4], 0.0),
}


@pytest.mark.parametrize("name", BUILT)
def test_refused_when_built(name: str) -> None:
    with af.Graph().as_default(), pytest.raises(InvalidArgumentError) as raised:
        BUILT[name](af.placeholder("float32", [2, 3]))
    assert raised.value.expected is not None


@pytest.mark.parametrize("key", [1.5, "a", np.array([0, 1]), [[0]], (0, 2.0)], ids=repr)
def test_getitem_rejects_indices_of_wrong_kind(key: Any) -> None:
    with af.Graph().as_default(), pytest.raises(DTypeError):
        af.placeholder("float32", [2, 3])[key]


def test_error_messages_contain_the_numbers() -> None:
    t, s = af.placeholder("float32", [None]), af.placeholder("int32", [None])
    with pytest.raises(InvalidArgumentError, match=r"6 elements[\s\S]*\[4\]"):
        evaluate([af.reshape(t, s)], {t: np.zeros(6), s: ints(4)})
    with pytest.raises(InvalidArgumentError, match=r"indices\[1\] = 9 is not in \[0, 6\)"):
        evaluate([af.gather(t, s)], {t: np.zeros(6), s: ints(0, 9)})


@pytest.mark.parametrize(
    ("op", "values"),
    [(op, ["a"]) for op in ("Add", "Sub", "Min", "Max")] + [("Sub", [True]), ("Min", [1j])],
    ids=str,
)
def test_tensor_scatter_rejects_dtypes_without_the_operation(op: str, values: list[Any]) -> None:
    made = make(f"TensorScatter{op}", af.constant(values), [[0]], af.constant(values))
    with pytest.raises(UnimplementedError, match=f"TensorScatter{op}"):
        evaluate([made])


def test_reshape_of_empty_tensors_rejects_too_large_sizes() -> None:
    shape = af.placeholder(af.int64, [3])
    made = af.reshape(af.zeros([0, 3]), shape)
    assert evaluate([made], {shape: np.array([0, -1, 3])})[0].shape == (0, 1, 3)
    with pytest.raises(ResourceExhaustedError):
        evaluate([made], {shape: np.array([0, -1, 2**62])})


async def test_sizes_too_large_for_their_dtype_are_refused() -> None:
    # A tensor of one element, broadcast to 2³³ rows.
    rows = 2**33
    config = SessionConfig(max_value_bytes=None)
    with af.Graph().as_default() as graph:
        fed = af.placeholder("int64", [1])
        many = [make("BroadcastTo", np.int8(1), sizes) for sizes in (fed, np.array([rows]))]
        asked = [make(op, x) for x in many for op in ("Shape", "Size")]
        asked += [make_list("ShapeN", [x])[0] for x in many]
        asked += [make("Reshape", x, make("Shape", x)) for x in many]
        wide = [make(op, x, out_type=af.int64) for x in many for op in ("Shape", "Size")]
        x = af.placeholder("float32", [rows, 2])
        for build in (af.shape, af.size):
            with pytest.raises(InvalidArgumentError, match="too large"):
                build(x)
    async with af.Session(graph=graph, config=config) as session:
        for fetch in asked:
            with pytest.raises(InvalidArgumentError, match="too large"):
                await session.run(fetch, {fed: [rows]})
        for found in await session.run(wide, {fed: [rows]}):
            assert found.reshape(-1).tolist() == [rows]


@pytest.mark.parametrize("op", ["Gather", "GatherV2"])
def test_gather_rejects_results_of_more_than_64_dimensions(op: str) -> None:
    # NumPy's `take` crashes the process if its result would have more than 64 dimensions.
    rows, places = af.placeholder("float32"), af.placeholder("int32")
    made = make(op, rows, places, *([0] if op == "GatherV2" else []))
    feeds = {rows: np.ones((1,) * 40, np.float32), places: np.zeros((1,) * 25, np.int32)}
    assert evaluate([made], feeds)[0].ndim == 64
    with pytest.raises(InvalidArgumentError, match="dimensions"):
        evaluate([made], feeds | {places: np.zeros((1,) * 26, np.int32)})


async def test_expand_dims_rejects_more_than_64_dimensions() -> None:
    with pytest.raises(InvalidArgumentError, match="too many dimensions"):
        af.expand_dims(np.ones((1,) * 64, np.float32), 0)
    x = af.placeholder("float32")
    async with af.Session() as session:
        with pytest.raises(InvalidArgumentError, match="dimensions"):
            await session.run(af.expand_dims(x, 0), {x: np.ones((1,) * 64, np.float32)})


async def test_pad_requires_a_scalar_constant() -> None:
    x, outside = af.placeholder("float32", [2]), af.placeholder("float32")
    with pytest.raises(InvalidArgumentError, match="rank 0"):
        af.pad(x, [[1, 1]], constant_values=[1.0, 2.0])
    async with af.Session() as session:
        with pytest.raises(InvalidArgumentError, match="constant_values"):
            await session.run(af.pad(x, [[1, 1]], constant_values=outside), {x: [3.0, 4.0], outside: [[1.0]]})


@pytest.mark.parametrize("op", ["ReluGrad", "SoftplusGrad", "TanhGrad", "RsqrtGrad"])
async def test_gradient_ops_of_activations_do_not_broadcast(op: str) -> None:
    x, y = af.placeholder("float32"), af.placeholder("float32")
    made = make(op, x, y)
    async with af.Session() as session:
        assert (await session.run(made, {x: [[1.0]], y: [[2.0]]})).shape == (1, 1)
        with pytest.raises(InvalidArgumentError, match="one shape") as caught:
            await session.run(made, {x: [[1.0], [2.0]], y: [[1.0, 2.0]]})
        assert caught.value.node == made.op.name
