"""Traits of ops compared with their kernels: calls of all ops, in all memory layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.compiler.ir import Edge
from aioflow.compiler.optimize.facts import is_elementwise, is_pure_op
from aioflow.errors import OpError
from aioflow.graph import dtypes
from aioflow.graph.graph import Operation, Tensor
from aioflow.graph.opdef import OpDef
from aioflow.graph.shapes import is_compatible
from aioflow.graph.static_value import constant_value
from aioflow.graph.traits import Memory
from aioflow.kernels.resources import ResourceManager
from aioflow.ops.apply import apply_op
from aioflow.runtime.bind import BoundNode, bind_graph, gather
from aioflow.runtime.device import host
from tests.compiler.optimize.fused_runs import pruned
from tests.graph.test_traits import BUILT_IN
from tests.support.random_examples import examples
from tests.sweep.hostile.arguments import Arguments, Array, accepted, implied_attrs, items_of

OPS_TO_TRY = [op.name for op in BUILT_IN if op.made_by == "user" and is_pure_op(op.name) and op.inputs]
_CALLS = examples(12)


def _transposed(value: Any) -> Any:
    return np.ascontiguousarray(value.T).T


def _reversed(value: Any) -> Any:
    back = (slice(None, None, -1),) * value.ndim
    return value[back].copy()[back]


def _with_gaps(value: Any) -> Any:
    room = np.empty([2 * size for size in value.shape], value.dtype)
    part = room[(slice(None, None, 2),) * value.ndim]
    part[...] = value
    return part


def _broadcast(value: Any) -> Any:
    return np.broadcast_to(value[:1], value.shape) if value.shape[0] else value


_LAYOUTS: list[Callable[[Any], Any]] = [np.ascontiguousarray, _transposed, _reversed, _with_gaps, _broadcast]


def _laid_out(value: Any, rng: Random) -> Any:
    """Return the array in another layout. Without axes, return it as the runtime passes it."""
    if not value.ndim:
        return value if value.dtype.hasobject else value[()]
    made = rng.choice(_LAYOUTS)(value)
    made.flags.writeable = False
    return made


@dataclass(frozen=True)
class _Call:
    """A kernel bound to a node, with arguments that it accepts."""

    node: Operation
    bound: BoundNode
    values: dict[Edge, Any]

    @property
    def inputs(self) -> list[Any]:
        return [self.values[edge] for argument in self.bound.arguments for edge in argument.sources]

    def outputs(self, **extra: Any) -> Sequence[Any]:
        with np.errstate(all="ignore"):
            return self.bound.outputs_of(self.bound.call(*gather(self.bound, self.values), **extra))


def _node(arguments: Arguments, of: Callable[[Array], Tensor]) -> Operation:
    implied = implied_attrs(arguments.op_def)
    attrs = {name: value for name, value in arguments.attrs.items() if name not in implied}
    inputs = {
        name: [of(item) for item in value] if isinstance(value, list) else of(value)
        for name, value in arguments.inputs.items()
    }
    graph = af.get_default_graph()
    before = graph.version
    apply_op(arguments.op_def.name, *inputs.values(), name="call", **attrs)
    return next(op for op in graph.get_operations()[before:] if op.type == arguments.op_def.name)


def _call(arguments: Arguments, rng: Random) -> _Call | None:
    """Bind a kernel to a node with these arguments.

    Returns:
        None if the builder or the binding rejects the arguments, or if the kernel takes other inputs than the values.
    """
    feeds: dict[Tensor, Any] = {}

    def fed(item: Array) -> Tensor:
        tensor = af.placeholder(item.dtype, item.value.shape)
        feeds[tensor] = _laid_out(item.value, rng)
        return tensor

    try:
        node = _node(arguments, fed)
        graph = pruned(list(node.outputs), list(feeds))
        bound = next((b for b in bind_graph(graph, host(), ResourceManager(), {}) if b.node.name == node.name), None)
    except OpError:
        return None
    values = list(feeds.values())
    by_edge = {Edge(n.name, 0): values[n.attrs["index"]] for n in graph.nodes.values() if n.op == "_Arg"}
    if bound is None or bound.kernel.takes_step or not {e for a in bound.arguments for e in a.sources} <= set(by_edge):
        return None
    return _Call(node, bound, by_edge)


def _broken(op_def: OpDef, call: _Call, outputs: Sequence[Any]) -> Iterator[str]:
    """Yield the statements about the op that are false for this call."""
    for port, (output, spec) in enumerate(zip(outputs, call.node.outputs, strict=True)):
        if spec.dtype is not dtypes.variant:
            yield from _misplaced(op_def, call, port, output)
            if np.asarray(output).dtype != spec.dtype.np_dtype:
                yield f"dtype: {np.asarray(output).dtype} instead of {spec.dtype.name}"
            if not is_compatible(spec.dims, np.shape(output)):
                yield f"shape: {np.shape(output)} instead of {spec.dims}"
    if not all(map(_same, outputs, call.outputs())):
        yield "another result at the second time"
    if call.bound.kernel.takes_out and isinstance(outputs[0], np.ndarray):
        yield from _miswritten(call, outputs[0])


def _miswritten(call: _Call, expected: Any) -> Iterator[str]:
    if not _same(call.outputs(out=np.empty_like(expected))[0], expected):
        yield "another result in a given buffer"


def _misplaced(op_def: OpDef, call: _Call, port: int, output: Any) -> Iterator[str]:
    """Yield the false statements about the memory and the layout of an output."""
    traits, inputs = op_def.traits, call.inputs
    shared = {i for i, v in enumerate(inputs) if isinstance(output, np.ndarray) and np.shares_memory(output, v)}
    if call.bound.kernel.fresh and shared:
        yield "fresh, but shares memory with an input"
    if traits.memory is not Memory.OWN and shared - {traits.origin(port)}:
        yield f"in the memory of {shared} instead of {traits.origin(port)}"
    in_order = all(np.asarray(v).flags.c_contiguous for v in inputs)
    keeps_order = traits.keeps_row_major or traits.memory is Memory.SAME_ORDER or is_elementwise(op_def.name)
    if (traits.row_major or (keeps_order and in_order)) and not np.asarray(output).flags.c_contiguous:
        yield "not in row-major order"
    if traits.memory is Memory.PASSED and not _same(output, inputs[port]):
        yield "not the input of the same position"


def _broken_constants(arguments: Arguments, call: _Call, outputs: Sequence[Any]) -> Iterator[str]:
    """Yield the false statements made at graph construction, with constants as inputs."""
    values = iter(call.inputs)
    node = _node(arguments, lambda item: af.constant(np.asarray(next(values)), item.dtype))
    for output, tensor in zip(outputs, node.outputs, strict=True):
        known = constant_value(tensor)
        if known is not None and not _same(known, output):
            yield f"known as {known!r}"
        if tensor.dtype is not dtypes.variant and not is_compatible(tensor.dims, np.shape(output)):
            yield f"shape: {np.shape(output)} instead of {tensor.dims}"


def _same(one: Any, other: Any) -> bool:
    first, second = np.asarray(one), np.asarray(other)
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    return first.tolist() == second.tolist() if first.dtype.hasobject else first.tobytes() == second.tobytes()


@pytest.mark.parametrize("op_def", [op for op in BUILT_IN if op.name in OPS_TO_TRY], ids=lambda op: op.name)
def test_kernels_keep_the_traits_of_their_op(op_def: OpDef, graph: af.Graph) -> None:
    for seed in range(_CALLS):
        rng = Random(f"{op_def.name} {seed}")
        arguments = accepted(op_def, rng)
        items = [item for value in arguments.inputs.values() for item in items_of(value)]
        if not all(isinstance(item, Array) and not item.dtype.is_quantized for item in items):
            continue
        call = _call(arguments, rng)
        if call is None:
            continue
        try:
            outputs = call.outputs()
        except (OpError, ValueError, IndexError, TypeError, ArithmeticError):
            continue  # rejected calls are covered by the hostile calls
        problems = [*_broken(op_def, call, outputs), *_broken_constants(arguments, call, outputs)]
        assert problems == [], (seed, arguments)
