"""Layers: variables and their sharing, layers of one's own, layouts, and arguments that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import aioflow as af
from aioflow.errors import (
    AlreadyExistsError,
    DTypeError,
    InvalidArgumentError,
    OpError,
    UnimplementedError,
    UnknownNameError,
)
from aioflow.kernels.resources import ResourceManager
from aioflow.testing.evaluate import evaluate


def array(*shape: int) -> Any:
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


def run(*fetches: Any) -> list[Any]:
    """Evaluate tensors after the initializers of all variables."""
    resources, state = ResourceManager(), dict[str, object]()
    evaluate([], targets=[v.initializer for v in af.global_variables()], resources=resources, state=state)
    return evaluate([af.convert_to_tensor(each) for each in fetches], resources=resources, state=state)


class Scaled(af.layers.Layer):
    """A layer as a user writes one."""

    def build(self, input_shape: Any) -> None:
        self.input_spec = af.layers.InputSpec(ndim=2, axes={-1: 3})
        self.factor = self.add_variable("factor", [3], initializer=af.constant_initializer(2.0))
        self.counter = self.add_weight("counter", [], trainable=False, initializer=af.zeros_initializer())
        self.built = True

    def call(self, inputs: af.Tensor, shift: float = 0.0) -> Any:
        self.add_loss(af.reduce_sum(self.factor))
        self.add_update(self.counter.assign_add(1.0, read_value=False))
        return inputs * self.factor + shift


def test_layer_of_ones_own() -> None:
    layer = Scaled()
    assert (layer.name, layer.dtype, layer.variables) == ("scaled_1", None, [])
    first, second = layer(array(2, 3)), layer.apply(array(4, 3), shift=1.0)
    assert (layer.scope_name, layer.dtype) == ("scaled", af.float32)
    assert [v.name for v in layer.trainable_variables] == ["scaled/factor:0"]
    assert [v.name for v in layer.non_trainable_variables] == ["scaled/counter:0"]
    assert (layer.count_params(), len(layer.losses), len(layer.updates)) == (4, 2, 2)
    assert af.get_collection(af.GraphKeys.UPDATE_OPS) == layer.updates
    assert af.get_collection(af.GraphKeys.REGULARIZATION_LOSSES) == layer.losses
    assert [first.op.name, second.op.name] == ["scaled/add", "scaled/add_1"]
    found = run(first, second)
    np.testing.assert_allclose(found[0], array(2, 3) * 2, rtol=1e-6)
    np.testing.assert_allclose(found[1], array(4, 3) * 2 + 1, rtol=1e-6)
    with pytest.raises(InvalidArgumentError, match="input of layer scaled_1 has a wrong shape"):
        layer(array(2, 4))
    layer.trainable = False
    assert layer.trainable_variables == []
    assert len(layer.variables) == 2


def test_names_count_and_scopes_are_shared_by_reuse() -> None:
    x = array(2, 3)
    first, second, named = af.layers.dense(x, 2), af.layers.dense(x, 2), af.layers.dense(x, 2, name="d")
    again = af.layers.dense(x, 2, name="d", reuse=True)
    assert [v.name for v in af.trainable_variables()] == [
        *("dense/kernel:0", "dense/bias:0", "dense_1/kernel:0", "dense_1/bias:0", "d/kernel:0", "d/bias:0")
    ]
    a, b, c, d = run(first, second, named, again)
    np.testing.assert_array_equal(c, d)
    assert not np.allclose(a, b)
    with pytest.raises(AlreadyExistsError, match="d/kernel already exists"):
        af.layers.dense(x, 2, name="d")


def test_default_initializer_and_partitioner_are_those_of_the_scope() -> None:
    with af.variable_scope("s", initializer=af.ones_initializer, partitioner=af.fixed_size_partitioner(2)):
        layer = af.layers.Dense(3)
        found = run(layer(array(2, 4)))[0]
    assert [v.name for v in layer.variables] == [
        *("s/dense/kernel/part_0:0", "s/dense/kernel/part_1:0", "s/dense/bias/part_0:0", "s/dense/bias/part_1:0")
    ]
    np.testing.assert_allclose(found, np.repeat(array(2, 4).sum(1, keepdims=True), 3, 1), rtol=1e-5)


def test_dropout_in_training_drops_a_fraction_and_scales_the_rest() -> None:
    x, training = np.ones((50, 40), np.float32), af.placeholder_with_default(True, [])
    for given in (True, training):
        found = run(af.layers.dropout(x, 0.25, training=given))[0]
        assert set(np.unique(found)) == {np.float32(0), np.float32(1 / 0.75)}
        assert 0.2 < np.mean(found == 0) < 0.3
    np.testing.assert_array_equal(run(af.layers.dropout(x, 0.25))[0], x)


LAYOUTS: Final[dict[str, tuple[int, Callable[..., Any]]]] = {
    "conv1d": (1, lambda x, **how: af.layers.conv1d(x, 4, 3, 2, **how)),
    "conv1d, causal": (1, lambda x, **how: af.layers.conv1d(x, 4, 3, padding="causal", dilation_rate=2, **how)),
    "conv2d": (2, lambda x, **how: af.layers.conv2d(x, 4, 3, padding="SAME", dilation_rate=2, **how)),
    "conv3d": (3, lambda x, **how: af.layers.conv3d(x, 4, 2, **how)),
    "conv2d_transpose": (2, lambda x, **how: af.layers.conv2d_transpose(x, 4, 3, 2, **how)),
    "conv3d_transpose": (3, lambda x, **how: af.layers.conv3d_transpose(x, 4, 3, 2, "same", **how)),
    "separable_conv1d": (1, lambda x, **how: af.layers.separable_conv1d(x, 4, 3, 2, **how)),
    "separable_conv2d": (2, lambda x, **how: af.layers.separable_conv2d(x, 4, 3, depth_multiplier=2, **how)),
    "max_pooling1d": (1, lambda x, **how: af.layers.max_pooling1d(x, 2, 2, **how)),
    "average_pooling2d": (2, lambda x, **how: af.layers.average_pooling2d(x, 2, 2, "same", **how)),
    "max_pooling3d": (3, lambda x, **how: af.layers.max_pooling3d(x, 2, 1, **how)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_channels_first_equals_channels_last(name: str) -> None:
    axes, make = LAYOUTS[name]
    x = array(2, *(5, 6, 4)[:axes], 3)
    counter = iter(range(10))

    def initializer(shape: Any, dtype: Any = None) -> Any:
        return np.random.default_rng(next(counter) % 3).standard_normal(shape).astype(np.float32)

    kept: dict[str, Any] = {}
    found = []
    for layout, given in (("channels_last", x), ("channels_first", np.moveaxis(x, -1, 1))):
        counter = iter(range(10))
        with af.variable_scope("s", initializer=initializer, reuse=af.AUTO_REUSE):
            if "pool" not in name:
                kept = {"name": "layer", "bias_initializer": initializer}
            open_sizes = af.placeholder_with_default(given, [None] * given.ndim)
            channels = 1 if layout == "channels_first" else -1
            static: list[int | None] = [None] * given.ndim
            static[channels] = 3
            open_sizes.set_shape(static)
            found += [make(given, data_format=layout, **kept), make(open_sizes, data_format=layout, **kept)]
    last, last_open, first, first_open = run(*found)
    np.testing.assert_allclose(np.moveaxis(first, 1, -1), last, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last_open, last, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(first_open, first, rtol=1e-4, atol=1e-5)


def test_causal_padding_lets_no_output_see_later_inputs() -> None:
    x = np.zeros((1, 6, 1), np.float32)
    x[0, 3] = 1
    found = run(af.layers.conv1d(x, 1, 2, padding="causal", kernel_initializer=af.ones_initializer))[0]
    assert found.ravel().tolist() == [0, 0, 0, 1, 1, 0]


def test_half_precision_is_normalized_with_moments_in_float32() -> None:
    x = array(64, 3).astype(np.float16) * np.float16(100)
    made = af.layers.batch_normalization(af.constant(x), training=True)
    assert made.dtype is af.float16
    assert {v.dtype for v in af.global_variables()} == {af.float32}
    found = run(made)[0].astype(np.float32)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-2)
    np.testing.assert_allclose(found.std(0), 1, atol=1e-2)


def test_batch_normalization_of_several_axes() -> None:
    made = af.layers.batch_normalization(array(8, 3, 4), axis=[1, 2], training=True)
    assert [v.shape.as_list() for v in af.global_variables()] == [[1, 3, 4]] * 4
    found = run(made)[0]
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(found.std(0), 1, atol=1e-2)


REFUSED: Final[dict[str, tuple[Callable[[], Any], type[OpError], str]]] = {
    "units": (lambda: af.layers.Dense(0), InvalidArgumentError, "units is out of range"),
    "unknown size": (
        lambda: af.layers.dense(af.placeholder("float32", [2, None]), 3),
        InvalidArgumentError,
        "depend on the size of axis -1",
    ),
    "vector": (lambda: af.layers.dense(array(3), 3), InvalidArgumentError, "at least rank 2"),
    "activation": (lambda: af.layers.Dense(2, "relv"), UnknownNameError, "did you mean 'relu'"),
    "kind of activation": (lambda: af.layers.Dense(2, 3), DTypeError, "wrong type for activation"),  # type: ignore[arg-type]  # refused
    "kernel size": (lambda: af.layers.Conv2D(2, [3]), InvalidArgumentError, "kernel_size does not fit"),
    "padding": (lambda: af.layers.Conv2D(2, 3, padding="causal"), InvalidArgumentError, "the padding is unknown"),
    "layout": (lambda: af.layers.MaxPooling1D(2, 2, data_format="NWC"), InvalidArgumentError, "data_format is unknown"),
    "rank": (lambda: af.layers.conv2d(array(2, 3, 4), 2, 3), InvalidArgumentError, "rank 4"),
    "renorm": (lambda: af.layers.BatchNormalization(renorm=True), UnimplementedError, "has no renorm"),
    "virtual batch": (
        lambda: af.layers.BatchNormalization(virtual_batch_size=2),
        UnimplementedError,
        "has no virtual_batch_size",
    ),
    "fused vectors": (
        lambda: af.layers.batch_normalization(array(2, 3), fused=True),
        InvalidArgumentError,
        "cannot be fused",
    ),
    "axis": (lambda: af.layers.batch_normalization(array(2, 3), axis=2), InvalidArgumentError, "axis of layer"),
    "no scope yet": (lambda: af.layers.Dense(2).scope_name, InvalidArgumentError, "has no scope before"),
    "no variables yet": (lambda: af.layers.Dense(2).count_params(), InvalidArgumentError, "has no variables before"),
    "no shape": (lambda: af.layers.Flatten().compute_output_shape([2, 3]), UnimplementedError, "does not tell"),
    "trained and synchronized on reading": (
        lambda: af.layers.Layer().add_weight(
            "v", [], trainable=True, synchronization=af.VariableSynchronization.ON_READ
        ),
        InvalidArgumentError,
        "cannot be trained",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_arguments_are_named(name: str) -> None:
    build, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        build()


SPECS: Final[dict[str, tuple[af.layers.InputSpec, tuple[int | None, ...] | None]]] = {
    "rank": (af.layers.InputSpec(ndim=3), (1, 2)),
    "lowest rank": (af.layers.InputSpec(min_ndim=3), (1, 2)),
    "highest rank": (af.layers.InputSpec(max_ndim=1), (1, 2)),
    "size": (af.layers.InputSpec(axes={-1: 3}), (1, 2)),
    "shape": (af.layers.InputSpec(shape=[None, 3]), (1, 2)),
    "dtype": (af.layers.InputSpec(dtype="int32"), (1, 2)),
    "unknown rank": (af.layers.InputSpec(ndim=2), None),
}


@pytest.mark.parametrize("name", SPECS)
def test_input_spec_refuses(name: str) -> None:
    spec, dims = SPECS[name]
    with pytest.raises((InvalidArgumentError, DTypeError), match="input of layer L"):
        spec.check(af.placeholder("float32", dims), "L")


def test_input_spec_accepts_unknown_sizes() -> None:
    spec = af.layers.InputSpec(shape=[None, 3], axes={0: 7})
    spec.check(af.placeholder("float32", [None, None]), "L")
    af.layers.InputSpec().check(af.placeholder("float32"), "L")
