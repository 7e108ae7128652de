"""Access to onnx's schemas: the attributes of its ops, and the functions that define some of them by other ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto, defs

from aioflow.errors import InvalidArgumentError

NEWEST: Final = {"": defs.onnx_opset_version(), "ai.onnx.ml": defs.onnx_ml_opset_version()}


@lru_cache(maxsize=4096)
def schema_of(domain: str, op: str, version: int) -> Any:
    """Return the op's schema in that opset version, or None if the op does not exist or is deprecated."""
    try:
        found = defs.get_schema(op, version, domain)
    except defs.SchemaError:
        return None
    return None if found.deprecated else found


@lru_cache(maxsize=4096)
def _outline(domain: str, op: str, version: int) -> tuple[Mapping[str, int], tuple[str, ...], range, range] | None:
    """Return the attributes' types, the required attributes, and the allowed numbers of inputs and outputs."""
    schema = schema_of(domain, op, version)
    if schema is None:
        return None
    attributes = schema.attributes
    types = {name: int(each.type.value) for name, each in attributes.items()}
    required = tuple(name for name, each in attributes.items() if each.required)
    return types, required, range(schema.min_input, schema.max_input + 1), range(schema.max_output + 1)


def check_node(node: NodeProto, domain: str, version: int, attributes: Mapping[str, AttributeProto]) -> None:
    """Raise InvalidArgumentError if the node does not match the schema of its op.

    The types of attributes, required attributes, and the numbers of inputs and outputs are checked.
    """
    known = _outline(domain, node.op_type, version)
    if known is None:
        return
    types, required, inputs, outputs = known
    for name, each in attributes.items():
        # An unknown attribute passes: `check_attributes` decides whether the translation handles it.
        if types.get(name, each.type) != each.type:
            raise InvalidArgumentError(
                f"attribute {name!r} has the wrong type",
                expected=_TYPE_NAMES.get(types[name], types[name]),
                actual=_TYPE_NAMES.get(each.type, each.type),
            )
    for name in required:
        if name not in attributes:
            raise InvalidArgumentError(
                f"the node has no attribute {name!r}", expected=list(required), actual=[*attributes]
            )
    for what, names, range_ in (("inputs", node.input, inputs), ("outputs", node.output, outputs)):
        if len(names) not in range_:
            raise InvalidArgumentError(
                f"the node has a wrong number of {what}", expected=f"{range_[0]} to {range_[-1]}", actual=len(names)
            )


_TYPE_NAMES: Final = {number: name for name, number in AttributeProto.AttributeType.items()}


def function_body(node: NodeProto, version: int, types: Sequence[TypeProto]) -> FunctionProto | None:
    """Return the function of other ops by which onnx defines the node's op, or None.

    Args:
        node: The node.
        version: Opset version of the node's domain.
        types: Types of its inputs; an empty one for an omitted input.
    """
    schema = schema_of(node.domain, node.op_type, version)
    data = b"" if schema is None else _serialized(schema, node, version, types)
    if not data:
        return None
    body = FunctionProto()
    body.ParseFromString(data)
    # The body may be written for another opset version; the defaults are those of the version of the model.
    del body.attribute_proto[:]
    body.attribute_proto.extend(default_attributes(node.domain, node.op_type, version).values())
    return body


def has_function(domain: str, op: str, version: int) -> bool:
    """Return whether onnx defines the op as a function of others."""
    schema = schema_of(domain, op, version)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


@lru_cache(maxsize=1024)
def default_attributes(domain: str, op: str, version: int) -> Mapping[str, AttributeProto]:
    """Return the attributes that have default values."""
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
    """Return the newest opset version of a function body that the model's version allows, or else the oldest."""
    return max((v for v in written_for if v <= version), default=min(written_for))
