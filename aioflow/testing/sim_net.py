"""A network of hosts in one process, with virtual time and a seed, for tests of whole clusters and their failures.

    def test_a_cluster() -> None:
        simulate(story, seed=7)

    async def story(net: SimNet) -> None:
        host = net.host("ps")
        ...

The code under test is aioflow's own `net/`: servers, channels and `TcpComm`, over simulated transports. All randomness
follows from the seed, so the same seed repeats the same run, event by event.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import aioflow.net.remote_cluster
import aioflow.net.server
import aioflow.session.session  # noqa: F401  # loaded before a simulation: later imports would bind the real clocks
from aioflow.testing.sim_loop import SimLoop
from aioflow.testing.sim_process import PROCESS, SimHost, SimProcess
from aioflow.testing.sim_streams import SimLink, SimTransport, connected
from aioflow.testing.sim_trace import Trace
from aioflow.testing.virtual_clock import VirtualClockLoop

__all__ = ["SimNet", "simulate"]

# ── the clocks that hot code reads directly, replaced by virtual time during a simulation ─────────────────────────────
#
# Such code measures how long a strand took or how long the loop has been occupied. It reads `perf_counter` and
# `monotonic` from its own module, since looking up a clock would cost as much as what it measures. In virtual time a
# computation takes no time, so decisions that depend on durations are the same in every run.

_CLOCKS: Final = {"perf_counter": time.perf_counter, "monotonic": time.monotonic}
_OURS: Final = "aioflow"  # a prefix: the engine and its backends


@contextmanager
def clocks_of(loop: VirtualClockLoop) -> Iterator[None]:
    """Make aioflow's modules that have imported a clock by name read the loop's time, for the duration of the block."""
    found = [
        (module, name, clock)
        # A list: importing a module during the iteration would change the dictionary.
        for key, module in list(sys.modules.items())
        if key.startswith(_OURS)
        for name, clock in _CLOCKS.items()
        # By identity: a module that has replaced its clock keeps it.
        if vars(module).get(name) is clock
    ]
    for module, name, _ in found:
        setattr(module, name, loop.time)
    try:
        yield
    finally:
        for module, name, clock in found:
            setattr(module, name, clock)


# ── the disks of simulated hosts: real folders, whose writes fail on the simulation's request ─────────────────────────
#
# Faults take effect at `os.fsync`: a file counts as written once it was flushed. There a failing disk raises its
# error. A killed process gets an error there, too, so that it writes no further.


@contextmanager
def simulated_disks() -> Iterator[None]:
    """Make `os.fsync` in simulated processes fail if the disk of their host does, for the duration of the block.

    In simulated processes it flushes nothing, so it takes no time.
    """
    flush = os.fsync

    def flush_here(file: int) -> None:
        # Outside of any process, files are real, such as those of the test itself.
        process = PROCESS.get()
        if process is None:
            flush(file)
        elif not process.alive:
            raise OSError(errno.EIO, "the process was killed")
        elif process.host.disk_error is not None:
            process.note("disk error", process.host.disk_error)
            raise OSError(process.host.disk_error, os.strerror(process.host.disk_error))

    # Modules call `os.fsync` by the module's attribute, so the replacement reaches all of them.
    os.fsync = flush_here  # type: ignore[assignment]
    try:
        yield
    finally:
        os.fsync = flush


# ── the simulated network ─────────────────────────────────────────────────────────────────────────────────────────────


T = TypeVar("T")

_GIVE_UP: Final = 127.0  # seconds after which a system gives up connecting to a host that does not answer
_TRY_AGAIN: Final = 0.2
_LONGEST: Final = 3600.0


def simulate(
    main: Callable[[SimNet], Coroutine[object, object, T]],
    seed: int = 0,
    *,
    replay: str | None = None,
    disk: Path | None = None,
    limit: float = _LONGEST,
) -> T:
    """Run `main(net)` in a simulated network and return its result.

    An error that `main` raises gets a note with the seed and the trace of events.

    Args:
        main: Coroutine function that receives the network.
        seed: Seed of all randomness.
        replay: Command that repeats this run, for the note of an error.
        disk: Folder in which each host gets a folder of its own.
        limit: Virtual seconds after which the run ends with TimeoutError.

    Raises:
        InternalError: a deadlock.
        TimeoutError: the run took longer than `limit`.
    """
    loop = SimLoop(seed)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        net = SimNet(loop, seed, disk)
        try:
            with clocks_of(loop), simulated_disks():
                return runner.run(_within(net, main, limit))
        except BaseException as raised:
            # KeyboardInterrupt, too: a run that hangs shows its trace.
            error = _first_of(raised)
            again = "" if replay is None else f"\nto replay it: {replay}"
            # Equal digests show that two runs were the same to the last event.
            error.add_note(f"seed {seed}, trace {net.trace.digest}{again}\n{net.trace.story()}")
            raise error from error.__cause__


def _first_of(error: BaseException) -> BaseException:
    """Return the first error that is not an exception group: task groups wrap the error on its way out."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _within(net: SimNet, main: Callable[[SimNet], Coroutine[object, object, T]], limit: float) -> T:
    async with asyncio.timeout(limit), net:
        return await main(net)


class SimNet:
    """A simulated network.

    Args:
        loop: The loop of all processes.
        seed: Seed of all randomness.
        disk: Folder in which each host gets a folder of its own, as in `simulate`.

    Attributes:
        trace: Events so far.
        hosts: Hosts by name.
        group: Tasks of all programs.
    """

    def __init__(self, loop: SimLoop, seed: int, disk: Path | None = None) -> None:
        self.seed = seed
        self.loop = loop
        loop.connect = self.connect
        self.trace = Trace(loop.time)
        self.hosts: dict[str, SimHost] = {}
        self.group = asyncio.TaskGroup()
        self._by_address: dict[str, SimHost] = {}
        self._links: dict[tuple[str, str], SimLink] = {}
        self._numbers = itertools.count(1)
        self._disk = disk
        self._chance = self.random("net")
        # Chosen once per seed, so that a series of seeds covers fast and slow networks, with and without split writes.
        self._pace = self._chance.choice((0.2, 1.0, 1.0, 5.0))
        self._cut = self._chance.choice((0.0, 0.1, 0.6))

    def random(self, name: str) -> random.Random:
        """Return an independent random source: one draw more from it does not change the draws of the others."""
        # A string seeds `Random` by its hash of all bytes, independent of PYTHONHASHSEED.
        return random.Random(f"{self.seed}/{name}")

    def host(self, name: str) -> SimHost:
        """Return the host with this name; create it if the network does not have it yet."""
        host = self.hosts.get(name)
        if host is None:
            disk = None if self._disk is None else self._disk / name
            if disk is not None:
                disk.mkdir(parents=True, exist_ok=True)
            host = self.hosts[name] = SimHost(self.group, self.trace, name, len(self.hosts), disk)
            self._by_address[host.address] = host
        return host

    def note(self, host: str, what: object) -> None:
        """Record an event of the program in the trace."""
        self.trace.add(host, "did", what)

    def link(self, source: str, destination: str) -> SimLink:
        """Return the link from one host to another."""
        found = self._links.get((source, destination))
        if found is None:
            chance = self.random(f"link {source} {destination}")
            # 20 µs within a host; 0.05 to 1 ms times the pace between hosts.
            latency = 2e-5 if source == destination else chance.uniform(5e-5, 1e-3) * self._pace
            # From a window that large messages fill many times to one that holds most of them.
            window = chance.choice((1 << 14, 1 << 18, 1 << 20))
            found = SimLink(chance, latency, latency * chance.choice((0.1, 1.0, 3.0)), self._cut, window=window)
            self._links[source, destination] = found
        return found

    # -- connecting ----------------------------------------------------------------------------------------------------

    async def connect(
        self, process: SimProcess, factory: Callable[[], Any], address: tuple[str, int]
    ) -> tuple[SimTransport, Any]:
        """Connect a process to a listener, as `loop.create_connection` does. Raises OSError."""
        host = self._by_address.get(address[0])
        if not process.alive or host is None:
            raise OSError(101, f"the network cannot be reached, or there is no host at {address[0]}")
        there, back = self.link(process.host.name, host.name), self.link(host.name, process.host.name)
        until = self.loop.time() + _GIVE_UP
        # The SYN travels first, then the answer.
        await self._pass(there, until, host)
        listener = host.listeners.get(address[1])
        if listener is None:
            await self._pass(back, until, host)
            self.trace.add(process.name, "refused", f"by {host.name}")
            raise ConnectionRefusedError(111, f"connect call failed {address}")
        name = f"{next(self._numbers)}:{process.name}-{listener.process.name}"
        # Each connection has a port of its own, as in the traces of real systems.
        own = (process.host.address, process.host.next_port())
        near, far = connected(name, process, listener.process, (there, back), (own, address))
        self.trace.add(process.name, "connects", name)
        # In the context of the listener's process, where the accepted protocol runs.
        self.loop.call_soon(lambda: far.begin(listener.accept()), context=listener.context)
        # Registered before the connection is complete, so that a crash of either process in between closes its end.
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

    async def _pass(self, link: SimLink, until: float, host: SimHost) -> None:
        """Wait for the delay of one packet. While the packet would be lost, wait for its retransmissions."""
        await asyncio.sleep(link.delay())
        # A lost packet is sent again until the system gives up, as TCP does.
        while link.blocked or host.down:
            if self.loop.time() > until:
                raise TimeoutError(110, "connection timed out")
            await asyncio.sleep(_TRY_AGAIN)

    # -- faults --------------------------------------------------------------------------------------------------------

    def partition(self, source: str, destination: str, *, both: bool = True) -> None:
        """Hold the traffic from one host to another until `heal`, by default in both directions."""
        self.trace.add("-", "partition", f"{source} {'<->' if both else '->'} {destination}")
        self.link(source, destination).blocked = True
        if both:
            self.link(destination, source).blocked = True

    def heal(self, source: str | None = None, destination: str | None = None, *, reset: bool = False) -> None:
        """End the partition between two hosts, or all partitions.

        Args:
            source: One of the hosts; None ends all partitions.
            destination: The other host.
            reset: Drop the held traffic and reset its connections. By default the held traffic arrives.
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
        """Reset all connections between two hosts. Data in transit is lost."""
        self.trace.add("-", "drop", f"{one} - {other}")
        for process in (self.hosts[one].process, self.hosts[other].process):
            # A copy: a reset removes the end from the dictionary.
            for end in list(process.ends) if process is not None else ():
                if {end.near, end.far} == {one, other}:
                    end.reset()

    def slow(self, source: str, destination: str, factor: float) -> None:
        """Multiply the latency of the link from one host to another by `factor`, and divide its bandwidth by it.

        A factor below 1 undoes an earlier one.
        """
        self.trace.add("-", "slow", f"{source} -> {destination} by {factor:g}")
        link = self.link(source, destination)
        link.latency, link.jitter, link.bandwidth = link.latency * factor, link.jitter * factor, link.bandwidth / factor

    def break_disk(self, name: str, error: int | None = errno.EIO) -> None:
        """Make writes to a host's disk fail from now on. With None they succeed again."""
        self.trace.add(name, "disk", "is well" if error is None else f"fails with {errno.errorcode[error]}")
        self.hosts[name].disk_error = error

    def pause(self, name: str) -> None:
        """Pause a host's process as SIGSTOP does: the host's system goes on, and the process's timers fire late."""
        self.trace.add(name, "pause")
        self.hosts[name].paused_at = self.loop.time()
        # The process stops at the next turn; packets in transit still arrive at its system.
        self.loop.stop_process(self._process(name))

    def resume(self, name: str) -> None:
        """Resume a paused process."""
        self.trace.add(name, "resume")
        self.hosts[name].stood_still = self.paused_seconds(name)
        self.hosts[name].paused_at = None
        self.loop.continue_process(self._process(name))

    def paused_seconds(self, name: str) -> float:
        """Return the total seconds for which the processes of a host have been paused until now."""
        host = self.hosts[name]
        return host.stood_still + (0.0 if host.paused_at is None else self.loop.time() - host.paused_at)

    def crash(self, name: str, *, silent: bool = False) -> None:
        """Kill a host's process. Its disk stays as it is.

        Args:
            name: Name of the host.
            silent: Switch the host off: its peers receive nothing until it is started again.
        """
        self.trace.add(name, "crash", "in silence" if silent else "")
        process, host = self._process(name), self.hosts[name]
        host.down = silent
        process.kill(silent)
        # The cancelled tasks of a paused process could not end.
        self.loop.continue_process(process)

    async def restart(self, name: str) -> None:
        """Start a host's program again as a new process."""
        await self.hosts[name].again()
        self.trace.add(name, "restart")

    def _process(self, name: str) -> SimProcess:
        process = self.hosts[name].process
        if process is None:
            raise RuntimeError(f"nothing has run on {name} yet")
        return process

    # -- the end -------------------------------------------------------------------------------------------------------

    def open_connections(self) -> Iterator[str]:
        """Yield the open ends of connections, by process and name."""
        for host in self.hosts.values():
            if host.process is not None:
                yield from (f"{host.process.name}: {end.name}" for end in host.process.ends)

    def running_tasks(self) -> Iterator[str]:
        """Yield the unfinished tasks of processes, by process and name."""
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
