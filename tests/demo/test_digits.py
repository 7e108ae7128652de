"""The bundled digits data, compared with scikit-learn's copy as the independent source."""

from __future__ import annotations

import importlib.resources

import numpy as np
import pytest
from sklearn import datasets

from aioflow.demo.digits import Digits, load_digits


@pytest.fixture(scope="module")
def digits() -> Digits:
    return load_digits()


def test_equals_scikit_learns_copy(digits: Digits) -> None:
    theirs = datasets.load_digits()
    np.testing.assert_array_equal(digits.images * 16, theirs.data)
    np.testing.assert_array_equal(digits.labels, theirs.target)


def test_dtypes_shapes_and_range(digits: Digits) -> None:
    assert digits.images.dtype == np.float32
    assert digits.images.shape == (1797, 64)
    assert digits.labels.dtype == np.int32
    assert digits.labels.shape == (1797,)
    assert (digits.images.min(), digits.images.max()) == (0.0, 1.0)
    assert set(digits.labels.tolist()) == set(range(10))


def test_split_divides_without_loss_and_repeats_by_seed(digits: Digits) -> None:
    train, test = digits.split(0.25, seed=7)
    assert (len(train), len(test)) == (1348, 449)
    both = np.concatenate([np.column_stack([d.images, d.labels]) for d in (train, test)])
    whole = np.column_stack([digits.images, digits.labels])
    np.testing.assert_array_equal(both[np.lexsort(both.T)], whole[np.lexsort(whole.T)])
    np.testing.assert_array_equal(digits.split(0.25, seed=7)[1].labels, test.labels)
    assert not np.array_equal(digits.split(0.25, seed=8)[1].labels, test.labels)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, 1e-9, float("nan")])
def test_split_refuses_an_empty_side(digits: Digits, fraction: float) -> None:
    with pytest.raises(ValueError, match="leaves one side"):
        digits.split(fraction)


def test_data_file_is_small_and_has_its_licence() -> None:
    folder = importlib.resources.files("aioflow.demo.digits")
    assert len(folder.joinpath("optdigits.npz").read_bytes()) < 300_000
    assert "CC BY 4.0" in folder.joinpath("README.md").read_text(encoding="utf-8")
