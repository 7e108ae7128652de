"""Function bodies that kernels run, either as a separate step or within the calling step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np

from aioflow.compiler.ir import ClientGraph
from aioflow.graph.dtypes import DType
from aioflow.memory.copying import copied
from aioflow.memory.values import Value
from aioflow.ops.fused import ORIGINS
from aioflow.runtime.step import Step

_WHERE: Final = frozenset({*ORIGINS, "_class"})  # attributes for the placement and the origin of a node


class Runnable(Protocol):
    """A registered subgraph; see `Executable`."""

    async def run(self, feeds: Sequence[Value], step: Step) -> list[Value]:
        """Run one step and return its fetches in order. Raises OpError."""

    def call(self, feeds: Sequence[Value], step: Step | None) -> list[Value]:
        """Run one step in this thread as a part of `step`, and return its fetches in order. Raises OpError."""

    @property
    def is_callable(self) -> bool:
        """True if `call` is available."""


class Body:
    """A body that is ready to run. Implements `BodySteps`.

    Args:
        graph: The graph as it was registered.
        executable: The executable of that graph.
    """

    def __init__(self, graph: ClientGraph, executable: Runnable) -> None:
        self._executable = executable
        self.is_repeatable = not graph.changes
        self.is_callable = executable.is_callable
        self.digest = _digest(graph)

    async def run(self, values: Sequence[Value]) -> list[Value]:
        """Run the body as a separate step and return its results."""
        step = Step(describe=lambda: "the step of a function")
        try:
            return await self._executable.run(values, step)
        finally:
            step.finish()

    def call(self, values: Sequence[Value], step: Step | None) -> list[Value]:
        """Run the body as a part of `step` and return its results.

        Raises:
            InternalError: the body has branches, loops or async nodes.
        """
        return _new(self._executable.call(values, step), values)


def _new(results: Sequence[Any], values: Sequence[Value]) -> list[Value]:
    """Return the results, each in its own memory, shared neither with an argument nor with a constant."""
    held = {id(value) for value in values}
    made: list[Value] = []
    for result in results:
        is_array = isinstance(result, np.ndarray)
        # A base shows a view, a read-only array may be a constant, and `held` contains arguments and earlier results.
        is_shared = is_array and (result.base is not None or not result.flags.writeable or id(result) in held)
        held.add(id(result))
        made.append(copied(result) if is_shared else result)
    return made


def _digest(graph: ClientGraph) -> bytes:
    """Return a digest that is equal for bodies of the same nodes, in whichever step or session's graph they are."""
    found = hashlib.blake2b(digest_size=16)
    for part in _described(graph):
        found.update(part)
    return found.digest()


def _described(graph: ClientGraph) -> Iterator[bytes]:
    """Yield everything that the body's results may depend on.

    Nodes are identified by position, because names and source lines depend on where the body is.
    """
    numbers = {name: number for number, name in enumerate(graph.nodes)}
    yield _text((graph.feeds, graph.fetches, [numbers[target] for target in graph.targets]))
    for node in graph.nodes.values():
        inputs = [(numbers[edge.node], edge.port) for edge in node.inputs]
        keys = sorted(key for key in node.attrs if key not in _WHERE)
        yield _text((node.op, inputs, [numbers[name] for name in node.control], keys))
        yield from _of_each(node.attrs[key] for key in keys)


def _of_each(values: Iterable[object]) -> Iterator[bytes]:
    for value in values:
        if isinstance(value, ClientGraph):
            yield from _described(value)
        elif isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            yield _text((array.dtype.str, array.shape))
            # The bytes of an object array are pointers, so use its items.
            yield _text(array.tolist()) if array.dtype.hasobject else array.tobytes()
        elif isinstance(value, tuple | list):
            # The length marks where a nested sequence ends.
            yield _text(len(value))
            yield from _of_each(value)
        else:
            yield _text(value.name if isinstance(value, DType) else value)


def _text(value: object) -> bytes:
    return repr(value).encode() + b"\n"
