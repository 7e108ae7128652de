"""Preparation of a subgraph's fetched values for the caller, who may write to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.config import SessionConfig
from aioflow.graph.boundary import ARG, RETVAL
from aioflow.memory.values import Value
from aioflow.runtime.codegen import finish
from aioflow.runtime.frames import DEAD, dead_fetch
from aioflow.runtime.handing_over import Unfinished, is_large, large_bytes

# Returns a value that the caller owns; None if the fetched value is already the caller's.
Finisher: TypeAlias = Callable[[Value], Value] | None


def fetches_of(graph: ClientGraph) -> list[Node]:
    """Return the fetch nodes, in the order of the step's fetches."""
    return sorted((n for n in graph.nodes.values() if n.op == RETVAL), key=lambda n: int(n.attrs["index"]))


def copying(graph: ClientGraph) -> list[Finisher]:
    """Return a finisher for each fetch of a graph whose values may have other holders; None for a fetched feed."""
    edges = [fetch.inputs[0] for fetch in fetches_of(graph)]
    return [None if graph.nodes[e.node].op == ARG else finish(graph.spec(e).dims, owned=False) for e in edges]


class Fetched:
    """The fetches of a subgraph.

    Args:
        graph: The subgraph as it was registered, for messages.
        config: The settings of the session.
        finishers: The finisher of each fetch.
        maybe_dead: Indices of the values that may be DEAD.

    Attributes:
        indices: Indices of these fetches among all fetches of the step, in order.
    """

    def __init__(
        self,
        graph: ClientGraph,
        config: SessionConfig,
        finishers: Sequence[Finisher],
        maybe_dead: Sequence[int] = (),
    ) -> None:
        self._nodes = fetches_of(graph)
        self._makers = [graph.nodes[node.inputs[0].node] for node in self._nodes]
        self._finishers = [(i, finisher) for i, finisher in enumerate(finishers) if finisher is not None]
        self._maybe_dead = tuple(maybe_dead)
        self._large = large_bytes(config.inline_budget)
        self._limit = config.max_value_bytes
        self.indices = tuple(int(node.attrs["index"]) for node in self._nodes)

    def hand_over(self, values: list[Value]) -> list[Value] | Unfinished:
        """Return the values prepared for the caller, in the same list; large copies may remain to be made.

        Raises:
            InvalidArgumentError: a value is dead.
        """
        for index in self._maybe_dead:
            if values[index] is DEAD:
                raise dead_fetch(self._nodes[index])
        large = {}
        for index, finisher in self._finishers:
            value = values[index]
            if is_large(value, self._large):
                # Left to `Unfinished`, because making a large copy here could block the event loop.
                large[index] = self._makers[index]
            else:
                values[index] = finisher(value)
        return Unfinished(values, large, self._limit) if large else values
