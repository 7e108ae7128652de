"""Critical sections: parts of the graph that run one at a time, across all steps that use the section."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

from aioflow.errors import InvalidArgumentError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.graph.opdef import define_op
from aioflow.graph.scopes import current_scope
from aioflow.graph.tensor_like import SupportsTensor
from aioflow.graph.traits import handle, waiting
from aioflow.ops import nest
from aioflow.ops.apply import make, make_op
from aioflow.ops.core import group, identity, origin, scalar
from aioflow.ops.scoping import name_scope

__all__ = ["CriticalSection"]

define_op(
    "MutexV2",
    "",
    "resource: resource",
    ["container: string = ''", "shared_name: string = ''"],
    shape=scalar,
    traits=handle(on_host="it waits on the event loop", is_numeric=False),
)
define_op("MutexLock", "mutex: resource", "mutex_lock: variant", shape=scalar, traits=waiting())
define_op("ConsumeMutexLock", "mutex_lock: variant", "", traits=waiting())
not_differentiable("MutexV2", "MutexLock", "ConsumeMutexLock")

_EXECUTIONS: Final = "__critical_section_executions"


@dataclass(frozen=True)
class _Execution:
    """One `execute`: its section, and the resources that its nodes use."""

    handle: Tensor
    resources: frozenset[Tensor]
    exclusive: bool


class CriticalSection:
    """A lock around a part of the graph. Waiters acquire it in first-come, first-served order.

    The lock is acquired when a node of the part is about to run. It is released when the results are computed, or at
    the latest when the step ends, for whatever reason.

    Args:
        name: Name of the section.
        shared_name: Sections with the same name, in any session of a worker, are the same.
    """

    def __init__(self, name: str | None = None, shared_name: str | None = None) -> None:
        with name_scope(name, "CriticalSection") as scope:
            self._name = scope.rstrip("/")
            container = current_scope(default_graph()).container
            self._handle = make("MutexV2", container=container, shared_name=shared_name or "", name="mutex")

    @property
    def name(self) -> str:
        """The name of the section."""
        return self._name

    @overload
    def execute(
        self,
        fn: Callable[[], Tensor | SupportsTensor],
        exclusive_resource_access: bool = True,
        name: str | None = None,
    ) -> Tensor: ...

    @overload
    def execute(
        self, fn: Callable[[], Operation | None], exclusive_resource_access: bool = True, name: str | None = None
    ) -> Operation: ...

    @overload
    def execute(
        self, fn: Callable[[], object], exclusive_resource_access: bool = True, name: str | None = None
    ) -> Any: ...

    def execute(
        self, fn: Callable[[], object], exclusive_resource_access: bool = True, name: str | None = None
    ) -> object:
        """Return the results of `fn`, computed while no other execution is in the section.

        Args:
            fn: Makes tensors and nodes, or nested lists, tuples and dicts of them. Only the nodes that the results need
                are run.
            exclusive_resource_access: Whether other sections must not use a variable that `fn` uses, since two locks
                around one variable protect nothing.
            name: Name scope of the nodes.

        Raises:
            InvalidArgumentError: `fn` enters this section itself, or uses resources that belong to another one.
        """
        graph = self._handle.graph
        with name_scope(name, "critical_section_execute", [self._handle]):
            lock = make("MutexLock", self._handle)
            # Nodes are only appended to the graph, so the ones that `fn` makes are those from here on.
            before = len(graph.get_operations())
            with graph.control_dependencies([lock]):
                made = fn()
            self._check(graph, graph.get_operations()[before:], exclusive_resource_access)
            # Copies, because `fn` may return tensors that were made outside: those, too, must be computed under the
            # lock.
            with graph.control_dependencies([lock]):
                results = [None if leaf is None else _again(leaf) for leaf in nest.flatten(made)]
            # A result of None stands for no node, so there is nothing to wait for.
            with graph.control_dependencies([r for r in results if r is not None]):
                freed = make_op("ConsumeMutexLock", lock)
            # Readers outside may see the results only after the lock is released, so they get copies that wait for it.
            with graph.control_dependencies([freed]):
                return nest.pack(made, [freed if r is None else _again(r) for r in results])

    def _check(self, graph: Graph, created: Sequence[Operation], exclusive: bool) -> None:
        inside = set(created)
        # Handles pass through Identity and Enter nodes, so two handles are compared by the node that they come from.
        used = {origin(t) for op in created for t in op.inputs if t.dtype is dtypes.resource}
        # Resources that `fn` creates cannot be shared with an earlier section.
        resources = frozenset(t for t in used if t.op not in inside)
        if self._handle in resources:
            raise InvalidArgumentError(
                f"critical section {self.name!r} is entered inside itself, which would deadlock",
                expected="one execute at a time",
                actual="nested execute calls",
            )
        for other in graph.get_collection(_EXECUTIONS):
            shared = resources & other.resources
            # It is enough that one of the two sections asks for exclusive use.
            if shared and other.handle is not self._handle and (exclusive or other.exclusive):
                raise InvalidArgumentError(
                    f"critical section {self.name!r} uses resources of critical section {other.handle.op.name!r}",
                    expected="separate resources, or exclusive_resource_access=False in both",
                    actual=sorted(t.name for t in shared),
                )
        graph.add_to_collection(_EXECUTIONS, _Execution(self._handle, resources, exclusive))


def _again(leaf: Any) -> Operation | Tensor:
    return group(leaf) if isinstance(leaf, Operation) else identity(leaf)
