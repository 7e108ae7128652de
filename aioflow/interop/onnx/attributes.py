"""Conversion of node attributes to Python values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from onnx import AttributeProto

from aioflow.errors import InvalidArgumentError
from aioflow.interop.onnx.tensors import array_of

_VALUES: Final[Mapping[int, Callable[[AttributeProto], Any]]] = {
    AttributeProto.FLOAT: lambda proto: proto.f,
    AttributeProto.INT: lambda proto: proto.i,
    AttributeProto.STRING: lambda proto: _text(proto.s),
    AttributeProto.TENSOR: lambda proto: array_of(proto.t),
    AttributeProto.GRAPH: lambda proto: proto.g,
    AttributeProto.SPARSE_TENSOR: lambda proto: proto.sparse_tensor,
    AttributeProto.TYPE_PROTO: lambda proto: proto.tp,
    AttributeProto.FLOATS: lambda proto: list(proto.floats),
    AttributeProto.INTS: lambda proto: list(proto.ints),
    AttributeProto.STRINGS: lambda proto: [_text(each) for each in proto.strings],
    AttributeProto.TENSORS: lambda proto: [array_of(each) for each in proto.tensors],
    AttributeProto.GRAPHS: lambda proto: list(proto.graphs),
    AttributeProto.TYPE_PROTOS: lambda proto: list(proto.type_protos),
}


def attribute_value(proto: AttributeProto) -> Any:
    """Return an int, float, str or array, a list of these, or the proto of a graph, a type or a sparse tensor.

    Raises:
        InvalidArgumentError: the attribute has no known type, or its text is not UTF-8.
    """
    read = _VALUES.get(proto.type)
    if read is None:
        raise InvalidArgumentError(
            f"attribute {proto.name!r} has no known type", expected="a type of AttributeProto", actual=proto.type
        )
    return read(proto)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError("a text is not UTF-8", expected="UTF-8", actual=data[:40]) from error
