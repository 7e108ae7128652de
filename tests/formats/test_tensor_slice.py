"""Coverage of a tensor by its slices, few and many of them."""

from __future__ import annotations

import itertools

import pytest

from aioflow.errors import InvalidArgumentError
from aioflow.formats.tensor_slice import TensorSlice, check_cover


def squares(rows: int, columns: int) -> list[TensorSlice]:
    full = (2 * rows, 3 * columns)
    return [TensorSlice(full, (2 * r, 3 * c), (2, 3)) for r, c in itertools.product(range(rows), range(columns))]


@pytest.mark.parametrize("size", [2, 10, 120])
def test_slices_must_cover_each_element_once(size: int) -> None:
    parts = squares(size, size)
    check_cover("w", parts)
    check_cover("w", parts[::-1])
    for wrong in (
        [*parts[1:], parts[-1]],
        parts[1:],
        [*parts, parts[0]],
        [TensorSlice(s.full_shape, (0, 0), s.shape) for s in parts],
    ):
        with pytest.raises(InvalidArgumentError):
            check_cover("w", wrong)
