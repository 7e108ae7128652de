"""Import and export of ONNX models with the onnx package; without it, access to a name raises UnimplementedError."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from aioflow.loading.later import load_later as _load_later

# ruff: noqa: TC004
# Loaded on first use.
if _TYPE_CHECKING:
    from aioflow.interop.onnx.exporting.export import export as export
    from aioflow.interop.onnx.loading import load as load

__all__ = ["export", "load"]

_load_later(
    __name__,
    {"export": "aioflow.interop.onnx.exporting.export", "load": "aioflow.interop.onnx.loading"},
    extra="onnx",
    modules=("onnx",),
)
