"""TensorFlow 1's layers and cells of recurrent nets, which the newest Keras lacks; the package tf_keras has them."""

from __future__ import annotations

import importlib
from typing import Any, Final

import pytest

import aioflow

_LEGACY: Final = "tf_keras.api._v1.keras.__internal__.legacy"


def layers(m: Any) -> Any:
    """Return the layers of aioflow or TensorFlow."""
    return aioflow.layers if m is aioflow else _legacy("layers")


def rnn_cell(m: Any) -> Any:
    """Return the cells of aioflow or TensorFlow."""
    return aioflow.nn.rnn_cell if m is aioflow else _legacy("rnn_cell")


def _legacy(name: str) -> Any:
    pytest.importorskip("tf_keras", reason="tf_keras: pip install 'aioflow-engine[parity]'")
    return importlib.import_module(f"{_LEGACY}.{name}")


def described(m: Any) -> Any:
    """Return the names and shapes of the variables, one string each, with marks of those that are trained."""
    trained = m.trainable_variables()
    return m.constant([f"{v.op.name} {v.shape.as_list()} {any(v is t for t in trained)}" for v in m.global_variables()])
