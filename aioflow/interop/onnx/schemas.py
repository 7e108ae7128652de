"""What onnx itself knows of its ops: which attributes they have, and which of them are functions of other ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto, defs

__all__ = ["NEWEST", "function_body", "schema_of"]

NEWEST: Final = {"": defs.onnx_opset_version(), "ai.onnx.ml": defs.onnx_ml_opset_version()}


@lru_cache(maxsize=4096)
def schema_of(domain: str, op: str, version: int) -> Any:
    """The op's schema in that opset version; None if there is no such op, or no longer."""
    try:
        found = defs.get_schema(op, version, domain)
    except defs.SchemaError:
        return None
    return None if found.deprecated else found


def function_body(node: NodeProto, version: int, types: Sequence[TypeProto]) -> FunctionProto | None:
    """The function of other ops that onnx defines the node's op by; None if there is none.

    Args:
        version: The opset version of the node's domain.
        types: Those of its inputs; an empty one for an input left out.
    """
    schema = schema_of(node.domain, node.op_type, version)
    data = b"" if schema is None else _serialized(schema, node, version, types)
    if not data:
        return None
    body = FunctionProto()
    body.ParseFromString(data)
    del body.attribute_proto[:]
    body.attribute_proto.extend(default_attributes(node.domain, node.op_type, version).values())
    return body


def has_function(domain: str, op: str, version: int) -> bool:
    """Whether onnx defines the op by others."""
    schema = schema_of(domain, op, version)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


@lru_cache(maxsize=1024)
def default_attributes(domain: str, op: str, version: int) -> Mapping[str, AttributeProto]:
    """The attributes that a node has without saying so."""
    schema = schema_of(domain, op, version)
    return {name: each.default_value for name, each in schema.attributes.items() if each.default_value.type}


def _serialized(schema: Any, node: NodeProto, version: int, types: Sequence[TypeProto]) -> bytes:
    if schema.has_function:
        chosen = _chosen(schema.function_opset_versions, version)
        return bytes(schema.get_function_with_opset_version(chosen))
    if schema.has_context_dependent_function:
        chosen = _chosen(schema.context_dependent_function_opset_versions, version)
        return bytes(
            schema.get_context_dependent_function_with_opset_version(
                chosen, node.SerializeToString(), [each.SerializeToString() for each in types]
            )
        )
    return b""


def _chosen(written_for: Sequence[int], version: int) -> int:
    """A body's own opset version: the last that is not newer than the model's, if there is one."""
    return max((v for v in written_for if v <= version), default=min(written_for))
