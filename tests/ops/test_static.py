"""Static shapes from tensors of sizes, `is_tensor`, and references."""

from __future__ import annotations

import pytest

import aioflow as af
from aioflow.tensor_util import constant_value_as_shape
from tests.support.static_cases import SHAPES, TENSORS, shape_of, tensors


@pytest.mark.parametrize("name", SHAPES)
def test_constant_value_as_shape(name: str) -> None:
    assert shape_of(constant_value_as_shape, af, name) == SHAPES[name][1]


def test_is_tensor_and_references() -> None:
    assert tensors(af) == TENSORS
    with af.Graph().as_default():
        x = af.constant(1.0)
        assert repr(x) in repr(x.ref())
        with pytest.raises(TypeError, match="references only"):
            assert x.ref() == x
