"""Reductions of chosen rows by segments against TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parity.samples import sample, tolerance

NAMES = ["sparse_segment_sum", "sparse_segment_mean", "sparse_segment_sqrt_n"]
CHOSEN = [([0, 2, 1], [0, 0, 3]), ([3, 3, 0, 3], [0, 1, 1, 2]), ([1], [2])]


@pytest.mark.parametrize("rest", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("name", NAMES)
def test_segments(parity: Any, name: str, rest: tuple[int, ...]) -> None:
    x = sample("float32", (4, *rest))
    for indices, ids in CHOSEN:
        for kind, other in ((np.int32, np.int64), (np.int64, np.int32)):
            given = x, np.array(indices, kind), np.array(ids, other)
            parity(lambda m, t, i, s: getattr(m, name)(t, i, s), *given)
            parity(lambda m, t, i, s: getattr(m, name)(t, i, s, num_segments=5), *given)


@pytest.mark.parametrize("name", NAMES)
def test_unknown_shapes_and_no_rows(parity: Any, name: str) -> None:
    x, ids = sample("float32", (4, 3)), np.array([0, 0, 2], np.int32)
    chosen = np.array([3, 1, 3], np.int32)
    for shapes in ([None, (None,), (None,)], [(None, 3), None, (3,)]):
        parity(lambda m, t, i, s: getattr(m, name)(t, i, s), x, chosen, ids, shapes=shapes)
    none = np.zeros(0, np.int32)
    # TensorFlow's gradient of no rows is memory that was not written.
    parity(lambda m, t, i, s: getattr(m, name)(t, i, s), x, none, none, grad=False)
    parity(lambda m, t, i, s: getattr(m, name)(t, i, s, num_segments=2), x, none, none, grad=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int8", "uint8", "int64", "uint16"])
def test_dtypes(parity: Any, dtype: str) -> None:
    x, chosen, ids = sample(dtype, (4, 3)), np.array([3, 1, 3], np.int32), np.array([0, 0, 2], np.int32)
    for name in NAMES if "float" in dtype else NAMES[:1]:
        parity(
            lambda m, t, i, s, name=name: getattr(m, name)(t, i, s),
            x,
            chosen,
            ids,
            grad=dtype == "float64",
            **tolerance(dtype),
        )


@pytest.mark.parametrize("name", NAMES)
def test_gradients_as_tensors_and_slices(parity: Any, name: str) -> None:
    def build(m: Any, x: Any, indices: Any, ids: Any) -> list[Any]:
        first = m.gradients(getattr(m, name)(x, indices, ids) ** 2, x)[0]
        slices = m.gradients(getattr(m, name)(x, indices, ids, sparse_gradient=True) ** 2, x)[0]
        assert isinstance(slices, m.IndexedSlices)
        return [first, m.convert_to_tensor(slices)]

    parity(build, sample("float64", (4, 2)), np.array([3, 1, 3], np.int32), np.array([0, 0, 2], np.int32), grad=False)
