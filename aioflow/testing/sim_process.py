"""Hosts and processes of a simulated network. A host keeps its address and its disk; each start is a new process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from aioflow.testing.sim_streams import SimTransport
from aioflow.testing.sim_trace import Trace

PROCESS: Final[ContextVar[SimProcess | None]] = ContextVar("PROCESS", default=None)

T = TypeVar("T")

SimProgram: TypeAlias = Callable[[], Coroutine[object, object, Any]]


@dataclass(eq=False)
class SimListener:
    """The part of `asyncio.Server` that comms use."""

    process: SimProcess
    port: int
    accept: Callable[[], Any]
    sockets: tuple[Any, ...]
    context: Context

    async def start_serving(self) -> None:
        """Do nothing: the listener accepts from the start."""

    def close(self) -> None:
        """Stop listening."""
        if self.process.host.listeners.get(self.port) is self:
            del self.process.host.listeners[self.port]


class SimProcess:
    """One start of a program on a host.

    Attributes:
        context: Context of the program and of all that it starts.
        tasks: The unfinished tasks.
        ends: The process's ends of open connections.
        alive: Whether the process has not been killed.
    """

    def __init__(self, host: SimHost, number: int) -> None:
        self.host = host
        self.host_name = host.name
        self.name = host.name if number == 1 else f"{host.name}#{number}"
        self.number = number
        # Dictionaries as ordered sets: the order of a set of objects depends on their addresses.
        self.tasks: dict[asyncio.Task[object], None] = {}
        self.ends: dict[SimTransport, None] = {}
        self.alive = True
        self.silent_ends: list[SimTransport] = []
        self.context = copy_context()
        # All that the program starts inherits this context, and with it the process.
        self.context.run(PROCESS.set, self)

    def note(self, kind: str, label: object) -> None:
        """Record an event of this process in the trace."""
        self.host.trace.add(self.name, kind, label)

    def started(self, task: asyncio.Task[object]) -> None:
        """Register a task as one of this process."""
        self.tasks[task] = None
        # In an empty context, so that the callback runs even while this process is paused.
        task.add_done_callback(lambda task: self.tasks.pop(task, None), context=Context())

    def kill(self, silent: bool) -> None:
        """Kill the process at once: none of its output reaches the network or its disk any more.

        Its tasks are cancelled, so that none of them is left in the simulation.

        Args:
            silent: The whole host is gone: peers receive nothing. Otherwise the host's system closes the connections.
        """
        self.alive = False
        # First, so that no peer connects to a dying process.
        self.host.listeners.clear()
        ends = list(self.ends)
        if silent:
            self.silent_ends = ends
        for end in ends:
            end.cut(silent, ConnectionAbortedError("the process was killed"))
        # Tasks are removed from the dictionary as they end.
        for task in list(self.tasks):
            task.cancel()

    async def ended(self) -> None:
        """Wait until the process has no tasks left. Cancel tasks again that dying tasks have started."""
        while self.tasks:
            # Not all at once: a dying task may start others, which the loop below cancels.
            await asyncio.wait([next(iter(self.tasks))], timeout=1.0)
            if not self.alive:
                for task in list(self.tasks):
                    task.cancel()


class SimHost:
    """A machine.

    Args:
        group: Owner of the tasks of its programs.
        trace: Events of the network.
        name: Name of the host.
        number: Number of the host, which determines its address.
        disk: Folder of this host, or None if the network has no disks.

    Attributes:
        address: An address of the loopback network, which has enough of them.
        process: The process that was started last; None before the first start.
        down: Whether the host itself is switched off.
        disk_error: The `errno` with which writes to its disk fail, or None.
        paused_at: Virtual time at which its process was paused, or None.
        stood_still: Seconds for which its processes were paused before.
    """

    def __init__(self, group: asyncio.TaskGroup, trace: Trace, name: str, number: int, disk: Path | None) -> None:
        self.trace = trace
        self._group = group
        self.name = name
        # 250 hosts per /24 network, without 0 and 255; 62 500 = 250 · 250.
        self.address = f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"
        self.disk = disk
        self.process: SimProcess | None = None
        self.listeners: dict[int, SimListener] = {}
        self.down = False
        self.disk_error: int | None = None
        self.paused_at: float | None = None
        self.stood_still = 0.0
        self._program: SimProgram | None = None
        self._name = ""
        self._starts = 0
        # Above the ports at which servers listen.
        self._port = 40_000

    def next_port(self) -> int:
        """Return an unused port for the near end of a connection."""
        self._port += 1
        return self._port

    def start(self, program: Callable[[], Coroutine[object, object, T]], name: str = "main") -> asyncio.Task[T]:
        """Run a program as a new process, or as one more task of the running process.

        `restart` runs the program that started the process.
        """
        if self.process is None or not self.process.alive:
            self._starts += 1
            self.process = SimProcess(self, self._starts)
            self._program, self._name = program, name
            self.down = False
        # A copy per program: context variables that one sets are not seen by another.
        return self._group.create_task(program(), name=f"{self.name}: {name}", context=self.process.context.copy())

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function in the host's process and return its result."""

        async def program() -> T:
            return await work()

        return await self.start(program)

    async def again(self) -> asyncio.Task[Any]:
        """Start the program again, once the killed process has no tasks left."""
        if self.process is None or self._program is None:
            raise RuntimeError(f"nothing has run on {self.name} yet")
        before = self.process
        await before.ended()
        # The host is up again and does not know these connections: it answers data of its peers with resets.
        for end in before.silent_ends:
            end.answer()
        return self.start(self._program, self._name)
