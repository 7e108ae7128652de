"""Iteration over a dataset outside of a graph, by `async for`."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from aioflow.data import structures
from aioflow.data.building import Described
from aioflow.data.iterator import initializable_iterator
from aioflow.errors import FailedPreconditionError, InternalError, OutOfRangeError
from aioflow.graph.graph import Graph
from aioflow.kernels.data.iterators import IteratorResource
from aioflow.kernels.function.py_func import read_only
from aioflow.session.session import Session


class DatasetIterator:
    """An async iterator over the elements of a dataset: NumPy values in the structure of an element.

    It runs the functions of the dataset in a session of its own. Use it as `async with aiter(dataset) as elements`, or
    in `async for`; then its tasks are stopped when it is garbage collected. It may be used by one task at a time.
    """

    def __init__(self, dataset: Described) -> None:
        self._dataset = dataset
        self._session: Session | None = None
        self._resource: IteratorResource | None = None
        self._sought: str | None = None
        self._closed = False
        self._turn = asyncio.Lock()

    def __aiter__(self) -> DatasetIterator:
        return self

    async def __aenter__(self) -> DatasetIterator:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def __anext__(self) -> Any:
        """Return the next element. Raise StopAsyncIteration at the end.

        Raises:
            OpError: the element cannot be made. The next call continues after it.
        """
        resource = self._resource
        if resource is None:
            async with self._turn:
                resource = await self._begin()
        try:
            element, _ = resource.try_next() or await resource.next()
        except OutOfRangeError:
            await self.aclose()
            raise StopAsyncIteration from None
        return structures.pack(self._dataset.element_spec, [read_only(value) for value in element])

    async def _begin(self) -> IteratorResource:
        if self._closed:
            raise StopAsyncIteration
        if self._resource is None:
            graph = self._dataset.graph or Graph()
            with graph.as_default(), graph.name_scope("iteration"), graph.control_dependencies(None):
                iterator = initializable_iterator(self._dataset)
            session = Session(graph=graph)
            self._session = session
            await session.run(iterator.initializer)
            self._resource = _resource_of(session, iterator.handle.op.name)
            # A finalizer may run in any thread; `stop` is thread-safe.
            weakref.finalize(self, self._resource.stop).atexit = False
            if self._sought is not None:
                await self._resource.seek(self._sought)
        return self._resource

    def state(self) -> bytes:
        """Return the position: after the element that was returned last. It is plain text."""
        if self._resource is None:
            return (self._sought or "").encode()
        return self._resource.position().encode()

    async def restore(self, state: bytes) -> None:
        """Continue at a position, with the next element.

        Raises:
            FailedPreconditionError: the iterator is closed.
            DataLossError: it is no position of this dataset.
        """
        if self._closed:
            raise FailedPreconditionError("the iterator is closed", expected="an open iterator", actual="closed")
        self._sought = state.decode() or None
        if self._resource is not None and self._sought is not None:
            await self._resource.seek(self._sought)

    async def aclose(self) -> None:
        """Stop all stages, and wait for their tasks. The iterator then ends."""
        self._closed = True
        resource, self._resource = self._resource, None
        session, self._session = self._session, None
        if resource is not None:
            await resource.close()
        if session is not None:
            await session.close()


def _resource_of(session: Session, name: str) -> IteratorResource:
    for device in session.worker.devices.values():
        found = device.resources.find("", name)
        if isinstance(found, IteratorResource):
            return found
    raise InternalError(f"the session has no iterator {name!r}")
