"""`gradients`: walk back from ys to xs, and let each node's rule say what flows to its inputs.

The method of TensorFlow (white paper, section 4.1): a node is visited when all its consumers on a path to ys have been,
so that the gradients of a tensor that is read several times are all there to be summed. Nothing recurses, and each
edge is looked at a fixed number of times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from enum import Enum
from typing import Any, TypeAlias

from aioflow.autodiff.paths import find_paths
from aioflow.errors import DTypeError, InternalError, InvalidArgumentError
from aioflow.graph.default_graph import default_graph
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.indexed_slices import IndexedSlices
from aioflow.graph.opdef import lookup_gradient
from aioflow.graph.shapes import format_dims, is_compatible
from aioflow.ops.apply import TensorLike, apply_op, convert_to_tensor
from aioflow.ops.core import tuple_
from aioflow.ops.indexed import convert_to_tensor_or_indexed_slices, sum_gradients

__all__ = ["AggregationMethod", "UnconnectedGradients", "gradients"]

Gradient: TypeAlias = "Tensor | IndexedSlices"


class AggregationMethod:
    """How to sum the gradients of one tensor: accepted, but aioflow always sums them all at once."""

    ADD_N = 0
    DEFAULT = ADD_N
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


class UnconnectedGradients(Enum):
    """What `gradients` returns for an x that ys do not depend on."""

    NONE = "none"
    ZERO = "zero"


def gradients(
    ys: TensorLike,
    xs: TensorLike,
    grad_ys: TensorLike = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: int | None = None,
    stop_gradients: TensorLike = None,
    unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
) -> list[Any]:
    """The derivatives of the sum of `ys` by each of `xs`.

    Args:
        ys, xs: A tensor or variable, or a list of them.
        grad_ys: The gradient that flows into each of `ys`; None, or a None in the list, is all ones.
        colocate_gradients_with_ops: Put each gradient on the device of its node.
        gate_gradients: Give out the gradients of a node only when all of them are computed.
        aggregation_method: Accepted for compatibility: see `AggregationMethod`.
        stop_gradients: Tensors to treat as constants.
        unconnected_gradients: None or zeros for the xs that no y depends on.

    Returns:
        For each x a tensor of its shape, an `IndexedSlices` where x was only gathered from, or None.

    Raises:
        UnimplementedError: a node between has no gradient.
        DTypeError: a y is not numeric, or is complex and has no entry in `grad_ys`.
        InvalidArgumentError: `grad_ys` does not fit `ys`, or a rule returns what does not fit its node.
    """
    unconnected = _unconnected(unconnected_gradients)
    _check_aggregation(aggregation_method)
    y_list, x_list = _listed(ys), _listed(xs)
    seeds = [None] * len(y_list) if grad_ys is None else _listed(grad_ys)
    if len(seeds) != len(y_list):
        raise InvalidArgumentError("grad_ys does not fit ys", expected=f"{len(y_list)} items", actual=len(seeds))
    graph = _graph_of(y_list + x_list)
    with graph.as_default(), graph.name_scope(name or "gradients"):
        outputs = [convert_to_tensor(y, name=f"y_{i}") for i, y in enumerate(y_list)]
        wanted = [_source(x) for x in x_list]
        stop = [_source(t).op for t in ([] if stop_gradients is None else _listed(stop_gradients))]
        starting = [_seed(y, seed, i) for i, (y, seed) in enumerate(zip(outputs, seeds, strict=True))]
        walk = _ReverseWalk(graph, outputs, wanted, stop, colocate_gradients_with_ops, gate_gradients)
        walk.run(starting)
        found = [walk.gradient_of(x) for x in wanted]
        if unconnected is UnconnectedGradients.ZERO:
            return [_zeros(x) if g is None else g for x, g in zip(x_list, found, strict=True)]
        return found


class _ReverseWalk:
    """One call of `gradients`: what has flowed back so far, and which nodes are ready."""

    def __init__(
        self,
        graph: Graph,
        ys: Sequence[Tensor],
        xs: Sequence[Tensor],
        stop: Sequence[Operation],
        colocate: bool,
        gate: bool,
    ) -> None:
        self._graph = graph
        self._ys = ys
        self._colocate = colocate
        self._gate = gate
        self._paths = find_paths([y.op for y in ys], [x.op for x in xs], stop)
        self._parts: dict[Tensor, list[Gradient]] = {}

    def run(self, seeds: Sequence[Gradient]) -> None:
        """Visit every node between, those nearest to ys first."""
        for y, seed in zip(self._ys, seeds, strict=True):
            self._parts.setdefault(y, []).append(seed)
        pending = self._paths.pending
        ready = deque(op for op in self._paths.ends if pending[op] == 0)
        while ready:
            op = ready.popleft()
            self._visit(op)
            for tensor in op.inputs:
                if tensor.op in pending:
                    pending[tensor.op] -= 1
                    if pending[tensor.op] == 0:
                        ready.append(tensor.op)

    def gradient_of(self, x: Tensor) -> Gradient | None:
        """What has flowed to `x`, summed; None where it is not connected."""
        if x.op not in self._paths.pending:
            return None
        return self._summed(x)

    def _visit(self, op: Operation) -> None:
        with ExitStack() as stack:
            if self._colocate:
                stack.enter_context(self._graph.colocate_with(op))
            incoming = [self._summed(t) for t in op.outputs]
            if op in self._paths.stops or all(g is None for g in incoming):
                return
            function = lookup_gradient(op)
            if function is None:
                return
            stack.enter_context(self._graph.name_scope(f"{op.name}_grad"))
            for i, tensor in enumerate(op.outputs):
                if incoming[i] is None and (tensor.dtype.is_floating or tensor.dtype.is_complex):
                    incoming[i] = apply_op("ZerosLike", tensor)
            outgoing = self._needed(op, _as_gradients(op, function(op, *incoming)))
            if self._gate and sum(g is not None for g in outgoing) > 1:
                outgoing = _gated(outgoing)
            for tensor, gradient in zip(op.inputs, outgoing, strict=True):
                if gradient is not None:
                    self._parts.setdefault(tensor, []).append(_fitted(op, tensor, gradient))

    def _needed(self, op: Operation, outgoing: list[Any]) -> list[Any]:
        """The gradients that lead on to xs. The others are let go here, or a gate would have them computed too."""
        return [g if t.op in self._paths.pending else None for t, g in zip(op.inputs, outgoing, strict=True)]

    def _summed(self, tensor: Tensor) -> Gradient | None:
        parts = self._parts.get(tensor)
        if not parts:
            return None
        if len(parts) > 1:
            parts[:] = [sum_gradients(parts)]
        return parts[0]


def _as_gradients(op: Operation, result: Any) -> list[Any]:
    """What a gradient function returned, as one gradient an input."""
    listed = list(result) if isinstance(result, list | tuple) else [result]
    if len(listed) == 1 and listed[0] is None:
        return [None] * len(op.inputs)
    if len(listed) != len(op.inputs):
        raise InternalError(
            f"the gradient of op {op.type!r} does not fit its inputs",
            expected=f"{len(op.inputs)} gradients",
            actual=f"{len(listed)} gradients",
        ).at(op.name, op.type, op.source)
    return [None if g is None else convert_to_tensor_or_indexed_slices(g) for g in listed]


def _fitted(op: Operation, tensor: Tensor, gradient: Gradient) -> Gradient:
    """The gradient, checked against the input that it belongs to, with what is known of the input's shape."""
    if isinstance(gradient, IndexedSlices) or tensor.dtype.name in ("resource", "variant"):
        return gradient
    try:
        gradient.set_shape(tensor.dims)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"the gradient of op {op.type!r} by {tensor.name!r} has the wrong shape",
            expected=format_dims(tensor.dims),
            actual=format_dims(gradient.dims),
        ).at(op.name, op.type, op.source) from error
    return gradient


def _gated(outgoing: Sequence[Gradient | None]) -> list[Gradient | None]:
    """The same gradients, each available only when all are."""
    dense = tuple_([g.values if isinstance(g, IndexedSlices) else g for g in outgoing])
    return [
        IndexedSlices(t, g.indices, g.dense_shape) if isinstance(g, IndexedSlices) else t
        for g, t in zip(outgoing, dense, strict=True)
    ]


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _graph_of(items: Sequence[Any]) -> Graph:
    for item in items:
        graph = getattr(item, "graph", None)
        if isinstance(graph, Graph):
            return graph
    return default_graph()


def _source(x: Any) -> Tensor:
    """The tensor that gradients by `x` flow to: a variable's handle, since every read of the variable passes it."""
    handle = getattr(x, "handle", None)
    return handle if isinstance(handle, Tensor) else convert_to_tensor(x)


def _seed(y: Tensor, given: Any, position: int) -> Gradient:
    """The gradient that flows into `y`."""
    if not y.dtype.is_numeric and not (given is None and y.dtype.is_bool):
        raise _wrong_seed("a y is not numeric", y, "a floating, integer or complex y", y.dtype.name)
    if given is None:
        if y.dtype.is_complex:
            raise _wrong_seed("the gradient of a complex tensor needs grad_ys", y, "an entry in grad_ys", "None")
        ones: Tensor = apply_op("OnesLike", y, name=f"grad_ys_{position}")
        return ones
    hint = None if isinstance(given, Tensor | IndexedSlices) else y.dtype
    seed = convert_to_tensor_or_indexed_slices(given, hint, name=f"grad_ys_{position}")
    if seed.dtype.is_complex != y.dtype.is_complex or not seed.dtype.is_numeric:
        kind = "complex" if y.dtype.is_complex else "floating or integer"
        raise _wrong_seed("grad_ys has the wrong dtype", y, f"a {kind} gradient", seed.dtype.name)
    if isinstance(seed, Tensor) and not is_compatible(seed.dims, y.dims):
        raise InvalidArgumentError(
            "grad_ys has the wrong shape", expected=format_dims(y.dims), actual=format_dims(seed.dims)
        ).at(y.op.name, y.op.type, y.op.source)
    return seed


def _wrong_seed(message: str, y: Tensor, expected: str, actual: str) -> DTypeError:
    error = DTypeError(message, expected=expected, actual=actual)
    error.at(y.op.name, y.op.type, y.op.source)
    return error


def _zeros(x: Any) -> Tensor:
    zeros: Tensor = apply_op("ZerosLike", convert_to_tensor(x))
    return zeros


def _unconnected(value: UnconnectedGradients | str) -> UnconnectedGradients:
    try:
        return UnconnectedGradients(value)
    except ValueError:
        raise InvalidArgumentError(
            "unknown value for unconnected_gradients", expected="'none' or 'zero'", actual=repr(value)
        ) from None


def _check_aggregation(method: int | None) -> None:
    if method not in (None, 0, 1, 2):
        raise InvalidArgumentError(
            "unknown aggregation_method", expected="a constant of AggregationMethod", actual=repr(method)
        )
