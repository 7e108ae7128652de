"""Serialized tensors: elements that other writers omit, and malformed messages."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from aioflow import errors
from aioflow.concurrency.stopping import Stoppable, Stopped, Work, doing, value_limit
from aioflow.formats.protobuf import FIXED32, write_number, write_piece
from aioflow.formats.tensor_proto import decode_tensor, encode_tensor
from aioflow.graph import dtypes


def _message(kind: int, sizes: list[int], rest: bytes = b"") -> bytes:
    dims = b"".join(write_piece(2, write_number(1 << 3) + write_number(size)) for size in sizes)
    return write_number(1 << 3) + write_number(kind) + write_piece(2, dims) + rest


def test_last_element_fills_omitted_elements() -> None:
    """Check that the cost is that of the tensor, not of a Python list of its elements."""
    seven = write_piece(10, write_number(1) + write_number(7))
    tracemalloc.start()
    try:
        found = decode_tensor(_message(dtypes.bool_.as_datatype_enum, [1000, 1000]), dtypes.bool_)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.shape == (1000, 1000)
    assert not found.any()
    assert peak < 2 * found.nbytes
    many = decode_tensor(_message(dtypes.int64.as_datatype_enum, [2, 2], seven), dtypes.int64)
    np.testing.assert_array_equal(many, [[1, 7], [7, 7]])
    texts = decode_tensor(_message(dtypes.string.as_datatype_enum, [3], write_piece(8, b"ab")), dtypes.string)
    assert texts.tolist() == [b"ab"] * 3


@pytest.mark.parametrize(
    "data",
    [
        _message(1, [2**40, 2**40]),
        _message(1, [2**32, 2**32, 0]),
        _message(9, [1], write_piece(5, b"\0")),
        _message(9, [1], write_piece(9, bytes(8))),
        _message(9, [1], b"\x07"),
    ],
    ids=["too large", "too large but for a zero", "half a number", "a complex number", "damaged"],
)
def test_malformed_tensor_is_refused(data: bytes) -> None:
    dtype = dtypes.float32 if data[1] == 1 else dtypes.int64
    with pytest.raises(errors.InvalidArgumentError) as caught:
        decode_tensor(data, dtype)
    assert caught.value.expected is not None


def test_encoded_tensor_decodes_to_the_same_array() -> None:
    for array in (np.zeros((0, 3), np.float32), np.array(5, np.int64), np.ones((2, 2), np.float32)):
        dtype = dtypes.as_dtype(array.dtype)
        np.testing.assert_array_equal(decode_tensor(encode_tensor(array, dtype), dtype), array)


def test_tensor_filled_from_its_shape_obeys_the_memory_limit() -> None:
    """Apply the limit to the shape: a message of a few bytes may claim any number of elements."""
    data = _message(1, [1 << 20], write_piece(5, np.float32(1).tobytes()))
    assert decode_tensor(data, dtypes.float32).sum() == 1 << 20
    with value_limit(1 << 20), pytest.raises(errors.ResourceExhaustedError):
        doing(Work(), decode_tensor, data, dtypes.float32)


def test_decode_accepts_unpacked_and_packed_elements() -> None:
    """Decode both forms of a list of numbers, also mixed."""
    alone = b"".join(write_number(5 << 3 | FIXED32) + np.float32(x).tobytes() for x in (1.5, -2))
    packed = write_piece(5, np.array([3, 4], "<f4").tobytes())
    np.testing.assert_array_equal(decode_tensor(_message(1, [4], alone + packed), dtypes.float32), [1.5, -2, 3, 4])
    pair = write_piece(9, np.array([1, 2], "<f4").tobytes())
    np.testing.assert_array_equal(decode_tensor(_message(8, [2], pair), dtypes.complex64), [1 + 2j, 1 + 2j])
    numbers = write_number(7 << 3) + write_number(2**64 - 5) + write_piece(7, write_number(9))
    np.testing.assert_array_equal(decode_tensor(_message(6, [2], numbers), dtypes.int8), [-5, 9])


def test_decoding_of_a_large_tensor_can_be_stopped() -> None:
    """Stop the work at once, without decoding the remaining of a million numbers."""
    data = _message(9, [1 << 20], write_piece(10, b"\1" * (1 << 20)))
    work = Stoppable()
    work.stop()
    with pytest.raises(Stopped):
        doing(work, decode_tensor, data, dtypes.int64)
