"""Graphs of the model under construction: the main graph, and graphs in nodes, which see the values around them.

Nodes are deduplicated: making a node equal to an earlier one returns the earlier one's outputs. Translations can thus
make shapes, casts and transposes wherever they need them. This is safe, since no node made here has an effect.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import defs

from aioflow.graph.dtypes import DType
from aioflow.graph.shapes import Dims
from aioflow.graph.signature.attributes import Attrs
from aioflow.interop.onnx.exporting.types import computed_in, dtype_of_text, is_exportable, schema_text, tensor_type
from aioflow.interop.onnx.exporting.values import Made, ModelGraph, ModelValue
from aioflow.memory.values import Array

_SMALL = 1024  # bytes; equal constants up to this size are shared


class RefusedError(Exception):
    """Raised for a node without translation. The text is the reason."""


@dataclass
class ModelState:
    """State shared by all graphs of one model.

    Attributes:
        opset: Version of the operator set.
        constants: Initializers by name.
        made: Node that makes each value, by the value's name.
        preferred: Final names of values, by their present names.
    """

    opset: int
    constants: dict[str, Array] = field(default_factory=dict)
    made: dict[str, Made] = field(default_factory=dict)
    preferred: dict[str, str] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _nodes: dict[str, int] = field(default_factory=dict)
    _equal: dict[Hashable, ModelValue] = field(default_factory=dict)

    def unique(self, name: str) -> str:
        """Return the name, or a similar one that no value has."""
        return _unique(name, self._names)

    def unique_node(self, name: str) -> str:
        """Return the name, or a similar one that no node has."""
        return _unique(name, self._nodes)

    def reserve(self, name: str) -> str:
        """Reserve a name that must be used exactly as it is."""
        self._names.setdefault(name, 0)
        return name

    def prefer(self, value: str, node: str, port: int) -> None:
        """Name a value and the node that makes it after a node of the original graph.

        Names that are taken, and values that have a preferred name already, stay as they are.
        """
        maker = self.made.get(value)
        if maker is None or value in self.preferred or maker.outputs.index(value) != port:
            return
        name = node if port == 0 else f"{node}:{port}"
        if name not in self._names:
            self.preferred[value] = self.reserve(name)
        if port == 0 and node not in self._nodes:
            maker.name = self.unique_node(node)

    def constant(self, array: Array, dtype: DType, name: str) -> ModelValue:
        """Return a constant of that name, or an equal small constant made earlier."""
        # The bytes distinguish 0.0 from -0.0, and equal NaNs are shared, unlike by `==`.
        key = (dtype.name, array.shape, array.tobytes()) if array.nbytes <= _SMALL and array.dtype != object else None
        if key is not None and key in self._equal:
            return self._equal[key]
        unique = self.unique(name)
        self.constants[unique] = array
        value = ModelValue(unique, dtype, array.shape, array)
        if key is not None:
            self._equal[key] = value
        return value


def _unique(name: str, taken: dict[str, int]) -> str:
    count = taken.get(name)
    if count is None:
        taken[name] = 0
        return name
    # The counter is remembered per name, so that many equal names do not take quadratic time.
    while f"{name}_{count + 1}" in taken:
        count += 1
    taken[name] = count + 1
    return _unique(f"{name}_{count + 1}", taken)


def _text(dtype: DType) -> str:
    if not is_exportable(dtype):
        raise RefusedError(f"no runtime takes {dtype.name}")
    return schema_text(dtype)


class GraphBuilder:
    """One graph of the model under construction.

    Attributes:
        parts: State shared with the other graphs.
        body: The graph.
    """

    def __init__(self, parts: ModelState, name: str, outer: GraphBuilder | None = None) -> None:
        self.parts = parts
        self.body = ModelGraph(name)
        self._outer = outer
        self._known: dict[Hashable, tuple[ModelValue, ...]] = {}

    def input(self, name: str, dtype: DType, dims: Dims = None) -> ModelValue:
        """Add an input to the graph."""
        value = ModelValue(self.parts.unique(name), dtype, dims)
        self.body.inputs.append(value)
        return value

    def make(
        self, op: str, name: str, inputs: Sequence[ModelValue | None], outputs: int, attrs: Attrs, to: DType | None
    ) -> tuple[ModelValue, ...]:
        """Return the outputs of a new node, or of an equal one made earlier.

        Inputs and outputs are cast where onnxruntime's kernels lack their dtype. `to` is the dtype of outputs that only
        attributes determine.

        Raises:
            RefusedError: ONNX or onnxruntime lacks the op for these dtypes.
        """
        schema = defs.get_schema(op, self.parts.opset)
        types = self._types(op, schema, inputs)
        given = [v if v is None else self._as(v, types.get(_formal(schema.inputs, i))) for i, v in enumerate(inputs)]
        kinds = [self._output_type(schema, i, types, to) for i in range(outputs)]
        made = self._add(op, name, given, kinds, attrs)
        # Reversed, so that of several inputs with the same type parameter the first one decides.
        wanted = {_formal(schema.inputs, i): v.dtype for i, v in reversed(list(enumerate(inputs))) if v is not None}
        return tuple(self._as(v, wanted.get(_formal(schema.outputs, i))) for i, v in enumerate(made))

    def _types(self, op: str, schema: defs.OpSchema, inputs: Sequence[ModelValue | None]) -> dict[str, DType]:
        """Return the dtype for each type parameter of the op."""
        found: dict[str, DType] = {}
        for i, value in enumerate(inputs):
            if value is not None:
                found.setdefault(_formal(schema.inputs, i), value.dtype)
        parameters = {str(c.type_param_str): c.allowed_type_strs for c in schema.type_constraints}
        # The first input of Where is its condition; kernels are chosen by the dtype of the values.
        first = _formal(schema.inputs, 1 if op == "Where" else 0)
        # Kernels are chosen by the dtype of one input; other parameters, such as that of indices, need no widening.
        for name, dtype in found.items():
            if name == first:
                chosen = computed_in(op, dtype)
                if chosen is None:
                    raise RefusedError(f"onnxruntime runs {op} on no {dtype.name}")
                found[name] = chosen
            if name in parameters and _text(found[name]) not in parameters[name]:
                raise RefusedError(f"ONNX has {op} for no {dtype.name}")
        return found

    def _output_type(self, schema: defs.OpSchema, index: int, types: dict[str, DType], to: DType | None) -> DType:
        kind = _formal(schema.outputs, index)
        if kind in types:
            return types[kind]
        if kind.startswith("tensor("):
            return dtype_of_text(kind)
        if to is not None:
            return to
        (only,) = next(c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == kind)
        return dtype_of_text(only)

    def _as(self, value: ModelValue, dtype: DType | None) -> ModelValue:
        """Return the value in that dtype."""
        return value if dtype is None or value.dtype is dtype else self.cast(value, dtype)

    def cast(self, value: ModelValue, dtype: DType, is_size: bool = False) -> ModelValue:
        """Return the value in another dtype.

        Args:
            value: The value.
            dtype: The other dtype.
            is_size: Whether its elements fit the other dtype, as sizes do. A cast back then returns `value`.

        Raises:
            RefusedError: ONNX lacks one of the dtypes in this opset.
        """
        if value.dtype is dtype:
            return value
        taken = defs.get_schema("Cast", self.parts.opset).type_constraints[0].allowed_type_strs
        for each in (value.dtype, dtype):
            if _text(each) not in taken:
                raise RefusedError(f"ONNX has no {each.name} in opset {self.parts.opset}")
        if value.constant is not None and value.constant.dtype != object:
            # Overflow is part of the cast's semantics here.
            with np.errstate(all="ignore"):
                array = value.constant.astype(dtype.np_dtype)
            return self.parts.constant(array, dtype, f"{value.name}/{dtype.name}")
        source = self.parts.made.get(value.name)
        origin = None if source is None else source.attrs.get("_size")
        if isinstance(origin, ModelValue) and origin.dtype is dtype:
            return origin.of(value.dims)
        attrs: dict[str, object] = {"to": tensor_type(dtype)}
        if is_size:
            attrs["_size"] = value
        (made,) = self._add("Cast", f"{value.name}/Cast", [value], [dtype], attrs)
        return ModelValue(made.name, dtype, value.dims, None, value.channels_first)

    def nest(
        self, op: str, name: str, inputs: Sequence[ModelValue], kinds: Sequence[DType], attrs: Attrs
    ) -> tuple[ModelValue, ...]:
        """Return the outputs, of dtypes `kinds`, of a new node whose attributes hold graphs."""
        return self._add(op, name, inputs, kinds, attrs)

    def _add(
        self, op: str, name: str, inputs: Sequence[ModelValue | None], kinds: Sequence[DType], attrs: Attrs
    ) -> tuple[ModelValue, ...]:
        while inputs and inputs[-1] is None:  # runtimes do not fuse nodes that have empty names at the end
            inputs = inputs[:-1]
        names = ["" if value is None else value.name for value in inputs]
        # Nodes with graphs are not compared, since their bodies are mutable.
        key = None if any(isinstance(a, ModelGraph) for a in attrs.values()) else (op, *names, len(kinds), _key(attrs))
        found = None if key is None else self._find(key)
        if found is not None:
            return found
        unique = self.parts.unique(name)
        outputs = [unique, *(self.parts.unique(f"{name}:{i}") for i in range(1, len(kinds)))]
        node = Made(op, self.parts.unique_node(name), names, outputs, attrs)
        self.body.nodes.append(node)
        self.parts.made.update(dict.fromkeys(outputs, node))
        made = tuple(ModelValue(output, kind) for output, kind in zip(outputs, kinds, strict=True))
        if key is not None:
            self._known[key] = made
        return made

    def _find(self, key: Hashable) -> tuple[ModelValue, ...] | None:
        # Inner graphs see the values around them, but not the reverse, so only outer scopes are searched.
        scope: GraphBuilder | None = self
        while scope is not None:
            if key in scope._known:
                return scope._known[key]
            scope = scope._outer
        return None


def _formal(formals: Sequence[Any], index: int) -> str:
    """Return the type of the formal parameter at a position. The last parameter may be variadic.

    Arguments of a variadic parameter that allows mixed types have one type each.
    """
    formal = formals[min(index, len(formals) - 1)]
    many = index >= len(formals) - 1 and formal.option.name == "Variadic" and not formal.is_homogeneous
    return f"{formal.type_str}#{index}" if many else str(formal.type_str)


def _key(attrs: Attrs) -> Hashable:
    return tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in attrs.items() if k[0] != "_"))
