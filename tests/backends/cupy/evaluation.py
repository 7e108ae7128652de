"""Evaluation of tensors on a backend other than the CPU's, node by node; nodes without a kernel there run on the CPU.

Every test of an op that uses `aioflow.testing.evaluate` can run on a fake device this way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.compiler.prune import StepRequest, prune
from aioflow.graph.arrays import to_array
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import OPS
from aioflow.kernels.registry import KERNELS, Binding
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.bind import BoundNode, bind_graph, converter
from aioflow.runtime.device import host
from aioflow.runtime.executor import shared_threads
from aioflow.runtime.reference import ReferenceExecutor
from aioflow.runtime.step import Step

__all__ = ["evaluator"]


def evaluator(backend: Any, ran: Callable[[Node, int], None] | None = None) -> Callable[..., list[Any]]:
    """Return a function like `aioflow.testing.evaluate` for the given backend.

    Args:
        backend: An array backend with a `bind`.
        ran: Called with each node that ran on the backend's device, and how often the host waited in it.
    """

    def evaluate(
        fetches: Sequence[Tensor],
        feeds: Mapping[Tensor, Any] | None = None,
        *,
        targets: Sequence[Any] = (),
        resources: ResourceManager | None = None,
        state: dict[str, Any] | None = None,
    ) -> list[np.ndarray[Any, Any]]:
        fed = dict(feeds or {})
        graph = prune(StepRequest(tuple(fed), tuple(fetches), tuple(targets)))
        bound = _bind(graph, backend, resources or ResourceManager(), {} if state is None else state, ran)
        values = [_in(backend.xp, to_array(value, tensor.dtype)) for tensor, value in fed.items()]
        step = Step()
        runner = ReferenceExecutor(graph, bound, shared_threads("-evaluate", 1))
        found: list[np.ndarray[Any, Any]] = []

        # No result is returned: `asyncio.run` would format it as text.
        async def run() -> None:
            found.extend(np.asarray(_out(backend, v)) for v in await runner.run(values, step))

        try:
            asyncio.run(run())
        finally:
            step.finish()
        return found

    return evaluate


def _bind(graph: ClientGraph, backend: Any, resources: Any, state: dict[str, Any], ran: Any) -> list[BoundNode]:
    """Bind each node of a graph to the device if it has a kernel there, otherwise to the CPU."""
    on_cpu = bind_graph(graph, host(), resources, state.setdefault("/cpu", {}))
    return [_bound(b, graph, backend, resources, state, ran) for b in on_cpu]


def _bound(
    cpu: BoundNode, graph: ClientGraph, backend: Any, resources: Any, state: dict[str, Any], ran: Any
) -> BoundNode:
    node = cpu.node
    kernel = KERNELS.find(node.op, backend.device_type, node.attrs)
    if kernel is None:
        return replace(cpu, call=_around(cpu.call, lambda v: _out(backend, v), lambda made: _in(backend.xp, made)))
    specs = [graph.spec(edge) for edge in node.inputs]
    constants = (graph.nodes[edge.node] for edge in node.inputs)
    binding = Binding(
        node.name,
        node.op,
        node.attrs,
        tuple(s.dtype for s in specs),
        tuple(s.dims for s in specs),
        tuple(s.dtype for s in node.outputs),
        tuple(s.dims for s in node.outputs),
        tuple(c.attrs["value"] if c.op == "Const" else None for c in constants),
        backend,
        resources,
        state,
    )
    kernel, call = backend.bind(kernel, binding)
    converters = [converter(kernel, arg.name, backend) for arg in OPS.get(node.op).inputs]
    arguments = tuple(replace(a, convert=c) for a, c in zip(cpu.arguments, converters, strict=True))
    if ran is not None:
        call = _watched(call, node, backend, ran)
    return replace(cpu, kernel=kernel, call=call, arguments=arguments)


def _watched(call: Any, node: Node, backend: Any, ran: Any) -> Any:
    def watched(*args: Any) -> Any:
        before = backend.waited
        made = call(*args)
        ran(node, backend.waited - before)
        return made

    return watched


def _around(call: Any, before: Callable[[Any], Any], after: Callable[[Any], Any]) -> Any:
    def around(*args: Any) -> Any:
        made = call(*(before(a) for a in args))
        return made if hasattr(made, "__await__") else after(made)

    return around


def _in(xp: Any, value: Any) -> Any:
    """Convert a value as the transfer to the device does; strings and handles are unchanged."""
    if isinstance(value, tuple):
        return tuple(_in(xp, v) for v in value)
    numeric = isinstance(value, np.ndarray | np.generic) and value.dtype != object
    return xp.asarray(value) if numeric else value


def _out(backend: Any, value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_out(backend, v) for v in value)
    return backend.on_host(value)
