"""The domain com.microsoft: ops that onnxruntime's optimizer and quantizer produce.

onnx has no schemas for them, so each translation lists the attributes that it handles and supplies their default
values. A node with another attribute is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from aioflow.graph.graph import Tensor
from aioflow.interop.onnx.translating import OnnxNode, Translation, translation

DOMAIN: Final = "com.microsoft"
_Function = TypeVar("_Function", bound=Translation)


def microsoft(op: str, *attributes: str) -> Callable[[_Function], _Function]:
    """Register the translation of an op of the domain, which handles these attributes."""
    return translation(op, domain=DOMAIN, attributes=attributes)


def refuse_unless(node: OnnxNode, **only: object) -> None:
    """Refuse a node if an attribute is set to another value than the only supported one."""
    for name, value in only.items():
        found = node.attr(name, value)
        if found != value:
            node.refuse(f"{name}={found}")


def refuse_inputs(node: OnnxNode, **inputs: Tensor | None) -> None:
    """Refuse a node that has one of these inputs."""
    for name, given in inputs.items():
        if given is not None:
            node.refuse(f"input {name!r}")
