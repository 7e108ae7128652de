"""Static values at graph construction: they equal the values of a run, and their cost is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.graph.opdef import OPS
from aioflow.graph.static_value import constant_value, partial_shape, partial_value
from aioflow.ops.apply import make
from aioflow.testing.evaluate import evaluate


def _open() -> af.Tensor:
    return af.placeholder("float32", [None, 3, 4])


def _closed() -> af.Tensor:
    return af.placeholder("float32", [2, 3, 4])


def _vector() -> Any:
    return af.constant([1, 2, 3])


def _floats() -> Any:
    return af.constant([0.5, -1.5, 2.7])


def _raw(op_type: str, *inputs: Any, **attrs: Any) -> Any:
    return make(op_type, *inputs, **attrs)


KNOWN: list[tuple[str, Callable[[], af.Tensor]]] = [
    ("constant", lambda: af.constant([1, 2])),
    ("shape", lambda: af.shape(_closed())),
    ("shape in int64", lambda: af.shape(_closed(), out_type=af.int64)),
    ("rank of an open shape", lambda: af.rank(_open())),
    ("size", lambda: af.size(_closed())),
    ("rows chosen by a vector", lambda: _raw("Select", af.constant([True, False]), [[1, 2], [3, 4]], [[5, 6], [7, 8]])),
    ("identity", lambda: af.identity(af.constant(3))),
    ("stop_gradient", lambda: af.stop_gradient(af.constant(3))),
    ("cast", lambda: af.cast(af.constant([1.7, -1.7]), "int32")),
    ("pack", lambda: af.stack([af.constant(1), af.shape(_closed())[1]])),
    ("pack along 1", lambda: af.stack([af.constant([1, 2]), af.constant([3, 4])], axis=1)),
    ("concat", lambda: af.concat([af.shape(_closed()), [7]], 0)),
    ("one size of a shape", lambda: af.shape(_closed())[1]),
    ("a known size of an open shape", lambda: af.shape(_open())[-1]),
    ("a slice", lambda: af.shape(_closed())[1:]),
    ("a slice from the end", lambda: af.shape(_closed())[-2:]),
    ("a slice backwards", lambda: af.shape(_closed())[::-1]),
    ("range", lambda: af.range(2, 12, 3)),
    ("range downwards", lambda: af.range(5, 0, -2)),
    ("range of floats", lambda: af.range(0.0, 1.0, 0.25)),
    ("an empty range", lambda: af.range(5, 5)),
    ("prod", lambda: af.reduce_prod(af.shape(_closed()))),
    ("prod, kept", lambda: af.reduce_prod(af.shape(_closed()), keepdims=True)),
    ("arithmetic", lambda: af.maximum((af.shape(_closed()) + 1) * 3 - 5, 6)),
    ("wrapping arithmetic", lambda: af.constant(2**31 - 1) + 1),
    ("arithmetic of floats", lambda: af.ceil(af.to_float(af.shape(_closed())) * 0.7)),
    ("a slice of two dimensions", lambda: af.constant([[1, 2], [3, 4]])[0, 1:]),
    ("a known size that went through an open vector", lambda: af.concat([af.shape(_open())[::-1], [7]], 0)[1]),
    ("identities", lambda: _raw("PreventGradient", _raw("Snapshot", af.ensure_shape(_vector(), [3])), message="")),
    ("identity_n", lambda: af.identity_n([_vector(), _vector() + 1])[1]),
    ("neg, abs, sign and square", lambda: af.sign(-_vector()) + af.abs(af.square(_vector()) - 5)),
    ("floor, round and rint", lambda: af.floor(_floats()) + af.round(_floats()) + af.rint(_floats())),
    ("not, and, or", lambda: af.logical_not((_vector() > 1) & (_vector() < 4) | (_vector() >= 3))),
    ("comparisons", lambda: af.logical_or(af.equal(_vector(), 2), af.not_equal(_vector(), 3)) & (_vector() <= 3)),
    ("zeros and ones like", lambda: _raw("ZerosLike", _vector()) + _raw("OnesLike", _vector())),
    ("old add, add_n", lambda: af.add_n([_raw("Add", _vector(), _vector()), _vector(), _vector()])),
    ("minimum and pow", lambda: af.minimum(_vector(), 2) ** 3),
    ("division of ints", lambda: _raw("Div", -_vector(), 2) + _raw("TruncateDiv", _vector(), -2) - _vector() // -2),
    ("remainders of ints", lambda: af.truncatemod(-_vector(), 2) + _raw("Mod", _vector(), 3) + (-_vector()) % 3),
    ("division of floats", lambda: _floats() / 0.3),
    ("select", lambda: af.where(_vector() > 1, _vector(), -_vector()) + af.where_v2(_vector() > 1, 7, 8)),
    ("unstack", lambda: af.unstack(af.constant([[1, 2], [3, 4]]), axis=1)[1]),
    ("old concat", lambda: _raw("Concat", 0, [_vector(), _vector()])),
    ("split", lambda: af.split(_vector(), 3)[1] + af.split(_vector(), [2, -1])[1]),
    ("slice", lambda: af.slice(_vector(), [1], [-1])),
    ("gather", lambda: af.gather(_vector(), [2, 0]) + _raw("Gather", _vector(), [0, 0])),
    ("dynamic_stitch", lambda: af.dynamic_stitch([[0, 2], [1]], [[7, 8], [9]])),
    ("parallel_dynamic_stitch", lambda: _raw("ParallelDynamicStitch", [[0, 2], [1]], [[7, 8], [9]])),
    ("reshape, squeeze, expand_dims", lambda: af.squeeze(af.expand_dims(af.reshape(_vector(), [1, 3]), 2), [0])),
    ("transpose and reverse", lambda: af.reverse(af.transpose(af.constant([[1, 2], [3, 4]]), [1, 0]), [0])),
    ("fill and tile", lambda: af.tile(_raw("Fill", [2], 7), [2])),
    ("broadcast_to", lambda: af.broadcast_to(_vector(), [2, 3])),
    ("pad", lambda: af.pad(_vector(), [[1, 2]]) + af.pad(_vector(), [[2, 1]], constant_values=5)),
    ("reductions", lambda: af.reduce_sum(_vector()) + af.reduce_max(_vector(), 0) - af.reduce_min(_vector())),
    ("the greatest of nothing", lambda: af.reduce_max(_vector()[1:1])),
    ("reductions of bools", lambda: af.reduce_all(_vector() > 1) | af.reduce_any(_vector() > 1)),
    ("a sum that wraps around", lambda: af.reduce_sum(af.constant([2**31 - 1, 1]))),
    ("running sums", lambda: af.cumsum(_vector()) + af.cumprod(_vector())),
    ("invert_permutation", lambda: af.invert_permutation(af.constant([2, 0, 1]))),
    ("the shape of a broadcast", lambda: af.broadcast_dynamic_shape(_vector(), af.constant([2, 1, 1, 1]))),
    ("unique values", lambda: af.unique(af.constant([3, 1, 3, 2]))[0]),
    ("unique positions", lambda: af.unique(af.constant([3, 1, 3, 2]))[1]),
    ("setdiff1d", lambda: af.setdiff1d(af.constant([3, 1, 3, 2]), [1])[1]),
    ("where", lambda: af.where(_vector() > 1)),
    ("the shapes of several", lambda: af.shape_n([_closed(), _closed()])[1]),
    ("the nodes for rank and size", lambda: _raw("Size", _closed()) + _raw("Rank", _closed())),
]


@pytest.mark.parametrize("build", [c[1] for c in KNOWN], ids=[c[0] for c in KNOWN])
def test_a_static_value_equals_that_of_a_run(build: Callable[[], af.Tensor]) -> None:
    tensor = build()
    value = constant_value(tensor)
    assert value is not None
    feeds = {
        op.outputs[0]: np.zeros([2, 3, 4], np.float32)
        for op in tensor.graph.get_operations()
        if op.type == "Placeholder"
    }
    (expected,) = evaluate([tensor], feeds)
    np.testing.assert_array_equal(value, expected)
    assert value.dtype == expected.dtype
    assert value.shape == expected.shape


UNKNOWN: list[tuple[str, Callable[[], af.Tensor]]] = [
    ("a placeholder", lambda: af.placeholder("int32", [])),
    ("an open shape", lambda: af.shape(_open())),
    ("an open size", lambda: af.shape(_open())[0]),
    ("the size of an open shape", lambda: af.size(_open())),
    ("the rank of an unknown rank", lambda: af.rank(af.placeholder("float32"))),
    ("a pack with an unknown part", lambda: af.stack([af.shape(_open())[0], af.constant(1)])),
    ("floats that would need a kernel", lambda: af.exp(af.constant(1.0))),
    ("an open size as a float", lambda: af.to_float(af.shape(_open()))[0]),
    ("division by zero", lambda: af.constant(1) // 0),
    ("an index that is out of range", lambda: af.gather(_vector(), 3)),
    ("more elements than a shape has", lambda: af.tile(af.fill([100], 7), [100])),
    ("arithmetic of an open shape", lambda: af.shape(_open()) + 1),
    ("a default that may be fed", lambda: af.placeholder_with_default(af.constant(1), [])),
    ("a long range", lambda: af.range(10**9)),
    ("floor division of floats", lambda: _raw("FloorDiv", _floats(), 0.3)),
    ("a split into less than there is", lambda: af.split(af.setdiff1d(af.constant([2]), [2])[0], [1, -1])[0]),
]


def test_every_static_value_rule_is_tested() -> None:
    with af.Graph().as_default() as graph:
        for _, build in KNOWN:
            build()
        assert {op.name for op in OPS if op.value is not None} <= {op.type for op in graph.get_operations()}


PARTIAL: list[tuple[str, Callable[[], af.Tensor], Any]] = [
    ("an open shape", lambda: af.shape(_open()), [None, 3, 4]),
    ("a slice", lambda: af.shape(_open(), out_type=af.int64)[:2], [None, 3]),
    ("the other way around", lambda: af.reverse(af.shape(_open()), [0])[1:], [3, None]),
    ("concat", lambda: af.concat([[7], af.shape(_open())], 0), [7, None, 3, 4]),
    ("old concat", lambda: _raw("Concat", 0, [af.shape(_open()), _vector()]), [None, 3, 4, 1, 2, 3]),
    ("pack", lambda: af.stack([af.placeholder("int32", []), af.constant(2)]), [None, 2]),
    ("pack of packs", lambda: af.stack([[af.placeholder("int32", []), 1], [2, 3]]), [[None, 1], [2, 3]]),
    ("cast", lambda: af.cast(af.shape(_open()), "int64"), [None, 3, 4]),
    ("identity", lambda: af.stop_gradient(af.identity(af.shape(_open()))), [None, 3, 4]),
    ("unpacked and packed", lambda: af.stack(af.unstack(af.shape(_open()))[:2]), [None, 3]),
    ("gather", lambda: af.gather(af.shape(_open()), [2, 0]), [4, None]),
    ("split", lambda: af.split(af.shape(_open()), [1, 2])[1] + 0, [3, 4]),
    ("a vector of which nothing is known", lambda: af.placeholder("int32", [2]), [None, None]),
    ("of a length that is not known", lambda: af.placeholder("int32", [None]), None),
    ("a shape whose rank is not known", lambda: af.shape(af.placeholder("float32")), None),
    ("arithmetic", lambda: af.shape(_open()) * 2, [None, None, None]),
    ("floats", lambda: af.to_float(af.shape(_open())), None),
    ("known as a whole", lambda: af.shape(_closed()), [2, 3, 4]),
]


@pytest.mark.parametrize(("build", "expected"), [c[1:] for c in PARTIAL], ids=[c[0] for c in PARTIAL])
def test_partial_value_has_the_known_elements(build: Callable[[], af.Tensor], expected: Any) -> None:
    value = partial_value(build())
    assert (None if value is None else value.tolist()) == expected


def test_a_size_of_minus_one_is_unknown() -> None:
    assert partial_shape(af.stack([af.placeholder("int32", []), -1, 3])) == (None, None, 3)


@pytest.mark.parametrize("build", [c[1] for c in UNKNOWN], ids=[c[0] for c in UNKNOWN])
def test_unknown_values_are_none(build: Callable[[], af.Tensor]) -> None:
    assert constant_value(build()) is None


@pytest.mark.parametrize("limit", [float("inf"), float("nan")])
def test_a_range_without_an_end_is_refused(limit: float) -> None:
    with pytest.raises(af.errors.InvalidArgumentError) as caught:
        af.range(0.0, limit, 1.0)
    assert caught.value.op_type == "Range"


def test_a_value_read_many_times_is_computed_once() -> None:
    """Doubling 60 times has 2 ** 60 paths to its constant."""
    n: Any = af.constant(1, "int64")
    for _ in range(60):
        n = n + n
    assert constant_value(n) == 2**60


def test_a_long_chain_is_unknown_rather_than_too_deep() -> None:
    n: Any = af.constant(1)
    for _ in range(3000):
        n = af.identity(n)
    assert constant_value(n) is None
    assert af.zeros(af.stack([n, 2])).dims == (None, 2)
