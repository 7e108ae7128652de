"""Layers against TensorFlow: variables, initial values, outputs, losses, updates and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from tests.parity.legacy_keras import described, layers

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:UserWarning")  # of TensorFlow's layers

VECTORS, ROWS, IMAGES, VOLUMES = (3, 5), (2, 7, 3), (2, 6, 5, 3), (1, 4, 5, 4, 2)


def array(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def numbers(m: Any, seed: int = 1, low: float = -1.0) -> Any:
    """Return an initializer with the same values in both systems, whose random numbers differ."""

    def initializer(shape: Any, dtype: Any = None, **_: Any) -> Any:
        return m.constant(np.random.default_rng(seed).uniform(low, low + 2, [int(d) for d in shape]), "float32")

    return initializer


def l2(m: Any, scale: float) -> Callable[[Any], Any]:
    return lambda v: scale * m.nn.l2_loss(v)


def normalized(m: Any, x: Any, **how: Any) -> Any:
    """Return a batch norm whose variables have values that differ from one another."""
    return layers(m).batch_normalization(
        x,
        beta_initializer=numbers(m, 1),
        gamma_initializer=numbers(m, 2),
        moving_mean_initializer=numbers(m, 3),
        moving_variance_initializer=numbers(m, 4, 0.1),
        **how,
    )


def shared(m: Any, x: Any) -> Any:
    layer = layers(m).Dense(5, m.tanh, kernel_initializer=numbers(m), name="shared")
    return layer(layer(x))


def reused(m: Any, x: Any) -> Any:
    first = layers(m).dense(x, 5, kernel_initializer=numbers(m), name="d")
    return layers(m).dense(first, 5, name="d", reuse=True)


def scoped(m: Any, x: Any) -> Any:
    """Return layers in scopes, which count their names."""
    with m.variable_scope("outer", initializer=numbers(m), regularizer=l2(m, 0.5)):
        x = layers(m).dense(layers(m).dense(x, 4), 3)
    with m.variable_scope("outer", reuse=m.AUTO_REUSE, initializer=numbers(m)):
        return layers(m).dense(x, 2, name="last")


def frozen(m: Any, x: Any) -> Any:
    return layers(m).dense(layers(m).dense(x, 3, trainable=False, kernel_initializer=numbers(m)), 2, use_bias=False,
                           kernel_initializer=numbers(m))  # fmt: skip


CASES: Final[dict[str, tuple[Callable[..., Any], tuple[int, ...]]]] = {
    "dense": (lambda m, x: layers(m).dense(x, 4, m.nn.relu, kernel_initializer=numbers(m)), VECTORS),
    "dense of images": (lambda m, x: layers(m).dense(x, 4, kernel_initializer=numbers(m)), IMAGES),
    "dense with losses": (
        lambda m, x: layers(m).dense(
            x,
            4,
            kernel_initializer=numbers(m),
            kernel_regularizer=l2(m, 0.1),
            bias_regularizer=l2(m, 1.0),
            bias_initializer=m.ones_initializer(),
            activity_regularizer=l2(m, 0.3),
        ),
        VECTORS,
    ),
    "shared": (shared, VECTORS),
    "reused": (reused, VECTORS),
    "scoped": (scoped, VECTORS),
    "frozen": (frozen, VECTORS),
    "conv1d": (
        lambda m, x: layers(m).conv1d(x, 4, 3, 2, "same", activation=m.nn.elu, kernel_initializer=numbers(m)),
        ROWS,
    ),
    "conv1d, dilated": (lambda m, x: layers(m).conv1d(x, 4, 2, dilation_rate=2, kernel_initializer=numbers(m)), ROWS),
    "conv2d": (lambda m, x: layers(m).conv2d(x, 4, [3, 2], (2, 1), "same", kernel_initializer=numbers(m)), IMAGES),
    "conv2d, named": (
        lambda m, x: layers(m).conv2d(x, 4, 3, use_bias=False, kernel_initializer=numbers(m), name="stem"),
        IMAGES,
    ),
    "conv3d": (lambda m, x: layers(m).conv3d(x, 3, 2, 1, "same", kernel_initializer=numbers(m)), VOLUMES),
    "conv2d_transpose": (
        lambda m, x: layers(m).conv2d_transpose(x, 4, [3, 2], 2, "same", kernel_initializer=numbers(m)),
        IMAGES,
    ),
    "conv2d_transpose, valid": (
        lambda m, x: layers(m).conv2d_transpose(x, 4, 3, (2, 1), activation=m.tanh, kernel_initializer=numbers(m)),
        IMAGES,
    ),
    "conv3d_transpose": (
        lambda m, x: layers(m).conv3d_transpose(x, 3, 2, 2, kernel_initializer=numbers(m)),
        VOLUMES,
    ),
    "separable_conv1d": (
        lambda m, x: layers(m).separable_conv1d(
            x, 4, 3, depth_multiplier=2, depthwise_initializer=numbers(m), pointwise_initializer=numbers(m, 2)
        ),
        ROWS,
    ),
    "separable_conv2d": (
        lambda m, x: layers(m).separable_conv2d(
            x, 4, [3, 2], padding="same", depthwise_initializer=numbers(m), pointwise_initializer=numbers(m, 2)
        ),
        IMAGES,
    ),
    "batch_normalization": (lambda m, x: normalized(m, x), VECTORS),
    "batch_normalization in training": (lambda m, x: normalized(m, x, training=True, momentum=0.7), VECTORS),
    "batch_normalization, fused": (lambda m, x: normalized(m, x, epsilon=0.01), IMAGES),
    "batch_normalization, fused in training": (lambda m, x: normalized(m, x, training=True), IMAGES),
    "batch_normalization, not fused": (lambda m, x: normalized(m, x, training=True, fused=False), IMAGES),
    "batch_normalization of an axis": (lambda m, x: normalized(m, x, training=True, axis=1), ROWS),
    "batch_normalization without scale": (
        lambda m, x: layers(m).batch_normalization(x, scale=False, training=True),
        IMAGES,
    ),
    "batch_normalization without center": (
        lambda m, x: layers(m).batch_normalization(x, center=False, training=True, name="bn"),
        VECTORS,
    ),
    "batch_normalization, placeholder in training": (
        lambda m, x: normalized(m, x, training=m.placeholder_with_default(True, [])),
        IMAGES,
    ),
    "batch_normalization, placeholder in inference": (
        lambda m, x: normalized(m, x, training=m.placeholder_with_default(False, [])),
        VECTORS,
    ),
    "dropout in inference": (lambda m, x: layers(m).dropout(x, 0.4), VECTORS),
    "flatten": (lambda m, x: layers(m).flatten(x), IMAGES),
    "flatten, channels first": (lambda m, x: layers(m).flatten(x, data_format="channels_first"), IMAGES),
    "flatten of a vector": (lambda m, x: layers(m).flatten(x), (4,)),
    "max_pooling1d": (lambda m, x: layers(m).max_pooling1d(x, 3, 2, "same"), ROWS),
    "max_pooling2d": (lambda m, x: layers(m).max_pooling2d(x, [2, 3], 2), IMAGES),
    "max_pooling3d": (lambda m, x: layers(m).max_pooling3d(x, 2, (2, 1, 2)), VOLUMES),
    "average_pooling1d": (lambda m, x: layers(m).average_pooling1d(x, 3, 2, "same"), ROWS),
    "average_pooling2d": (lambda m, x: layers(m).average_pooling2d(x, 2, [2, 1], "same"), IMAGES),
    "average_pooling3d": (lambda m, x: layers(m).average_pooling3d(x, 2, 2), VOLUMES),
}  # fmt: skip

# TensorFlow's static shapes of these know less.
OPEN: Final = ("conv2d_transpose", "conv3d_transpose", "conv1d, dilated")


@pytest.mark.parametrize("name", CASES)
def test_layer_equals_tensorflows(parity: Any, name: str) -> None:
    make, shape = CASES[name]

    def build(m: Any, x: Any) -> Any:
        y = make(m, x)
        found = [y, *m.get_collection("regularization_losses")]
        if m.global_variables():
            found += [described(m), *m.global_variables()]
        if variables := m.trainable_variables():
            weight = m.cast(m.range(m.size(y)), m.float32)
            found += m.gradients(m.reduce_sum(m.reshape(y, [-1]) * m.sin(weight)), variables)
        return [m.convert_to_tensor(each) for each in found]

    parity(build, array(*shape), rtol=1e-4, atol=1e-5, grad_of=[0], static=not name.startswith(OPEN))


UPDATES: Final[dict[str, tuple[tuple[int, ...], dict[str, Any]]]] = {
    "fused": (IMAGES, {}),
    "not fused": (IMAGES, {"fused": False}),
    "vectors": (VECTORS, {"momentum": 0.8}),
    "placeholder": (IMAGES, {"training": True}),
    "no training": (IMAGES, {"training": False}),
}


@pytest.mark.parametrize("name", UPDATES)
def test_updates_of_moving_averages_equal_tensorflows(parity: Any, name: str) -> None:
    shape, how = UPDATES[name]

    def build(m: Any, x: Any) -> Any:
        settings = {"training": True, **how}
        if "training" in how:
            settings["training"] = m.placeholder_with_default(how["training"], [])
        y = normalized(m, x, **settings)
        updates = m.get_collection(m.GraphKeys.UPDATE_OPS)
        with m.control_dependencies(updates):
            averages = [v.read_value() for v in m.global_variables() if "moving" in v.op.name]
        return [y, m.constant(len(updates)), *averages]

    parity(build, array(*shape), rtol=1e-4, atol=1e-5, grad=False)
