"""Conversion of node attributes to and from `AttrValue`.

A message states the kind of each value. In aioflow the definition of the op states it, so `write_attributes` looks it
up there. For attributes that the definition does not know (those that begin with "_") it follows from the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from aioflow.errors import InvalidArgumentError, UnimplementedError
from aioflow.formats.graphs.published.tensors import Room, dtype_of, shape_of, tensor_of, write_shape, write_tensor
from aioflow.graph.definitions import FunctionRef, TensorData
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import OPS
from aioflow.graph.signature.attributes import item_kind
from aioflow.protos import Message

_FIELDS: Final[Mapping[str, str]] = {"string": "s", "int": "i", "float": "f", "bool": "b"} | {
    kind: kind for kind in ("type", "shape", "tensor", "func")
}


def attributes_of(node: Message, room: Room) -> dict[str, Any]:
    """Return the attributes of a NodeDef message.

    Raises:
        DTypeError: a dtype is unknown.
        InvalidArgumentError: a value is malformed; the error names the attribute.
        UnimplementedError: a function has attributes of its own.
    """
    # A node of an unknown op keeps all attributes; a caller decides whether it refuses the node.
    defined = OPS.get(node.op).attrs if node.op in OPS else {}
    found: dict[str, Any] = {}
    for key, value in node.attr.items():
        known = defined.get(key)
        # Only attributes that can be left out: private ones and those with a default.
        if _is_dispensable(value, key.startswith("_") or (known is not None and known.has_default)):
            continue
        try:
            found[key] = value_of(value, room)
        except (InvalidArgumentError, UnimplementedError) as error:
            error.message = f"attribute {key!r}: {error.message}"
            raise
    return found


def _is_dispensable(value: Message, has_default: bool) -> bool:
    """Return True if an optional attribute has no value, or has bytes that are not text.

    TensorFlow stores the configuration of its runtime in such bytes.
    """
    kind = value.WhichOneof("value")
    return has_default and (kind is None or (kind == "s" and not _is_text(value.s)))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def value_of(value: Message, room: Room) -> Any:
    """Return the value of an AttrValue message, lists as tuples. Raises the same errors as `attributes_of`."""
    kind = value.WhichOneof("value")
    if kind is None or kind == "placeholder":
        raise InvalidArgumentError("it has no value", expected="a value", actual=value.placeholder or "nothing")
    if kind != "list":
        return _item(kind, getattr(value, kind), room)
    lists = value.list.ListFields()
    # A list message has one field per kind. Several filled fields have no order among them.
    if len(lists) > 1:
        raise InvalidArgumentError("a list of several kinds", expected="one kind", actual=[f.name for f, _ in lists])
    return tuple(_item(field.name, item, room) for field, items in lists for item in items)


def _item(kind: str, item: Any, room: Room) -> Any:
    # Bytes that are not text have no form in `AttrValue`.
    if kind == "s":
        if not _is_text(item):
            raise InvalidArgumentError("it is not text", expected="UTF-8", actual=item[:20])
        return item.decode()
    if kind == "type":
        return dtype_of(item)
    if kind == "shape":
        return shape_of(item)
    if kind == "tensor":
        return tensor_of(item, room)
    if kind == "func":
        return function_of(item)
    # The decimal number with the fewest digits that rounds to the same float32: usually the number in the user's
    # program.
    return float(str(np.float32(item))) if kind == "f" else item


def function_of(item: Message) -> FunctionRef:
    """Return the function that a NameAttrList names.

    Raises:
        InvalidArgumentError: the name is malformed.
        UnimplementedError: the function has attributes of its own.
    """
    given = [key for key in item.attr if not key.startswith("_")]
    if given:
        raise UnimplementedError("a function with attributes", expected="none", actual=f"{item.name}: {sorted(given)}")
    return FunctionRef(item.name)


def write_attributes(node: Message, op: str, attrs: Mapping[str, Any]) -> None:
    """Write the attributes of a node of this op into the message."""
    kinds = OPS.get(op).attrs if op in OPS else {}
    for key, value in attrs.items():
        kind = kinds[key].kind if key in kinds else _looks_like(value)
        attr = node.attr[key]
        if not kind.startswith("list("):
            _write(attr, _FIELDS[kind], value)
            continue
        # An empty list sets no field, so without this call the attribute would have no value at all.
        attr.list.SetInParent()
        field = _FIELDS[item_kind(kind)]
        for item in value:
            _append(getattr(attr.list, field), field, item)


def _looks_like(value: Any) -> str:
    if isinstance(value, tuple):
        # A tuple of tuples, or of None only, can be nothing but a list of shapes.
        if any(isinstance(item, tuple) for item in value) or (value and all(item is None for item in value)):
            return "list(shape)"
        if None in value:
            return "shape"
        # An empty list is read back as an empty tuple, whatever the kind.
        return f"list({_looks_like(value[0])})" if value else "list(string)"
    kinds = {bool: "bool", int: "int", float: "float", str: "string", DType: "type"}
    return kinds.get(type(value)) or ("func" if isinstance(value, FunctionRef) else _tensor_or_shape(value))


def _tensor_or_shape(value: Any) -> str:
    return "tensor" if isinstance(value, TensorData) else "shape"


def _write(attr: Message, field: str, value: Any) -> None:
    if field == "shape":
        write_shape(attr.shape, value)
    elif field == "tensor":
        write_tensor(attr.tensor, value)
    elif field == "func":
        attr.func.name = value.name
    else:
        setattr(attr, field, _scalar(field, value))


def _append(items: Any, field: str, value: Any) -> None:
    if field == "shape":
        write_shape(items.add(), value)
    elif field == "tensor":
        write_tensor(items.add(), value)
    elif field == "func":
        items.add().name = value.name
    else:
        items.append(_scalar(field, value))


def _scalar(field: str, value: Any) -> Any:
    if field == "s":
        return value.encode()
    return value.as_datatype_enum if field == "type" else value
