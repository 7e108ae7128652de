"""ONNX's sequences and optionals as values of the graph: tensor lists, with the known types of their elements.

An optional is a list of one element or none. A sequence whose elements are known while the graph is built, such as most
results of `Split`, becomes a list only when one is needed.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any, TypeAlias

from onnx import TypeProto

from aioflow.graph import dtypes
from aioflow.graph.composite import CompositeTensor
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Tensor
from aioflow.graph.shapes import Dims
from aioflow.interop.onnx.types import dims_of_type, dtype_of, tensor_type
from aioflow.ops.apply import constant, make
from aioflow.ops.array.tensor_list import empty_list, push
from aioflow.ops.core import placeholder


@dataclass(frozen=True, slots=True)
class TensorKind:
    """Dtype and static shape of a tensor."""

    dtype: DType
    dims: Dims


@dataclass(frozen=True, slots=True)
class SequenceKind:
    """The type of a sequence with elements of one kind."""

    element: ValueKind


@dataclass(frozen=True, slots=True)
class OptionalKind:
    """The type of an optional element."""

    element: ValueKind


ValueKind: TypeAlias = TensorKind | SequenceKind | OptionalKind


class Listed(CompositeTensor):
    """A value represented by a tensor list.

    Attributes:
        element: Kind of its elements.
        items: The elements, if they are known while the graph is built.
    """

    __slots__ = ("_handle", "element", "items")

    def __init__(self, element: ValueKind, handle: Tensor | None = None, items: Items[Any] | None = None) -> None:
        self.element = element
        self.items = None if items is None else list(items)
        self._handle = handle

    @property
    def handle(self) -> Tensor:
        """The tensor list."""
        if self._handle is not None:
            return self._handle
        # The list is not kept: it may have been made inside a branch, outside of which it cannot be read.
        made = empty_list(stored_dtype(self.element))
        for item in self.items or ():
            made = push(made, stored(item))
        return made

    @property
    def components(self) -> tuple[Tensor, ...]:
        """The tensor list, as the only component."""
        return (self.handle,)

    def with_components(self, components: Items[Any]) -> CompositeTensor:
        """Return a value of the same kind with another list."""
        return type(self)(self.element, components[0])

    def at(self, index: int | Tensor) -> Any:
        """Return the element at an index from the front: a number, or an int32 scalar."""
        # An index beyond the end is left to the op, so that the error is raised when a step runs.
        if self.items is not None and isinstance(index, int) and index < len(self.items):
            return self.items[index]
        where = index if isinstance(index, Tensor) else constant(index, dtypes.int32)
        # -1 as the element shape stands for any shape.
        anything = constant(-1)
        dtype = stored_dtype(self.element)
        return placed(self.element, make("TensorListGetItem", self.handle, where, anything, element_dtype=dtype))


class Sequence(Listed):
    """A sequence of ONNX."""

    __slots__ = ()


class Optional(Listed):
    """An optional of ONNX."""

    __slots__ = ()


def stored(value: Any, kind: ValueKind | None = None) -> Tensor:
    """Return a value as an element of a list. With an optional `kind`, a plain value is wrapped in an optional."""
    if isinstance(kind, OptionalKind) and not isinstance(value, Optional):
        value = Optional(kind.element, items=[value])
    tensor: Tensor = value.handle if isinstance(value, Listed) else value
    return tensor


def stored_dtype(kind: ValueKind) -> DType:
    """Return the dtype that a value of that kind has as an element of a list."""
    return kind.dtype if isinstance(kind, TensorKind) else dtypes.variant


def placed(kind: ValueKind, tensor: Tensor) -> Any:
    """Return the value of that kind that a tensor holds."""
    if isinstance(kind, TensorKind):
        # Lists do not know the shapes of their elements, so what the kind states is added here.
        tensor.set_shape(kind.dims)
        return tensor
    return (Sequence if isinstance(kind, SequenceKind) else Optional)(kind.element, tensor)


def standing_for(kind: ValueKind, name: str | None = None) -> Tensor:
    """Return a placeholder for a value of that kind."""
    dims: Dims = kind.dims if isinstance(kind, TensorKind) else ()
    return placeholder(stored_dtype(kind), dims, name=name)


def kind_of(value: Any) -> ValueKind:
    """Return the kind of a value."""
    if isinstance(value, Sequence):
        return SequenceKind(value.element)
    if isinstance(value, Optional):
        return OptionalKind(value.element)
    return TensorKind(value.dtype, value.dims)


def kind_of_type(proto: TypeProto) -> ValueKind | None:
    """Return the kind that a type of ONNX describes, or None if aioflow has no such values."""
    which = proto.WhichOneof("value")
    if which == "tensor_type":
        dtype = dtype_of(proto.tensor_type.elem_type)
        return None if dtype is None else TensorKind(dtype, dims_of_type(proto.tensor_type))
    if which in ("sequence_type", "optional_type"):
        inner = proto.sequence_type if which == "sequence_type" else proto.optional_type
        element = kind_of_type(inner.elem_type)
        if element is not None:
            return SequenceKind(element) if which == "sequence_type" else OptionalKind(element)
    return None


def type_of(kind: ValueKind) -> TypeProto:
    """Return the ONNX type of values of that kind."""
    if isinstance(kind, TensorKind):
        return tensor_type(kind.dtype, kind.dims)
    proto = TypeProto()
    inner = proto.sequence_type if isinstance(kind, SequenceKind) else proto.optional_type
    inner.elem_type.CopyFrom(type_of(kind.element))
    return proto


def widened(one: ValueKind, other: ValueKind) -> ValueKind | None:
    """Return the most specific kind that covers both kinds, or None if they have nothing in common."""
    # A plain value counts as an optional with an element.
    if isinstance(one, OptionalKind) != isinstance(other, OptionalKind):
        one, other = (kind.element if isinstance(kind, OptionalKind) else kind for kind in (one, other))
        inner = widened(one, other)
        return None if inner is None else OptionalKind(inner)
    if isinstance(one, TensorKind) and isinstance(other, TensorKind):
        if one.dtype is not other.dtype:
            return None
        if one.dims is None or other.dims is None or len(one.dims) != len(other.dims):
            return TensorKind(one.dtype, None)
        return TensorKind(one.dtype, tuple(a if a == b else None for a, b in zip(one.dims, other.dims, strict=True)))
    if isinstance(one, TensorKind) or isinstance(other, TensorKind) or type(one) is not type(other):
        return None
    inner = widened(one.element, other.element)
    return None if inner is None else type(one)(inner)
