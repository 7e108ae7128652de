"""Parts of steps by onnxruntime: as ONNX models that aioflow's exporter makes, in the process that owns the device.

`engine` says which nodes have a translation, `kernels` runs the parts. The entry point groups `aioflow.delegates` and
`aioflow.kernels` find them; nothing of onnxruntime is loaded before a session asks for it (`SessionConfig.delegate`).
"""

from __future__ import annotations

from typing import Final

__all__ = ["NAME"]

NAME: Final = "onnxruntime"  # by which `SessionConfig.delegate` chooses it
