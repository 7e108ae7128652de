"""Tensor messages against TensorFlow's, field by field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af

CASES: list[tuple[Any, dict[str, Any]]] = [
    *[(np.arange(n).reshape(shape).astype(kind), {}) for kind in ("float32", "float16", "float64", "int32", "int64",
      "uint8", "int8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128")
      for n, shape in ((1, ()), (1, (1,)), (6, (2, 3)), (0, (0, 2)))],
    (1.5, {}), (3, {}), (2**40, {}), (True, {}), ("text", {}), ([b"a\0", b"b"], {}), ([["a"], ["b"]], {}),
    (7, {"dtype": "int64", "shape": [2, 2]}), ([1, 2], {"shape": [4]}), ([1.0, 2.0], {"dtype": "bfloat16"}),
    (2.5, {"dtype": "bfloat16"}), (2, {"shape": [3], "allow_broadcast": True}), ([[1, 2]], {"shape": [2]}),
    ([], {}), ([1], {"shape": [1], "verify_shape": True}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_messages_are_equal_and_each_system_reads_them(tf: Any, number: int) -> None:
    value, options = CASES[number]
    theirs = tf.make_tensor_proto(value, **options)
    ours = af.make_tensor_proto(value, **options)
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
    expected = tf.make_ndarray(theirs)
    found = af.make_ndarray(theirs)
    assert (found.dtype, found.shape, found.tolist()) == (expected.dtype, expected.shape, expected.tolist())
