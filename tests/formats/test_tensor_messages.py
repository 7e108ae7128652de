"""Tensor messages of values, and their arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.graph import dtypes


@pytest.mark.parametrize("dtype", [t for t in dtypes.ALL if t.is_plain and not t.is_narrow], ids=lambda t: t.name)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0, 2)])
def test_array_returns(dtype: Any, shape: tuple[int, ...]) -> None:
    if dtype is dtypes.string:
        array = np.full(shape, b"a\0", object)
    else:
        array = np.arange(np.prod(shape)).reshape(shape).astype(dtype.np_dtype)
    found = af.make_ndarray(af.make_tensor_proto(array))
    assert (found.dtype, found.shape, found.tolist()) == (array.dtype, shape, array.tolist())


def test_shape_and_dtype_of_a_value() -> None:
    assert af.make_ndarray(af.make_tensor_proto(7, "int64", [2, 2])).tolist() == [[7, 7], [7, 7]]
    assert af.make_ndarray(af.make_tensor_proto([1, 2], shape=[4])).tolist() == [1, 2, 2, 2]
    assert af.make_tensor_proto(1.5).dtype == af.float32.as_datatype_enum
    message = af.make_tensor_proto("text")
    assert af.make_tensor_proto(message) is message
    assert message.string_val == [b"text"]
    node = af.AttrValue(tensor=af.make_tensor_proto([1, 2]))
    assert af.make_ndarray(node.tensor).tolist() == [1, 2]


def test_wrong_arguments_are_refused() -> None:
    for arguments, options in (
        (([1, 2],), {"shape": [3], "verify_shape": True}),
        (([1, 2],), {"shape": [3], "allow_broadcast": True}),
        ((None,), {}),
        (("a", "int32"), {}),
        ((1,), {"shape": [None]}),
    ):
        given: Any = arguments
        with pytest.raises(DTypeError):
            af.make_tensor_proto(*given, **options)
    with pytest.raises(InvalidArgumentError):
        af.make_tensor_proto([1, 2], shape=[1])
    with pytest.raises(InvalidArgumentError):
        af.make_tensor_proto([1], shape=[1], verify_shape=True, allow_broadcast=True)
    with pytest.raises(DTypeError):
        af.make_ndarray(b"bytes")
