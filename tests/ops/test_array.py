"""Array ops: views, lean graphs, refused arguments, and gradients that TensorFlow lacks by finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.ops.apply import make, make_list
from aioflow.testing.evaluate import evaluate
from aioflow.testing.gradcheck import check_gradients
from tests.support.dense import dense

RNG = np.random.default_rng(3)


def run(tensor: Any, feeds: Any = None) -> Any:
    return evaluate([tensor], feeds)[0]


def x(*shape: int) -> Any:
    return RNG.standard_normal(shape)


def weighted(tensors: list[Any]) -> Any:
    """Return one tensor in which each of `tensors` has a weight of its own."""
    return af.concat([af.reshape(t, [-1]) * float(i + 1) for i, t in enumerate(tensors)], 0)


INDEX = np.array([[2, 0], [1, 1]], np.int32)

# tests/parity compares the gradients of the others.
GRADIENTS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "Transpose": (lambda t: af.transpose(t, [2, 0, 1]), (x(2, 3, 2),)),
    "Snapshot": (lambda t: make("Snapshot", t), (x(3),)),
    "StridedSliceGrad": (
        lambda t: make("StridedSliceGrad", [4, 3], [3, 0], [0, 0], [-2, 1], t, end_mask=3),
        (x(2, 3),),
    ),
    "PadV2": (lambda t, v: af.pad(t, [[1, 0], [2, 1]], constant_values=v), (x(2, 2), x())),
    "SpaceToDepth NCHW": (lambda t: af.space_to_depth(t, 2, data_format="NCHW"), (x(1, 2, 2, 4),)),
    "DepthToSpace NCHW": (lambda t: af.depth_to_space(t, 2, data_format="NCHW"), (x(1, 8, 1, 2),)),
    "LinSpace": (lambda a, b: af.linspace(a, b, 4), (x(), x())),
    "linspace of tensors": (lambda a, b: af.linspace(a, b, 3, axis=1), (x(2), x(2))),
    "GatherV2 with two batches": (lambda t: af.gather(t, INDEX, batch_dims=2), (x(2, 2, 3, 2),)),
    "TensorScatterMax": (lambda t, u: af.tensor_scatter_nd_max(t, [[2], [2]], u), (x(3, 2), x(2, 2))),
}


SECOND_ORDER: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "ConcatV2": (lambda a, b: af.concat([a, b, a], 1), (x(2, 3), x(2, 1))),
    "Tile": (lambda t: af.tile(t, [2, 3]), (x(2, 2),)),
    "Slice": (lambda t: af.slice(t, [1, 0], [2, -1]), (x(3, 2),)),
    "Pad": (lambda t: af.pad(t, [[1, 0], [2, 1]]), (x(2, 2),)),
    "MirrorPad": (lambda t: af.pad(t, [[1, 1], [2, 0]], mode="REFLECT"), (x(2, 3),)),
    "GatherV2 along an axis": (lambda t: af.gather(t, INDEX, axis=1), (x(2, 3, 2),)),
    "SelectV2": (lambda a, b: af.where_v2([[True], [False]], a, b), (x(3), x(2, 1))),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_equals_central_differences(name: str) -> None:
    build, arrays = GRADIENTS[name]
    check_gradients(build, *arrays)


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_second_order_gradient(name: str) -> None:
    build, arrays = SECOND_ORDER[name]

    def first_order(*tensors: Any) -> Any:
        y = build(*tensors)
        grads = [af.convert_to_tensor(g) for g in dense(af.gradients([y * y * y], list(tensors)))]
        return weighted(grads)

    check_gradients(first_order, *arrays, rtol=1e-4, atol=1e-5)


def test_gradients_of_static_shapes_make_no_shape_nodes() -> None:
    t = af.placeholder("float32", [4, 6])
    y = af.reshape(af.pad(af.tile(af.transpose(t[1:3]), [2, 1]), [[1, 0], [0, 1]]), [-1])
    z = af.concat(af.split(af.slice(y, [3], [9]), [4, 5]), 0) + 1.0
    af.gradients([z], [t])
    types = [op.type for op in t.graph.get_operations()]
    assert "Shape" not in types
    assert "BroadcastGradientArgs" not in types


def test_views_share_memory() -> None:
    t = af.placeholder("float32", [4, 6])
    array = np.zeros((4, 6), np.float32)
    made = [
        af.reshape(t, [6, 4]),
        af.transpose(t),
        af.expand_dims(t, 0),
        af.squeeze(af.expand_dims(t, 0)),
        t[1:, ::2],
        af.slice(t, [0, 1], [2, 2]),
        af.split(t, 2)[1],
        af.unstack(t)[1],
        af.broadcast_to(t, [2, 4, 6]),
        af.reverse(t, [0]),
    ]
    for tensor, value in zip(made, evaluate(made, {t: array}), strict=True):
        assert np.shares_memory(value, array), tensor.op.type


FRESH: dict[str, Callable[[Any], Any]] = {
    "concat": lambda t: af.concat([t, t], 0),
    "stack": lambda t: af.stack([t]),
    "tile": lambda t: af.tile(t, [1]),
    "tile of one": lambda t: af.tile(t[:1], [3]),
    "pad": lambda t: af.pad(t, [[0, 0]]),
    "mirror": lambda t: af.pad(t, [[0, 0]], "REFLECT"),
    "gather": lambda t: af.gather(t, [0, 1]),
    "gather_nd": lambda t: af.gather_nd(t, [[0], [1]]),
    "gather_nd whole": lambda t: af.gather_nd(t, np.zeros((1, 0), np.int32)),
    "roll": lambda t: af.roll(t, 0, 0),
    "roll nothing": lambda t: af.roll(t, np.zeros(0, np.int32), np.zeros(0, np.int32)),
    "update": lambda t: af.tensor_scatter_update(t, np.zeros((0, 1), np.int32), np.zeros(0, np.float32)),
    "snapshot": lambda t: make("Snapshot", t),
    "where": lambda t: af.where_v2(True, t, t),
    "partition": lambda t: af.dynamic_partition(t, [0, 0, 0, 0], 1)[0],
    "stitch": lambda t: af.dynamic_stitch([[0, 1, 2, 3]], [t]),
    "unique": lambda t: af.unique(t).y,
    "diff": lambda t: af.setdiff1d(t, [9.0]).out,
    "band": lambda t: af.matrix_band_part(af.expand_dims(t, 0), -1, -1),
    "space_to_batch": lambda t: af.space_to_batch_nd(af.reshape(t, [1, 4]), [1], [[0, 0]]),
    "batch_to_space": lambda t: af.batch_to_space_nd(af.reshape(t, [1, 4]), [1], [[0, 0]]),
    "reverse_sequence": lambda t: af.reverse_sequence(af.reshape(t, [1, 4]), [0], 1),
    "set_diag": lambda t: af.matrix_set_diag(af.reshape(t, [2, 2]), [1.0, 1.0]),
    "diag_part": lambda t: af.matrix_diag_part(af.reshape(t, [2, 2])),
}


@pytest.mark.parametrize("name", FRESH)
def test_fresh_results_share_nothing(name: str) -> None:
    # Later nodes may overwrite the result of a kernel that is declared fresh.
    t = af.placeholder("float32", [4])
    array = np.arange(4, dtype=np.float32)
    result = FRESH[name](t)
    value = run(result, {t: array})
    assert not np.shares_memory(value, array)


def test_inputs_are_not_modified() -> None:
    t = af.placeholder("float32", [4])
    array = np.arange(4, dtype=np.float32)
    array.flags.writeable = False
    for build in FRESH.values():
        run(build(t), {t: array})


def test_getitem_makes_one_strided_slice_of_constants() -> None:
    t = af.placeholder("float32", [4, 6, 3])
    op = t[1, ..., None, ::2].op
    assert op.type == "StridedSlice"
    assert [source.op.type for source in op.inputs[1:]] == ["Const"] * 3
    masks = {k: op.attrs[k] for k in op.attrs if k.endswith("mask")}
    assert masks == {"begin_mask": 8, "end_mask": 8, "ellipsis_mask": 2, "new_axis_mask": 4, "shrink_axis_mask": 1}


class _Row:
    """An integer type of another library."""

    def __index__(self) -> int:
        return 1


ONES: dict[str, Any] = {
    "int": 1,
    "NumPy scalar": np.int64(1),
    "int32 array": np.asarray(1, np.int32),
    "int64 array": np.asarray(1, np.int64),
    "uint8 array": np.asarray(1, np.uint8),
    "size of a shape": af.TensorShape([1])[0],
    "any index": _Row(),
}


@pytest.mark.parametrize("kind", ONES)
def test_getitem_accepts_every_scalar_integer(kind: str) -> None:
    one = ONES[kind]
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for key in (1, (1, 1), slice(1, None), (slice(None), slice(0, 1, 1)), (..., 1)):
        parts = key if isinstance(key, tuple) else (key,)
        given = tuple(
            slice(part.start, part.stop and one, part.step and one)
            if isinstance(part, slice)
            else (one if part == 1 else part)
            for part in parts
        )
        np.testing.assert_array_equal(run(af.constant(x)[given]), x[key])
    np.testing.assert_array_equal(run(af.constant(x)[one:]), x[1:])


@pytest.mark.parametrize(
    "key", [np.asarray([1]), np.asarray([0, 1]), np.asarray(1.0), np.float32(1), 1.0, "1", (np.True_, 0), (True, 0)]
)
def test_getitem_refuses_anything_but_scalar_integers(key: Any) -> None:
    with pytest.raises(af.errors.DTypeError, match="valid indices"):
        af.constant([[1, 2], [3, 4]])[key]


@pytest.mark.parametrize("value", [1.5, 1, True, "text", [1.5, 2.5], [[1]], [], np.zeros(3), b""])
@pytest.mark.parametrize("shape", [[0], [2, 0], af.TensorShape([0, 3])])
def test_constant_of_no_elements_keeps_the_dtype_of_its_value(value: Any, shape: Any) -> None:
    tensor = af.constant(value, shape=shape)
    assert tensor.dtype is af.constant(value).dtype
    assert run(tensor).shape == tensor.dims == af.TensorShape(shape).raw
    assert af.constant([], "int8", shape=shape).dtype is af.int8
    with pytest.raises(af.errors.DTypeError, match="given shape"):
        af.constant(1, shape=shape, verify_shape=True)


def test_static_values_make_constants() -> None:
    t = af.placeholder("float32", [4, 6])
    for tensor in (
        af.shape(t),
        af.size(t),
        af.rank(t),
        af.zeros([3]),
        af.zeros_like(t),
        af.ones_like(t),
        af.stack([1, 2]),
    ):
        assert tensor.op.type == "Const"
    assert af.zeros([100, 100]).op.type == "Fill"
    assert af.zeros_like(t, optimize=False).op.type == "ZerosLike"


def test_partial_shapes_go_through_shape_arithmetic() -> None:
    t = af.placeholder("float32", [None, 4, 5])
    shape = af.shape(t)
    assert af.reshape(t, af.stack([shape[0], 20])).dims == (None, 20)
    assert af.reshape(t, af.concat([shape[:1], [2, 10]], 0)).dims == (None, 2, 10)
    assert af.reshape(t, [-1, 20]).dims == (None, 20)
    assert af.zeros(af.stack([shape[0], shape[1]])).dims == (None, 4)
    assert af.broadcast_to(t, af.shape(t)).dims == (None, 4, 5)
    assert t[:, 1:].dims == (None, 3, 5)
    assert af.fill(shape[1:], 0.0).dims == (4, 5)


def test_fill_and_one_hot_keep_negative_zero() -> None:
    assert np.signbit(run(af.fill([3], -0.0))).all()
    assert np.signbit(run(af.one_hot([0], 3, 1.0, -0.0))).tolist() == [[False, True, True]]


def test_values() -> None:
    assert run(af.dynamic_stitch([[0, 0], [0]], [[1, 2], [3]])).tolist() == [3]
    assert run(af.where(np.array(True))).shape == (1, 0)
    assert run(af.parallel_stack([[1], [2]])).tolist() == [[1], [2]]
    first, second = evaluate([af.timestamp(), af.timestamp()])
    assert first.dtype == np.float64
    assert abs(float(first) - float(second)) < 60


def test_shape_of_large_sizes_does_not_overflow() -> None:
    # A broadcast view: 2**33 elements without memory of their own.
    t = af.broadcast_to(af.placeholder("uint8", [1, 1]), [2**16, 2**17])
    assert run(af.size(t, out_type="int64")) == 2**33


@pytest.mark.parametrize("block", [2, 3])
def test_nchw_blocks_equal_transposed_nhwc_blocks(block: int) -> None:
    # Not a parity test: TensorFlow has no CPU kernel for NCHW.
    image = x(1, 6, 6, 36)
    to_last, to_first = [0, 2, 3, 1], [0, 3, 1, 2]
    for build in (af.space_to_depth, af.depth_to_space):
        first = run(build(af.transpose(af.constant(image), to_first), block, data_format="NCHW"))
        last = run(build(af.constant(image), block))
        np.testing.assert_array_equal(np.transpose(first, to_last), last)


@pytest.mark.parametrize(
    ("given", "wanted", "expected"),
    [
        ([0, 6], [0, -1, 3], (0, 2, 3)),
        ([0, 6], [-1, 0], (6, 0)),
        ([2, 0, 6], [0, -1, 0, 3], (0, 4, 0, 3)),
        ([0, 6], [-1, 3], (0, 3)),
    ],
)
def test_reshape_infers_a_size_of_empty_tensors(given: Any, wanted: Any, expected: Any) -> None:
    sizes = af.placeholder("int32")
    static, fed = evaluate(
        [af.reshape(af.zeros(given), wanted), af.reshape(af.zeros(given), sizes)], {sizes: np.array(wanted, np.int32)}
    )
    assert static.shape == fed.shape == expected


@pytest.mark.parametrize("axis", [0, 1])
def test_unique_slices_of_strings_match_those_of_numbers(axis: int) -> None:
    numbers = np.array([[3, 1, 3], [2, 0, 2], [3, 1, 3]])
    texts = numbers.astype(str).tolist()
    wanted, places = evaluate([*make_list("UniqueV2", numbers, [axis])])
    found, same_places = evaluate([*make_list("UniqueV2", texts, [axis])])
    assert np.vectorize(int)(found).tolist() == wanted.tolist()
    assert same_places.tolist() == places.tolist()


@pytest.mark.parametrize("axis", [[1], [-2], [0, 0]], ids=str)
def test_unique_rejects_an_axis_that_a_vector_lacks(axis: list[int]) -> None:
    with pytest.raises(af.errors.InvalidArgumentError, match="axis"):
        make_list("UniqueV2", [3, 1, 3], axis)
    fed = af.placeholder("int64")
    with pytest.raises(af.errors.InvalidArgumentError, match="axis"):
        evaluate([*make_list("UniqueV2", [3, 1, 3], fed)], {fed: axis})


def test_unique_of_a_vector_counts_its_axis_from_the_end() -> None:
    values, places = evaluate([*make_list("UniqueV2", [3, 1, 3], [-1])])
    assert (values.tolist(), places.tolist()) == ([3, 1], [0, 1, 0])


def test_select_accepts_large_arrays_of_many_dimensions() -> None:
    x = np.arange(2**19, dtype=np.float32).reshape(2**10, *(1,) * 38, 2**9)
    with af.Graph().as_default():
        fed = af.placeholder("float32")
        (found,) = evaluate([make("SelectV2", fed > 7.0, fed, 0.0)], {fed: x})
    np.testing.assert_array_equal(found, np.where(x > 7, x, 0))


def test_static_values_may_have_more_than_32_dimensions() -> None:
    # NumPy's `flat` supports at most 32 dimensions.
    sizes = af.shape(af.placeholder("float32", [None, 2]))
    deep = af.reshape(sizes, [2] + [1] * 39)
    assert af.zeros(af.reshape(af.cast(deep, "int64"), [2])).shape.as_list() == [None, 2]


def test_gathered_string_scalar_is_usable_as_a_tensor() -> None:
    words = af.placeholder("string", [2])
    found = af.raw_ops.Gather(params=words, indices=af.placeholder_with_default(np.int32(1), []))
    with af.Session() as session:
        assert session.run_sync(af.stack([found, found]), {words: [b"a", b"b"]}).tolist() == [b"b", b"b"]
        assert session.run_sync(af.rank(af.placeholder_with_default(found, None)), {words: [b"a", b"b"]}) == 0
