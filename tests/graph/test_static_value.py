"""What is known of values while the graph is being built: what running the graph gives, and never at any price."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.graph.static_value import constant_value
from aioflow.testing.evaluate import evaluate


def _open() -> af.Tensor:
    return af.placeholder("float32", [None, 3, 4])


def _closed() -> af.Tensor:
    return af.placeholder("float32", [2, 3, 4])


KNOWN: list[tuple[str, Callable[[], af.Tensor]]] = [
    ("constant", lambda: af.constant([1, 2])),
    ("shape", lambda: af.shape(_closed())),
    ("shape in int64", lambda: af.shape(_closed(), out_type=af.int64)),
    ("rank of an open shape", lambda: af.rank(_open())),
    ("size", lambda: af.size(_closed())),
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
]


@pytest.mark.parametrize("build", [c[1] for c in KNOWN], ids=[c[0] for c in KNOWN])
def test_a_known_value_is_the_one_that_running_gives(build: Callable[[], af.Tensor]) -> None:
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
    ("floats that would need a kernel", lambda: af.constant(1.0) + 2.0),
    ("a default that may be fed", lambda: af.placeholder_with_default(af.constant(1), [])),
    ("a long range", lambda: af.range(10**9)),
    ("a slice of two dimensions", lambda: af.constant([[1, 2], [3, 4]])[0, 1:]),
]


@pytest.mark.parametrize("build", [c[1] for c in UNKNOWN], ids=[c[0] for c in UNKNOWN])
def test_what_is_not_known(build: Callable[[], af.Tensor]) -> None:
    assert constant_value(build()) is None


@pytest.mark.parametrize("limit", [float("inf"), float("nan")])
def test_a_range_without_an_end_is_refused(limit: float) -> None:
    with pytest.raises(af.errors.InvalidArgumentError) as caught:
        af.range(0.0, limit, 1.0)
    assert caught.value.op_type == "Range"


def test_a_value_read_many_times_is_worked_out_once() -> None:
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
