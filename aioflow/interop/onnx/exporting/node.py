"""Nodes of the graph during translation, with the methods that make nodes of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn, overload

import numpy as np

from aioflow.compiler.ir import Node as GraphNode
from aioflow.compiler.ir import OutputSpec
from aioflow.graph import dtypes
from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims
from aioflow.interop.onnx.exporting.scope import GraphBuilder, RefusedError
from aioflow.interop.onnx.exporting.values import ModelValue, channels_first_order, channels_last_order
from aioflow.memory.values import Array

_ABSENT: Final = object()


class ExportedNode:
    """A node being translated.

    Attributes:
        op: Name of the op.
        name: Name of the node.
        attrs: Attributes of the node, as in the graph.
        outputs: Dtype and static shape of each output.
        scope: Scope in which nodes of the model are made.
    """

    def __init__(self, node: GraphNode, scope: GraphBuilder) -> None:
        self.op = node.op
        self.name = node.name
        self.attrs = node.attrs
        self.outputs: Sequence[OutputSpec] = node.outputs
        self.scope = scope

    @property
    def dtype(self) -> DType:
        """Dtype of the first output."""
        return self.outputs[0].dtype

    def within(self, name: str) -> ExportedNode:
        """Return the node called `name` in the pattern that this fused node stands for."""
        return ExportedNode(self.attrs[name], self.scope)

    @property
    def opset(self) -> int:
        """Version of ONNX's operator set."""
        return self.scope.parts.opset

    def attr(self, name: str, default: Any = _ABSENT) -> Any:
        """Return an attribute."""
        return self.attrs[name] if default is _ABSENT else self.attrs.get(name, default)

    def refuse(self, why: str) -> NoReturn:
        """Raise RefusedError: this node has no translation."""
        raise RefusedError(why)

    def needs_opset(self, version: int, what: str) -> None:
        """Refuse the node if the model's opset is earlier than `version`."""
        if self.opset < version:
            self.refuse(f"{what} is there from opset {version}, and this is {self.opset}")

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def make(self, op: str, *inputs: ModelValue | None, to: DType | None = None, **attrs: Any) -> ModelValue:
        """Make a node of ONNX's `op` and return its output. See `makes`."""
        return self.makes(op, *inputs, outputs=1, to=to, **attrs)[0]

    def makes(
        self, op: str, *inputs: ModelValue | None, outputs: int, to: DType | None = None, **attrs: Any
    ) -> tuple[ModelValue, ...]:
        """Make a node of ONNX's `op` and return its outputs.

        Args:
            op: ONNX's op.
            *inputs: The inputs. None is an omitted optional input.
            outputs: Number of outputs.
            to: Dtype of outputs that only attributes determine.
            **attrs: Attributes of the node. One that is None is left out.

        Raises:
            RefusedError: ONNX or onnxruntime lacks the op for these dtypes.
        """
        name = self.name if op == self.op else f"{self.name}/{op}"
        given = {key: value for key, value in attrs.items() if value is not None}
        return self.scope.make(op, name, inputs, outputs, given, to)

    def cast(self, value: ModelValue, dtype: DType) -> ModelValue:
        """Return the value in that dtype."""
        return self.scope.cast(value, dtype)

    def int64(self, value: ModelValue) -> ModelValue:
        """Return the value as int64, the dtype of ONNX's shapes, axes and indices."""
        return self.scope.cast(value, dtypes.int64)

    # -- constants -----------------------------------------------------------------------------------------------------

    def const(self, value: Any, dtype: DType = dtypes.int64) -> ModelValue:
        """Return a constant."""
        array = np.asarray(value, dtype.np_dtype)
        return self.scope.parts.constant(array, dtype, f"{self.name}/const")

    def like(self, value: Any, other: ModelValue) -> ModelValue:
        """Return a constant of the dtype of another value."""
        return self.const(value, other.dtype)

    @overload
    def known(self, value: ModelValue, why: str) -> Array: ...
    @overload
    def known(self, value: ModelValue) -> Array | None: ...
    def known(self, value: ModelValue, why: str = "") -> Array | None:
        """Return the constant value. If it is not known, refuse with `why`, or return None without one."""
        if value.constant is None and why:
            self.refuse(why)
        return value.constant

    def rank(self, value: ModelValue) -> int:
        """Return the number of axes. Refuse the node if it is not known."""
        if value.rank is None:
            self.refuse(f"the rank of {value.name!r} is not known")
        return value.rank

    # -- other forms of a value ----------------------------------------------------------------------------------------

    def transposed(self, value: ModelValue, order: Sequence[int]) -> ModelValue:
        """Return the value with its axes in another order."""
        if list(order) == list(range(len(order))):
            return value
        dims = None if value.dims is None else tuple(value.dims[i] for i in order)
        if value.constant is not None:
            # Constants are transformed here, so the model contains neither the original nor the node.
            return self._constant(value, np.ascontiguousarray(value.constant.transpose(order)), "Transpose")
        # A transpose of a transpose becomes a single one of the original value.
        source = self.scope.parts.made.get(value.name)
        if source is not None and source.op == "Transpose" and "_from" in source.attrs:
            first: ModelValue = source.attrs["_from"]
            return self.transposed(first, [source.attrs["perm"][i] for i in order])
        # `_from` records the input, so that a following transpose can start from it.
        made = self.scope.make(
            "Transpose", f"{value.name}/Transpose", [value], 1, {"perm": list(order), "_from": value}, None
        )
        return made[0].of(dims)

    def rows(self, value: ModelValue) -> ModelValue:
        """Return the value in the graph's own layout."""
        if not value.channels_first:
            return value
        # `dims` of a channels-first value are those of the graph's layout; a plain value states its own.
        plain = ModelValue(value.name, value.dtype, self._first_dims(value))
        return self.transposed(plain, channels_last_order(self.rank(value))).of(value.dims)

    def first(self, value: ModelValue, channels_first: bool = False) -> ModelValue:
        """Return the value with its channels first, as ONNX's convolutions expect it, as a plain value of the model.

        Args:
            value: The value.
            channels_first: Whether the graph itself has the channels first.
        """
        if channels_first:
            return value
        if value.channels_first:
            return ModelValue(value.name, value.dtype, self._first_dims(value))
        return self.transposed(value, channels_first_order(self.rank(value)))

    def last(self, value: ModelValue, channels_first: bool) -> ModelValue:
        """Return a result that has its channels first as the first output. It is transposed only where needed."""
        # Only marked: consumers that accept any layout never need the transpose.
        return ModelValue(value.name, value.dtype, self.outputs[0].dims, None, not channels_first)

    def _first_dims(self, value: ModelValue) -> Dims:
        return None if value.dims is None else tuple(value.dims[i] for i in channels_first_order(len(value.dims)))

    def reshaped(self, value: ModelValue, shape: ModelValue | Sequence[int]) -> ModelValue:
        """Return the value in another shape, in which -1 is the inferred size and 0 means no elements."""
        if not isinstance(shape, ModelValue):
            if value.constant is not None:
                return self._constant(value, value.constant.reshape(tuple(shape)), "Reshape")
            shape = self.const(list(shape))
        # By default, a 0 stands for the size of the input's axis in ONNX.
        zero = shape.constant is None or 0 in shape.constant
        return self.make("Reshape", value, self.int64(shape), allowzero=1 if zero else None)

    def unsqueezed(self, value: ModelValue, axes: Sequence[int]) -> ModelValue:
        """Return the value with new axes of size 1, given by their positions in the result."""
        if not axes:
            return value
        if value.constant is not None:
            return self._constant(value, np.expand_dims(value.constant, tuple(axes)), "Unsqueeze")
        return self.make("Unsqueeze", value, self.const(list(axes)))

    def squeezed(self, value: ModelValue, axes: Sequence[int]) -> ModelValue:
        """Return the value without axes of size 1."""
        if not axes:
            return value
        if value.constant is not None:
            return self._constant(value, np.squeeze(value.constant, tuple(axes)), "Squeeze")
        return self.make("Squeeze", value, self.const(list(axes)))

    def sliced(self, value: ModelValue, begin: int, end: int, axis: int = 0, step: int = 1) -> ModelValue:
        """Return a slice along one axis."""
        bounds = (self.const([n]) for n in (begin, end, axis, step))
        return self.make("Slice", value, *bounds)

    def joined(self, values: Sequence[ModelValue], axis: int = 0) -> ModelValue:
        """Return the concatenation of values along an axis."""
        return values[0] if len(values) == 1 else self.make("Concat", *values, axis=axis)

    def shape_of(self, value: ModelValue) -> ModelValue:
        """Return the shape as int64 [rank]."""
        if value.is_static:
            return self.const(list(value.dims or ()))
        return self.make("Shape", value)

    def size_of(self, value: ModelValue, axis: int) -> ModelValue:
        """Return one size as int64 [1]. `axis` must not be negative."""
        if value.dims is not None and value.dims[axis] is not None:
            return self.const([value.dims[axis]])
        return self.make("Shape", value, start=axis, end=axis + 1)

    def vector(self, value: ModelValue) -> ModelValue:
        """Return a scalar or vector as int64 [n]."""
        return self.int64(self.reshaped(value, [-1]) if value.rank != 1 else value)

    def scalar(self, value: ModelValue) -> ModelValue:
        """Return a value of one element as a scalar."""
        return value if value.rank == 0 else self.reshaped(value, [])

    def _constant(self, value: ModelValue, array: Array, how: str) -> ModelValue:
        return self.scope.parts.constant(array, value.dtype, f"{value.name}/{how}")
