"""The event loop of a simulated network: virtual time, simulated connections, and processes that can be paused."""

from __future__ import annotations

import asyncio
import heapq
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

from aioflow.testing.sim_process import PROCESS, SimListener, SimProcess
from aioflow.testing.sim_streams import SimSocket
from aioflow.testing.virtual_clock import VirtualClockLoop


class SimLoop(VirtualClockLoop):
    """One loop for all processes of a network. Code that runs on it finds its process in its context.

    Attributes:
        connect: Connects a process to a listener, given a protocol factory and an address; the network sets it.
    """

    connect: Callable[[SimProcess, Callable[[], Any], tuple[Any, Any]], Awaitable[Any]]
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: int = 0) -> None:
        self._still: dict[SimProcess, list[asyncio.Handle]] = {}
        super().__init__(seed)

    @property
    def process(self) -> object:
        """The process that runs now; outside any, the loop."""
        return PROCESS.get() or self

    def make_task(self, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """Return a new task, registered with its process."""
        task = super().make_task(coroutine, **options)
        context = options.get("context")
        # A task runs in the context given, or in a copy of the current one.
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.started(task)
        return task

    # -- paused processes ----------------------------------------------------------------------------------------------

    def stop_process(self, process: SimProcess) -> None:
        """Pause a process: run none of its callbacks from the next turn of the loop on."""
        self._still.setdefault(process, [])

    def continue_process(self, process: SimProcess) -> None:
        """Resume a process: first its pending callbacks, then its overdue timers."""
        for handle in self._still.pop(process, ()):
            # Timers go back to the heap, where overdue ones fire in the next turn.
            if isinstance(handle, asyncio.TimerHandle):
                heapq.heappush(self._scheduled, handle)
            else:
                self._ready.append(handle)

    def _run_once(self) -> None:
        if self._still:
            self._set_aside()
        super()._run_once()  # type: ignore[misc]  # asyncio's private method; typeshed omits it

    def _set_aside(self) -> None:
        for waiting in (self._ready, self._scheduled):
            of_still = [(handle, _process_of(handle)) for handle in waiting]
            if any(process in self._still for _, process in of_still):
                waiting.clear()
                for handle, process in of_still:
                    held = self._still.get(process) if process is not None else None
                    (waiting if held is None else held).append(handle)  # type: ignore[arg-type]
        # Removing entries breaks the heap's order.
        heapq.heapify(self._scheduled)

    # -- connections ---------------------------------------------------------------------------------------------------

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """Return `host` and `port` as an address, without a lookup: simulated addresses are numeric."""
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        """Connect to a listener of the network. Raises OSError."""
        return await self.connect(_running_process(), protocol_factory, (host, port))

    async def create_server(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        """Listen on a port of the process's host. Raises OSError."""
        process = _running_process()
        if not process.alive or port in process.host.listeners:
            # errno EADDRINUSE
            raise OSError(98, f"port {port} of {process.host.name} is taken, or the process is dead")
        address = (process.host.address, port)
        listener = SimListener(process, port, protocol_factory, (SimSocket(address),), copy_context())
        process.host.listeners[port] = listener
        return listener


def _running_process() -> SimProcess:
    process = PROCESS.get()
    if process is None:
        # errno ENETUNREACH
        raise OSError(101, "no simulated process runs here: start it with SimHost.start")
    return process


def _process_of(handle: asyncio.Handle) -> SimProcess | None:
    # asyncio has no public access to a handle's context, which tells the process.
    return handle._context.get(PROCESS)  # type: ignore[attr-defined,no-any-return]
