"""The stored tensors of a session: reading and deleting them by steps of a graph of their own."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from aioflow.config import SessionConfig
from aioflow.errors import OpError
from aioflow.graph.dtypes import DType
from aioflow.graph.graph import Graph, Operation, Tensor
from aioflow.memory.values import Value
from aioflow.ops.session_tensors import delete_session_tensor, device_of, get_session_tensor
from aioflow.runtime.cluster import Cluster
from aioflow.session.planner import Planner
from aioflow.session.prepared import StepCache
from aioflow.session.running import SessionSteps
from aioflow.session.tensor_handle import TensorHandle


class SessionHandles:
    """Makes the handles of a session's stored tensors, and runs the steps that they need.

    These steps are of a graph of its own, so that a session's graph may be finalized.
    """

    def __init__(
        self, cluster: Cluster, planner: Planner, session: int, config: SessionConfig, running: SessionSteps
    ) -> None:
        self._graph = Graph()
        self._cache = StepCache(self._graph, cluster, planner, session, config)
        self._running = running
        self._readers: dict[tuple[str, DType], tuple[Tensor, Tensor]] = {}
        self._deleters: dict[str, tuple[Tensor, Operation]] = {}
        self._dead: deque[str] = deque()

    async def made(self, handle: str, dtype: DType) -> TensorHandle:
        """Return the handle of a tensor that a step has stored, after deleting tensors whose handles are gone."""
        made = TensorHandle(handle, dtype, self)
        while self._dead:
            with suppress(OpError):  # the worker has restarted, or the program has deleted the tensor itself
                await self.delete(self._dead.popleft())
        return made

    async def read(self, handle: str, dtype: DType) -> Value:
        """Return the value of a stored tensor. Raises InvalidArgumentError if it does not exist."""
        key = device_of(handle), dtype
        if key not in self._readers:
            with self._graph.as_default():
                self._readers[key] = get_session_tensor(handle, dtype)
        return await self._run(*self._readers[key], handle)

    async def delete(self, handle: str) -> None:
        """Delete a stored tensor. Raises InvalidArgumentError if it does not exist."""
        device = device_of(handle)
        if device not in self._deleters:
            with self._graph.as_default():
                self._deleters[device] = delete_session_tensor(handle)
        await self._run(*self._deleters[device], handle)

    def discard(self, handle: str) -> None:
        """Delete a stored tensor when the next one is stored. Callable in any thread."""
        self._dead.append(handle)

    def close(self) -> None:
        """Forget all steps, whose kernels keep the stored tensors."""
        self._cache.close()

    async def _run(self, holder: Tensor, fetch: Tensor | Operation, handle: str) -> Value:
        prepared = await self._cache.prepare(fetch, {holder: handle})
        return await self._running.at_once(prepared, await prepared.convert([handle]))
