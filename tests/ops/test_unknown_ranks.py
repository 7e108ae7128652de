"""Builders applied to tensors of unknown rank: same results as with known ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.testing.evaluate import evaluate
from tests.support.unknown_ranks import CASES


def _run(build: Any, values: tuple[Any, ...], known: bool) -> list[Any]:
    with af.Graph().as_default():
        dtypes = ["string" if v.dtype == object else v.dtype.name for v in values]
        tensors = [af.placeholder(dtype, v.shape if known else None) for dtype, v in zip(dtypes, values, strict=True)]
        made = build(af, *tensors)
        fetches = list(made) if isinstance(made, list | tuple) else [made]
        return evaluate(fetches, dict(zip(tensors, values, strict=True)))


@pytest.mark.parametrize("name", CASES)
def test_unknown_ranks_have_the_same_results_as_known_ranks(name: str) -> None:
    build, values = CASES[name]
    for expected, found in zip(_run(build, values, True), _run(build, values, False), strict=True):
        assert expected.shape == found.shape
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(found, expected, rtol=1e-6)
        else:
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(4, 5, 3), (2, 4, 5, 3)])
@pytest.mark.parametrize("flip", [af.image.random_flip_left_right, af.image.random_flip_up_down])
def test_images_of_unknown_rank_are_flipped_or_not(shape: tuple[int, ...], flip: Any) -> None:
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    axis = -2 if flip is af.image.random_flip_left_right else -3
    given = af.placeholder("float32")
    (found,) = evaluate([flip(given)], {given: image})
    for one, original in zip(found.reshape(-1, 4, 5, 3), image.reshape(-1, 4, 5, 3), strict=True):
        assert np.array_equal(one, original) or np.array_equal(one, np.flip(original, axis))
