"""Bind nodes to kernels: from plain data to callables, once for each registered subgraph."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

from aioflow.compiler.ir import ClientGraph, Edge, Node
from aioflow.errors import (
    AioflowError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    ResourceExhaustedError,
    UnknownError,
)
from aioflow.graph.opdef import CONTROL_FLOW, OPS
from aioflow.kernels.registry import KERNELS, ArrayBackend, Binding, Body, Converter, KernelDef

__all__ = ["Argument", "BoundNode", "bind_graph", "gather", "kernel_error", "own"]

_WITHOUT_KERNELS: Final = CONTROL_FLOW | {"_Arg", "_Retval"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel: the outputs it is made of, whether it is a sequence, and its converter to a host
    value.
    """

    sources: tuple[Edge, ...]
    is_sequence: bool
    convert: Converter | None


@dataclass(frozen=True, slots=True)
class BoundNode:
    """A node with the callable that computes it."""

    node: Node
    kernel: KernelDef
    call: Body
    arguments: tuple[Argument, ...]

    @property
    def unpacks(self) -> bool:
        """Whether the callable returns a tuple of outputs rather than one output (or nothing)."""
        outputs = OPS.get(self.node.op).outputs
        return len(outputs) > 1 or any(a.is_sequence for a in outputs)


def bind_graph(graph: ClientGraph, backend: ArrayBackend, resources: Any, state: dict[str, Any]) -> list[BoundNode]:
    """Every node that computes, bound to its kernel, in topological order.

    Raises:
        UnimplementedError: there is no kernel for a node on this kind of device.
    """
    working = (node for node in graph.nodes.values() if node.op not in _WITHOUT_KERNELS)
    return [_bind(node, graph, backend, resources, state) for node in working]


def _bind(node: Node, graph: ClientGraph, backend: ArrayBackend, resources: Any, state: dict[str, Any]) -> BoundNode:
    specs = [graph.spec(edge) for edge in node.inputs]
    binding = Binding(
        node.name,
        node.op,
        node.attrs,
        tuple(s.dtype for s in specs),
        tuple(s.dims for s in specs),
        tuple(s.dtype for s in node.outputs),
        tuple(s.dims for s in node.outputs),
        tuple(_constant(graph, edge) for edge in node.inputs),
        backend,
        resources,
        state,
    )
    try:
        kernel = KERNELS.get(node.op, backend.device_type, node.attrs)
        return BoundNode(node, kernel, kernel.bind(binding), tuple(_arguments(node, kernel)))
    except OpError as error:
        raise error.at(node.name, node.op, node.source) from error.__cause__


def _constant(graph: ClientGraph, edge: Edge) -> Any:
    source = graph.nodes[edge.node]
    return source.attrs["value"] if source.op == "Const" else None


def _arguments(node: Node, kernel: KernelDef) -> list[Argument]:
    found: list[Argument] = []
    position = 0
    for arg in OPS.get(node.op).inputs:
        count = 1
        if arg.number_attr is not None:
            count = node.attrs[arg.number_attr]
        elif arg.list_attr is not None:
            count = len(node.attrs[arg.list_attr])
        found.append(Argument(node.inputs[position : position + count], arg.is_sequence, kernel.host.get(arg.name)))
        position += count
    return found


def own(value: Any) -> Any:
    """A copy that the engine may keep; scalars and handles are immutable and need none."""
    return value.copy() if getattr(value, "ndim", False) else value


def gather(bound: BoundNode, values: Mapping[Edge, Any], fed: Set[Edge]) -> list[Any]:
    """The positional arguments of a kernel, from the values of the outputs that it reads.

    Those in `fed` share memory with what the caller fed; a kernel that keeps its inputs gets copies of them.
    """
    copied = fed if bound.kernel.retains else frozenset[Edge]()
    result: list[Any] = []
    for argument in bound.arguments:
        items = [own(values[edge]) if edge in copied else values[edge] for edge in argument.sources]
        if argument.convert is not None:
            items = [argument.convert(item) for item in items]
        result.append(tuple(items) if argument.is_sequence else items[0])
    return result


# What a kernel may raise, and what it means; the first row that fits decides.
_FOREIGN: tuple[tuple[type[BaseException], type[OpError]], ...] = (
    (MemoryError, ResourceExhaustedError),
    (IndexError, OutOfRangeError),
    (ArithmeticError, InvalidArgumentError),
    (ValueError, InvalidArgumentError),
    (TypeError, InvalidArgumentError),
)


def kernel_error(error: Exception, node: Node) -> OpError:
    """The typed error for whatever a kernel raised, with the node attached."""
    if isinstance(error, OpError):
        return error.at(node.name, node.op, node.source)
    if isinstance(error, AioflowError):
        return UnknownError(str(error)).at(node.name, node.op, node.source)
    kind = next((to for foreign, to in _FOREIGN if isinstance(error, foreign)), UnknownError)
    made = kind(f"{type(error).__name__}: {error}").at(node.name, node.op, node.source)
    made.__cause__ = error
    return made
