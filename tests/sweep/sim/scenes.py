"""What the simulated clusters of these tests have in common: clients that try again, faults, and a quiet end."""

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

PATIENCE: Final = 4.0  # seconds after its time limit in which a call must have ended
RECOVERY: Final = 30.0  # seconds after the last fault in which everything works again
QUIET: Final = 130.0  # seconds after the last session was closed in which its traces are gone

Scene = Callable[[SimNet], Coroutine[Any, Any, Any]]


class Violation(AssertionError):
    """Something that must never happen has happened."""


def play(scene: Scene, seed: int) -> str:
    """Run a scene by a seed; returns the trace's digest."""
    with tempfile.TemporaryDirectory(prefix="sim-") as folder:  # its name is always as long
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
    """Calls of one client, each with a time limit that it has to keep.

    Attributes:
        longest: By how much one call has been late.
    """

    def __init__(self, net: SimNet, host: str) -> None:
        self.net = net
        self.host = host

    async def within(self, seconds: float, what: str, call: Coroutine[Any, Any, Any]) -> Any:
        """What a call gives or raises, which it must do in time. Time in which the host stands still does not count."""
        began, still = self.net.loop.time(), self.net.paused_seconds(self.host)
        try:
            return await call
        finally:
            took = self.net.loop.time() - began - (self.net.paused_seconds(self.host) - still)
            if took > seconds + PATIENCE:
                raise Violation(f"{self.host}: {what} took {took:.3f} s and had {seconds:g} s")


class Client(Clocked):
    """A session that comes back by itself after an error; that of some seeds is opened again.

    Args:
        reopens: Whether it may be one that is opened again; not where several steps run at once.

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
        """Run a step. Raises OpError: it has failed, or there was no session to be had."""
        session = None
        try:
            session = await self._opened()
            return await self.within(seconds, "a step", session.run(fetches, feeds, timeout=seconds))
        except OpError as error:
            if session is None:
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
    """A cluster with clients, and what befalls them."""

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
        """Start the servers, and make up what will go wrong."""
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
        """Whether nothing goes wrong."""
        return not self.schedule.faults

    async def perform(self, programs: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Run the clients' programs while everything goes wrong."""
        async with asyncio.TaskGroup() as performance:
            performance.create_task(self._go_wrong())
            for host, program in programs.items():
                performance.create_task(self.net.host(host).call(program))

    async def _go_wrong(self) -> None:
        await self.schedule.run(self.net)
        self.over.set()

    async def comes_back(self, client: Client, fetches: Any) -> None:
        """A client's own session works again when all faults are over; a variable may have no value."""
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
        """What somebody else finds when all faults are over; he may try for a while."""
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
        """Nothing is left of the clients, and then nothing of the servers."""
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
        """No step runs anywhere, or will after so many seconds."""
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
    """What a server still has of its clients."""
    state = await server.worker.state()
    steps = server._serving.tasks.steps
    found = {
        "registered parts": state.registered,
        "running steps": state.running,
        "steps that meet others": len(steps),
        "values that came early": len(steps._early),
    }
    return [f"{server.task}: {number} {what}" for what, number in found.items() if number]
