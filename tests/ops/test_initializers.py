"""Initializers: ranges and moments of the draws, exact values, configurations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aioflow
from aioflow import initializers
from aioflow.errors import DTypeError, InvalidArgumentError
from aioflow.testing.evaluate import evaluate


def draw(initializer: Any, shape: Any = (200, 100), dtype: Any = None) -> Any:
    tensor = initializer(shape, dtype)
    assert tensor.dims == tuple(shape)
    return evaluate([tensor])[0]


def test_constant_initializers_fill_the_shape() -> None:
    assert draw(initializers.zeros(), [2, 3]).tolist() == [[0, 0, 0]] * 2
    assert draw(initializers.ones("int32"), [2]).dtype == np.int32
    assert draw(initializers.constant(7), [2, 2], "int64").tolist() == [[7, 7], [7, 7]]
    assert draw(initializers.constant([1, 2, 3, 4]), [2, 2]).tolist() == [[1, 2], [3, 4]]
    assert draw(initializers.zeros("string"), [2]).tolist() == [b"", b""]
    with pytest.raises(DTypeError):
        initializers.ones("string")([2])
    with pytest.raises(InvalidArgumentError):
        initializers.constant([1, 2, 3])([2])
    with pytest.raises(InvalidArgumentError):
        initializers.constant([1, 2], verify_shape=True)([1, 2])
    with pytest.raises(InvalidArgumentError):
        initializers.constant(object())
    assert draw(initializers.identity(3.0), [2, 3]).tolist() == [[3, 0, 0], [0, 3, 0]]
    with pytest.raises(InvalidArgumentError):
        initializers.identity()([2])


UNIFORM = [
    (initializers.random_uniform(-2.0, 3.0, seed=1), (200, 100), -2.0, 3.0),
    (initializers.random_uniform(seed=1), (200, 100), 0.0, 1.0),
    (initializers.glorot_uniform(1), (200, 100), -np.sqrt(6 / 300), np.sqrt(6 / 300)),
    (initializers.he_uniform(1), (200, 100), -np.sqrt(6 / 200), np.sqrt(6 / 200)),
    (initializers.lecun_uniform(1), (3, 3, 20, 30), -np.sqrt(3 / 180), np.sqrt(3 / 180)),
    (initializers.uniform_unit_scaling(1.5, 1), (10, 20, 50), -1.5 * np.sqrt(3 / 200), 1.5 * np.sqrt(3 / 200)),
    (initializers.variance_scaling(2.0, "fan_out", "uniform", 1), (200, 100), -np.sqrt(6 / 100), np.sqrt(6 / 100)),
    (initializers.glorot_uniform(1), (5000,), -np.sqrt(6 / 10000), np.sqrt(6 / 10000)),
]


@pytest.mark.parametrize(("initializer", "shape", "low", "high"), UNIFORM)
def test_uniform_draws_fill_their_range(initializer: Any, shape: Any, low: float, high: float) -> None:
    got = draw(initializer, shape)
    assert got.dtype == np.float32
    assert low <= got.min() < low + 0.02 * (high - low)
    assert high >= got.max() > high - 0.02 * (high - low)
    assert abs(got.mean() - (low + high) / 2) < 0.02 * (high - low)


NORMAL = [
    (initializers.random_normal(1.0, 0.5, seed=1), 1.0, 0.5, False),
    (initializers.truncated_normal(1.0, 0.5, seed=1), 1.0, 0.5 * 0.8796, True),
    (initializers.glorot_normal(1), 0.0, np.sqrt(2 / 300), True),
    (initializers.he_normal(1), 0.0, np.sqrt(2 / 200), True),
    (initializers.lecun_normal(1), 0.0, np.sqrt(1 / 200), True),
    (initializers.variance_scaling(3.0, "fan_avg", "untruncated_normal", 1), 0.0, np.sqrt(3 / 150), False),
    (initializers.variance_scaling(3.0, "fan_in", "normal", 1), 0.0, np.sqrt(3 / 200), True),
]


@pytest.mark.parametrize(("initializer", "mean", "stddev", "truncated"), NORMAL)
def test_normal_draws_have_their_mean_and_deviation(
    initializer: Any, mean: float, stddev: float, truncated: bool
) -> None:
    got = draw(initializer)
    assert abs(got.mean() - mean) < 0.03 * stddev
    assert abs(got.std() / stddev - 1) < 0.02
    assert (np.abs(got - mean).max() <= 2.001 * stddev / 0.8796) is np.bool_(truncated)


def test_uniform_integers_are_in_the_half_open_range() -> None:
    got = draw(initializers.random_uniform(3, 6, seed=2), (500,), "int32")
    assert got.dtype == np.int32
    assert set(got.tolist()) == {3, 4, 5}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_initializers_return_the_requested_dtype(dtype: str) -> None:
    for initializer in (initializers.glorot_uniform(), initializers.he_normal(), initializers.random_normal()):
        assert draw(initializer, (3, 2), dtype).dtype == aioflow.as_dtype(dtype).np_dtype
    for make in (initializers.random_normal, initializers.truncated_normal, initializers.glorot_uniform):
        with pytest.raises(DTypeError):
            make(dtype="int32")
        with pytest.raises(DTypeError):
            make()([2], "int32")


def test_a_seed_repeats_the_draw() -> None:
    first, second = draw(initializers.glorot_uniform(seed=7)), draw(initializers.glorot_uniform(seed=7))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, draw(initializers.glorot_uniform(seed=8)))


@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (3, 6), (2, 3, 4)])
def test_orthogonal_draws_have_orthogonal_columns(shape: Any) -> None:
    got = draw(initializers.orthogonal(2.0, seed=1, dtype="float64"), shape).reshape(-1, shape[-1])
    product = got.T @ got if got.shape[0] >= got.shape[1] else got @ got.T
    np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-6)


def test_orthogonal_needs_a_matrix() -> None:
    with pytest.raises(InvalidArgumentError):
        initializers.orthogonal()([3])


def test_arguments_out_of_range_are_refused() -> None:
    for bad in (
        lambda: initializers.variance_scaling(0.0),
        lambda: initializers.variance_scaling(mode="fan"),  # type: ignore[arg-type]  # wrong on purpose
        lambda: initializers.variance_scaling(distribution="flat"),  # type: ignore[arg-type]  # wrong on purpose
        lambda: initializers.glorot_uniform()([None, 3]),
    ):
        with pytest.raises(InvalidArgumentError):
            bad()


@pytest.mark.parametrize(
    "initializer",
    [
        initializers.zeros(),
        initializers.ones("int32"),
        initializers.constant([1, 2], "int32"),
        initializers.random_uniform(1, 2, 3),
        initializers.random_normal(1, 2, 3),
        initializers.truncated_normal(1, 2, 3),
        initializers.uniform_unit_scaling(2.0, 3),
        initializers.variance_scaling(2.0, "fan_out", "uniform", 3),
        initializers.glorot_uniform(3),
        initializers.glorot_normal(3, "float64"),
        initializers.orthogonal(2.0, 3),
        initializers.identity(2.0),
    ],
)
def test_configurations_round_trip(initializer: Any) -> None:
    config = initializer.get_config()
    again = type(initializer).from_config(config)
    assert again.get_config() == config
    assert all(isinstance(v, str | int | float | list | None) for v in config.values())
    assert again.dtype is initializer.dtype


def test_top_level_names_are_aliases() -> None:
    for name in (
        "zeros",
        "ones",
        "constant",
        "random_uniform",
        "random_normal",
        "truncated_normal",
        "variance_scaling",
        "glorot_uniform",
        "glorot_normal",
        "orthogonal",
        "uniform_unit_scaling",
    ):
        assert getattr(aioflow, f"{name}_initializer") is getattr(initializers, name)
    assert aioflow.initializers is initializers


def test_variance_scaling_ignores_case() -> None:
    upper: Any = {"mode": "FAN_IN", "distribution": "Uniform"}
    scaled = initializers.variance_scaling(1.0, **upper, seed=1)
    assert (draw(scaled) == draw(initializers.variance_scaling(1.0, "fan_in", "uniform", seed=1))).all()
