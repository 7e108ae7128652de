"""Static shapes from tensors of sizes, `is_tensor` and references against TensorFlow's."""

from __future__ import annotations

from typing import Any

from tests.support.static_cases import SHAPES, TENSORS, shape_of, tensors


def test_tensorflow_has_the_results_of_the_tables(tf: Any) -> None:
    from tensorflow.python.framework.tensor_util import constant_value_as_shape

    assert tensors(tf) == TENSORS
    assert {name: shape_of(constant_value_as_shape, tf, name) for name in SHAPES} == {
        name: expected for name, (_, expected) in SHAPES.items()
    }
