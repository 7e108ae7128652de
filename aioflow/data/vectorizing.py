"""Functions of many elements at once, derived from functions of one element.

A function is derived only if each of its ops computes the rows of a batch independently, and gives each row the bits
that it gives a single element. Otherwise elements are mapped one by one. The stage also falls back to that if the
derived function fails, so that an error keeps its place and later elements are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from aioflow.data.building import Traced
from aioflow.errors import OpError
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import traits_of
from aioflow.graph.static_value import constant_value
from aioflow.ops.apply import constant_of, make, make_list, make_op
from aioflow.ops.function.body import Function
from aioflow.ops.function.tracing import TensorSpec, trace


class _CannotVectorizeError(Exception):
    """A node of the function cannot compute several rows."""


def vectorized(traced: Traced) -> Function | None:
    """Return the function of batches of elements, or None if it cannot be derived."""
    function = traced.function
    if function.captured or function.effects or function.body.waits:
        return None
    specs = [
        TensorSpec(None if t.dims is None else (None, *t.dims), t.dtype, f"rows_{i}")
        for i, t in enumerate(function.arguments)
    ]
    try:
        concrete = trace(
            function.graph,
            f"{function.name}_rows",
            lambda values: _Rows(function, values).results(),
            specs,
            [f"rows_{i}" for i in range(len(specs))],
        )
    except (_CannotVectorizeError, OpError):  # such as an op that does not broadcast
        return None
    return concrete.function


class _Rows:
    """The nodes of a function, made again for batches."""

    def __init__(self, function: Function, arguments: Sequence[Any]) -> None:
        self._function = function
        self._made: dict[Tensor, Tensor] = dict(zip(function.arguments, arguments, strict=True))
        self._constants: dict[Tensor, Tensor] = {}

    def results(self) -> list[Tensor]:
        """Make the nodes and return the results."""
        given = {t.op for t in self._function.arguments}
        for op in list(self._function.body.nodes.values()):
            if op in given:
                continue
            value = constant_value(op.outputs[0]) if len(op.outputs) == 1 else None
            if value is not None:
                self._constants[op.outputs[0]] = constant_of(value)
            else:
                self._add(op)
        if any(t not in self._made for t in self._function.outputs):
            # A constant result would have no rows.
            raise _CannotVectorizeError
        return [self._made[t] for t in self._function.outputs]

    def _add(self, op: Operation) -> None:
        traits = traits_of(op.type)
        if traits.effect.is_stateful or op.control_inputs or not any(t in self._made for t in op.inputs):
            raise _CannotVectorizeError
        rule = _RULES.get(op.type) or _KINDS.get(traits.kind)
        if rule is None:
            raise _CannotVectorizeError
        inputs = [self._made.get(t) for t in op.inputs]
        found = rule(op, inputs, [self._constants.get(t) for t in op.inputs])
        self._made.update(zip(op.outputs, found, strict=True))


_Inputs = Sequence[Tensor | None]


def _elementwise(op: Operation, rows: _Inputs, constants: _Inputs) -> Sequence[Tensor]:
    """Make an elementwise node. Operands of lower rank than the result would be broadcast along another axis."""
    rank = op.outputs[0].shape.ndims
    operands = []
    for source, mine, constant in zip(op.inputs, rows, constants, strict=True):
        found = constant if mine is None else mine
        if found is None or rank is None or (mine is not None and source.shape.ndims != rank):
            raise _CannotVectorizeError
        operands.append(found)
    attrs = {key: value for key, value in op.attrs.items() if not key.startswith("_")}
    made: Sequence[Tensor] = make_op(op.type, *operands, **attrs).outputs
    return made


def _same(op: Operation, rows: _Inputs, constants: _Inputs) -> Sequence[Tensor]:
    """Pass the rows on."""
    if any(each is None for each in rows):
        raise _CannotVectorizeError
    return [each for each in rows if each is not None]


def _reshaped(op: Operation, rows: _Inputs, constants: _Inputs) -> Sequence[Tensor]:
    """Reshape each row. The stage checks that the number of rows is still that of the elements."""
    dims = op.outputs[0].dims
    if rows[0] is None or any(rows[1:]) or dims is None or None in dims or 0 in dims:
        raise _CannotVectorizeError
    return [make("Reshape", rows[0], np.array([-1, *dims], np.int32))]


def _decoded(op: Operation, rows: _Inputs, constants: _Inputs) -> Sequence[Tensor]:
    """Decode strings of one length; the node fails for others."""
    return [
        make("DecodeRaw", rows[0], out_type=op.attrs["out_type"], little_endian=op.attrs["little_endian"]),
    ]


def _parsed(op: Operation, rows: _Inputs, constants: _Inputs) -> Sequence[Tensor]:
    """Parse many messages in one node."""
    attrs = op.attrs
    defaults: list[Any] = list(constants[1:])
    if attrs["num_sparse"] or rows[0] is None or any(each is None for each in defaults):
        raise _CannotVectorizeError
    if any(dims is None or None in dims for dims in attrs["dense_shapes"]):
        raise _CannotVectorizeError
    return make_list(
        "ParseExample",
        rows[0],
        [],
        [],
        [key.decode() if isinstance(key, bytes) else key for key in attrs["dense_keys"]],
        defaults,
        sparse_types=(),
        dense_shapes=attrs["dense_shapes"],
    )


_Rule = Callable[[Operation, _Inputs, _Inputs], Sequence[Tensor]]
_RULES: Final[dict[str, _Rule]] = {"DecodeRaw": _decoded, "ParseSingleExample": _parsed}
_KINDS: Final[dict[str, _Rule]] = {"elementwise": _elementwise, "passes_on": _same, "reshapes": _reshaped}
