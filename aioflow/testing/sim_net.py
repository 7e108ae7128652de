"""A network of hosts in one process, with virtual time and a seed: whole clusters run in it, and fail in it.

    def test_a_cluster() -> None:
        simulate(story, seed=7)

    async def story(net: SimNet) -> None:
        host = net.host("ps")
        ...

What runs is aioflow's own `net/`: servers, channels and `TcpComm` over transports of this module. Everything that
happens by chance follows from the seed, so the same seed gives the same run, event by event.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import random
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from aioflow.testing.sim_clocks import clocks_of
from aioflow.testing.sim_disk import simulated_disks
from aioflow.testing.sim_loop import SimLoop
from aioflow.testing.sim_process import SimHost, SimProcess
from aioflow.testing.sim_streams import Link, SimTransport, connected
from aioflow.testing.sim_trace import Trace

__all__ = ["SimNet", "simulate"]

T = TypeVar("T")

_GIVE_UP: Final = 127.0  # seconds that a system tries to connect to a host that does not answer
_TRY_AGAIN: Final = 0.2
_LONGEST: Final = 3600.0


def simulate(
    main: Callable[[SimNet], Coroutine[Any, Any, T]],
    seed: int = 0,
    *,
    replay: str | None = None,
    disk: Path | None = None,
    limit: float = _LONGEST,
) -> T:
    """Run `main(net)` in a simulated network and return its result.

    Args:
        replay: The command that runs this seed again. An error that `main` raises has a note with it, and with all
            that has happened.
        disk: A folder in which each host gets one of its own.
        limit: Virtual seconds, after which it ends with TimeoutError.

    Raises:
        InternalError: a deadlock.
    """
    loop = SimLoop(seed)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        net = SimNet(loop, seed, disk)
        try:
            with clocks_of(loop), simulated_disks():
                return runner.run(_within(net, main, limit))
        except BaseException as raised:
            error = _first_of(raised)
            again = "" if replay is None else f"\nto replay it: {replay}"
            error.add_note(f"seed {seed}, trace {net.trace.digest}{again}\n{net.trace.story()}")
            raise error from error.__cause__


def _first_of(error: BaseException) -> BaseException:
    """The error itself, where it went through groups of tasks on its way."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _within(net: SimNet, main: Callable[[SimNet], Coroutine[Any, Any, T]], limit: float) -> T:
    async with asyncio.timeout(limit), net:
        return await main(net)


class SimNet:
    """A simulated network.

    Args:
        seed: Where all chance comes from.
        disk: As of `simulate`.

    Attributes:
        trace: What has happened.
        hosts: By name.
        group: The tasks of all programs.
    """

    def __init__(self, loop: SimLoop, seed: int, disk: Path | None = None) -> None:
        self.seed = seed
        self.loop = loop
        loop.net = self
        self.trace = Trace(loop.time)
        self.hosts: dict[str, SimHost] = {}
        self.group = asyncio.TaskGroup()
        self._by_address: dict[str, SimHost] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._numbers = itertools.count(1)
        self._disk = disk
        self._chance = self.random("net")
        self._pace = self._chance.choice((0.2, 1.0, 1.0, 5.0))
        self._cut = self._chance.choice((0.0, 0.1, 0.6))

    def random(self, name: str) -> random.Random:
        """A source of chance of its own: one draw more from it changes nothing for the others."""
        return random.Random(f"{self.seed}/{name}")

    def host(self, name: str) -> SimHost:
        """The host of that name, new where there is none."""
        host = self.hosts.get(name)
        if host is None:
            disk = None if self._disk is None else self._disk / name
            if disk is not None:
                disk.mkdir(parents=True, exist_ok=True)
            host = self.hosts[name] = SimHost(self, name, len(self.hosts), disk)
            self._by_address[host.address] = host
        return host

    def note(self, host: str, what: object) -> None:
        """Something that the program did, for the trace."""
        self.trace.add(host, "did", what)

    def link(self, source: str, destination: str) -> Link:
        """The way from one host to another."""
        found = self._links.get((source, destination))
        if found is None:
            chance = self.random(f"link {source} {destination}")
            latency = 2e-5 if source == destination else chance.uniform(5e-5, 1e-3) * self._pace
            window = chance.choice((1 << 14, 1 << 18, 1 << 20))
            found = Link(chance, latency, latency * chance.choice((0.1, 1.0, 3.0)), self._cut, window=window)
            self._links[source, destination] = found
        return found

    # -- connecting ----------------------------------------------------------------------------------------------------

    async def connect(
        self, process: SimProcess, factory: Callable[[], Any], address: tuple[str, int]
    ) -> tuple[SimTransport, Any]:
        """What `loop.create_connection` does in a process. Raises OSError."""
        host = self._by_address.get(address[0])
        if not process.alive or host is None:
            raise OSError(101, f"the network cannot be reached, or there is no host at {address[0]}")
        there, back = self.link(process.host.name, host.name), self.link(host.name, process.host.name)
        until = self.loop.time() + _GIVE_UP
        await self._pass(there, until, host)
        listener = host.listeners.get(address[1])
        if listener is None:
            await self._pass(back, until, host)
            self.trace.add(process.name, "refused", f"by {host.name}")
            raise ConnectionRefusedError(111, f"connect call failed {address}")
        name = f"{next(self._numbers)}:{process.name}-{listener.process.name}"
        own = (process.host.address, process.host.next_port())
        near, far = connected(name, process, listener.process, (there, back), (own, address))
        self.trace.add(process.name, "connects", name)
        self.loop.call_soon(lambda: far.begin(listener.accept()), context=listener.context)
        listener.process.ends[far] = None
        process.ends[near] = None
        try:
            await self._pass(back, until, host)
            if near.gone or near.is_closing():
                raise ConnectionResetError(104, "connection reset by peer")
            protocol = factory()
            near.begin(protocol)
        except BaseException as error:
            near.cut(False, ConnectionAbortedError(str(error)))
            raise
        return near, protocol

    async def _pass(self, link: Link, until: float, host: SimHost) -> None:
        """The time of one packet; where it is lost, of those that are sent again."""
        await asyncio.sleep(link.delay())
        while link.blocked or host.down:
            if self.loop.time() > until:
                raise TimeoutError(110, "connection timed out")
            await asyncio.sleep(_TRY_AGAIN)

    # -- faults --------------------------------------------------------------------------------------------------------

    def partition(self, source: str, destination: str, *, both: bool = True) -> None:
        """Hold what goes from one host to another, until `heal`."""
        self.trace.add("-", "partition", f"{source} {'<->' if both else '->'} {destination}")
        self.link(source, destination).blocked = True
        if both:
            self.link(destination, source).blocked = True

    def heal(self, source: str | None = None, destination: str | None = None, *, reset: bool = False) -> None:
        """End the partition between two hosts, or all partitions.

        Args:
            reset: What was held is lost, and the connections that it belonged to are reset. Otherwise it arrives.
        """
        self.trace.add("-", "heal", f"{source or 'all'} - {destination or 'all'}{' by resets' if reset else ''}")
        pair = {source, destination}
        blocked = {k: v for k, v in self._links.items() if v.blocked and (source is None or set(k) == pair)}
        if reset:
            for one, other in blocked:
                self.drop(one, other)
        for link in blocked.values():
            link.release()

    def drop(self, one: str, other: str) -> None:
        """Reset all connections between two hosts; what is on its way is lost."""
        self.trace.add("-", "drop", f"{one} - {other}")
        for process in (self.hosts[one].process, self.hosts[other].process):
            for end in list(process.ends) if process is not None else ():
                if {end.near, end.far} == {one, other}:
                    end.reset()

    def slow(self, source: str, destination: str, factor: float) -> None:
        """Make the way from one host to another slower by a factor, in latency and bandwidth; one below 1 undoes it."""
        self.trace.add("-", "slow", f"{source} -> {destination} by {factor:g}")
        link = self.link(source, destination)
        link.latency, link.jitter, link.bandwidth = link.latency * factor, link.jitter * factor, link.bandwidth / factor

    def break_disk(self, name: str, error: int | None = errno.EIO) -> None:
        """Let what is written on a host's disk fail from now on, or None: let it be written again."""
        self.trace.add(name, "disk", "is well" if error is None else f"fails with {errno.errorcode[error]}")
        self.hosts[name].disk_error = error

    def pause(self, name: str) -> None:
        """Stop a host's process in its tracks, as SIGSTOP does: its system goes on, and its timers will be late."""
        self.trace.add(name, "pause")
        self.hosts[name].paused_at = self.loop.time()
        self.loop.stop_process(self._process(name))

    def resume(self, name: str) -> None:
        """Let a paused process go on."""
        self.trace.add(name, "resume")
        self.hosts[name].stood_still = self.paused_seconds(name)
        self.hosts[name].paused_at = None
        self.loop.continue_process(self._process(name))

    def paused_seconds(self, name: str) -> float:
        """For how long the processes of a host have stood still until now."""
        host = self.hosts[name]
        return host.stood_still + (0.0 if host.paused_at is None else self.loop.time() - host.paused_at)

    def crash(self, name: str, *, silent: bool = False) -> None:
        """Kill a host's process. Its disk stays as it is.

        Args:
            silent: Switch the host off: its peers hear nothing until it is started again.
        """
        self.trace.add(name, "crash", "in silence" if silent else "")
        process, host = self._process(name), self.hosts[name]
        host.down = silent
        process.kill(silent)
        self.loop.continue_process(process)

    async def restart(self, name: str) -> None:
        """Start a host's program again, as a new process."""
        await self.hosts[name].again()
        self.trace.add(name, "restart")

    def _process(self, name: str) -> SimProcess:
        process = self.hosts[name].process
        if process is None:
            raise RuntimeError(f"nothing has run on {name} yet")
        return process

    # -- the end -------------------------------------------------------------------------------------------------------

    def open_connections(self) -> Iterator[str]:
        """The ends that are open, by process and name."""
        for host in self.hosts.values():
            if host.process is not None:
                yield from (f"{host.process.name}: {end.name}" for end in host.process.ends)

    def running_tasks(self) -> Iterator[str]:
        """The tasks of processes that have not ended."""
        for host in self.hosts.values():
            if host.process is not None:
                yield from (f"{host.process.name}: {task.get_name()}" for task in host.process.tasks)

    async def __aenter__(self) -> Self:
        await self.group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.group.__aexit__(kind, error, traceback)
