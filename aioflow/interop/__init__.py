"""Import and export of models in other formats: ONNX, TensorFlow graphs and SavedModels, safetensors weights."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import load_later as _load_later

# ruff: noqa: TC004
# Loaded on first use.
if _TYPE_CHECKING:
    from aioflow.interop import onnx as onnx
    from aioflow.interop import safetensors as safetensors
    from aioflow.interop import tensorflow as tensorflow
    from aioflow.interop.model import Model as Model
    from aioflow.interop.model import Signature as Signature
    from aioflow.interop.unsupported import UnsupportedOp as UnsupportedOp

__all__ = ["Model", "Signature", "UnsupportedOp"]

_load_later(
    __name__,
    {
        "onnx": "aioflow.interop.onnx",
        "safetensors": "aioflow.interop.safetensors",
        "tensorflow": "aioflow.interop.tensorflow",
        "Model": "aioflow.interop.model",
        "Signature": "aioflow.interop.model",
        "UnsupportedOp": "aioflow.interop.unsupported",
    },
)
