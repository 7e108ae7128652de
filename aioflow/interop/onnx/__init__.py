"""ONNX models in and out."""

from aioflow.interop.onnx.loading import load as load

__all__ = ["load"]
