"""Common parts of the simulated clusters: clients that retry, faults, and a check that nothing is left at the end."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aioflow as af
from aioflow.errors import FailedPreconditionError, OpError
from aioflow.testing.sim_cluster import SIMULATED, SimCluster
from aioflow.testing.sim_faults import FaultSchedule
from aioflow.testing.sim_net import SimNet, simulate

PATIENCE: Final = 4.0  # seconds that a call may take beyond its time limit
RECOVERY: Final = 30.0  # seconds after the last fault until everything works again
QUIET: Final = 130.0  # seconds after the last session was closed until its traces are gone

Scene = Callable[[SimNet], Coroutine[Any, Any, Any]]


class Violation(AssertionError):
    """An event that must never happen."""


def play(scene: Scene, seed: int) -> str:
    """Run a scene with a seed and return the digest of its trace."""
    # The name always has the same length, so messages that contain it have, too.
    with tempfile.TemporaryDirectory(prefix="sim-") as folder:
        return simulate(
            lambda net: _to_the_end(net, scene),
            seed,
            disk=Path(folder),
            replay=f"python -m tests.sweep.sim.replay {scene.__name__} {seed}",
            limit=900.0,
        )


async def _to_the_end(net: SimNet, scene: Scene) -> str:
    await scene(net)
    return net.trace.digest


class Clocked:
    """Calls of one client, each of which must keep its time limit."""

    def __init__(self, net: SimNet, host: str) -> None:
        self.net = net
        self.host = host

    async def within(self, seconds: float, what: str, call: Coroutine[Any, Any, Any]) -> Any:
        """Await a call, and raise Violation if it ends more than `PATIENCE` seconds after its time limit.

        Time during which the host is paused does not count.
        """
        began, still = self.net.loop.time(), self.net.paused_seconds(self.host)
        try:
            return await call
        finally:
            took = self.net.loop.time() - began - (self.net.paused_seconds(self.host) - still)
            if took > seconds + PATIENCE:
                raise Violation(f"{self.host}: {what} took {took:.3f} s and had {seconds:g} s")


class Client(Clocked):
    """A session that recovers by itself after an error, or, for 30 % of the seeds, is closed and opened again.

    Args:
        net: Simulated network.
        host: Name of the client's host.
        target: Address of the server to connect to.
        reopens: Whether the session may be reopened; False if several steps run at once.

    Attributes:
        calm: Whether no step may fail.
    """

    def __init__(self, net: SimNet, host: str, target: str, reopens: bool = True) -> None:
        super().__init__(net, host)
        self._target = target
        self._session: Any = None
        self._opening = asyncio.Lock()
        self.calm = False
        self._reopens = reopens and net.random("reopens").random() < 0.3

    async def run(self, fetches: Any, feeds: Mapping[Any, Any] | None = None, seconds: float = 2.0) -> Any:
        """Run a step. Raise OpError if it fails, or if no session could be opened."""
        session = None
        try:
            session = await self._opened()
            return await self.within(seconds, "a step", session.run(fetches, feeds, timeout=seconds))
        except OpError as error:
            if session is None:
                # Without a session, no server has seen the step.
                error.may_have_been_applied = False
            if self.calm:
                raise Violation(f"{self.host}: a step failed, and nothing had gone wrong") from error
            self.net.note(self.host, f"{type(error).__name__}: {error.message.splitlines()[0]}")
            if self._reopens and session is self._session:
                await self.close()
            raise

    async def _opened(self) -> Any:
        async with self._opening:
            if self._session is None:
                session = af.Session(self._target, config=SIMULATED)
                try:
                    await self.within(5.0, "connecting", session.__aenter__())
                except BaseException:
                    await session.close()
                    raise
                self._session = session
            return self._session

    async def close(self) -> None:
        """Close the session, if one is open."""
        session, self._session = self._session, None
        if session is not None:
            await self.within(3.0, "closing", session.close())


@dataclass
class Stage:
    """A cluster with clients, and the faults that hit them."""

    net: SimNet
    jobs: Mapping[str, int]
    faults: int = 3
    within: float = 3.0
    kinds: Sequence[str] = ("partition", "drop", "slow", "pause", "crash")
    spare: Sequence[str] = ()
    cluster: SimCluster = field(init=False)
    schedule: FaultSchedule = field(init=False)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def set_up(self, clients: Sequence[str]) -> None:
        """Start the servers and draw the faults."""
        self.cluster = SimCluster(self.net, self.jobs)
        await self.cluster.start()
        hosts = [*self.cluster.hosts, *clients]
        for client in clients:
            self.net.host(client)
        self.schedule = FaultSchedule.random(
            self.net, hosts, self.faults, self.within, self.kinds, [*self.spare, *clients]
        )
        for fault in self.schedule.faults:
            self.net.trace.add("-", "is to come", fault)

    @property
    def calm(self) -> bool:
        """True if there are no faults."""
        return not self.schedule.faults

    async def perform(self, programs: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Run the clients' programs while the faults happen."""
        async with asyncio.TaskGroup() as performance:
            performance.create_task(self._go_wrong())
            for host, program in programs.items():
                performance.create_task(self.net.host(host).call(program))

    async def _go_wrong(self) -> None:
        await self.schedule.run(self.net)
        self.over.set()

    async def comes_back(self, client: Client, fetches: Any) -> None:
        """Raise Violation unless the client's own session works again soon after all faults have ended.

        A variable may have lost its value.
        """
        await self.over.wait()
        until = self.net.loop.time() + RECOVERY
        while True:
            try:
                await client.run(fetches)
            except FailedPreconditionError:
                return
            except OpError as error:
                if self.net.loop.time() > until:
                    raise Violation(f"a session is dead {RECOVERY:g} s after the last fault: {error}") from error
                await asyncio.sleep(0.25)
            else:
                return

    async def afterwards(self, work: Callable[[Client], Coroutine[Any, Any, Any]]) -> Any:
        """Return the result of `work` for a new client after the faults, retrying for at most `RECOVERY` seconds."""
        client = Client(self.net, "judge", self.cluster.target(self.cluster.hosts[0]))

        async def program() -> Any:
            until = self.net.loop.time() + RECOVERY
            while True:
                try:
                    return await work(client)
                except OpError as error:
                    if self.net.loop.time() > until:
                        raise Violation(f"nothing works {RECOVERY:g} s after the last fault: {error}") from error
                    await asyncio.sleep(0.25)
                finally:
                    await client.close()

        return await self.net.host("judge").call(program)

    async def end(self) -> None:
        """Raise Violation unless all traces of the clients disappear, and then, once stopped, those of the servers."""
        for host in self.net.hosts.values():
            if host.process is not None and host.name not in self.cluster.hosts:
                await host.process.ended()
        until = self.net.loop.time() + QUIET
        while left := [*self._of_clients(), *[x for s in self.cluster.servers.values() for x in await remains(s)]]:
            if self.net.loop.time() > until:
                raise Violation(f"left {QUIET:g} s after the last session was closed: {left}")
            await asyncio.sleep(1.0)
        await self.cluster.stop()
        left = [*self.net.open_connections(), *self.net.running_tasks()]
        if left:
            raise Violation(f"left after the end of the servers: {left}")

    async def idle(self, seconds: float) -> None:
        """Raise Violation if a step still runs on any server after this time."""
        until = self.net.loop.time() + seconds
        while running := [s.task for s in self.cluster.servers.values() if (await s.worker.state()).running]:
            if self.net.loop.time() > until:
                raise Violation(f"a step runs on {running} {seconds:g} s after its client gave it up")
            await asyncio.sleep(0.1)

    def _of_clients(self) -> list[str]:
        names = {
            host.process.name
            for host in self.net.hosts.values()
            if host.process and host.name not in self.cluster.hosts
        }
        return [x for x in self.net.open_connections() if x.partition(":")[0] in names]


async def remains(server: Any) -> list[str]:
    """Return descriptions of what a server still holds for its clients."""
    state = await server.worker.state()
    steps = server._serving.tasks.steps
    found = {
        "registered parts": state.registered,
        "running steps": state.running,
        "steps that meet others": len(steps),
        "values that came early": len(steps._early),
    }
    return [f"{server.task}: {number} {what}" for what, number in found.items() if number]
