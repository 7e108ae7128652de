"""A whole cluster in a simulated network: one host for each task, which runs a `train.Server`."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from random import Random
from typing import Final, TypeVar

from aioflow.concurrency.stopping import Stopped
from aioflow.config import SessionConfig
from aioflow.net.cluster_spec import ClusterSpec, TaskId
from aioflow.net.comm import CommOptions
from aioflow.net.server import Server
from aioflow.runtime.step import Step
from aioflow.testing.sim_net import SimNet
from aioflow.testing.sim_process import SimHost, SimProgram

__all__ = ["SIMULATED", "SimCluster", "host_of"]

T = TypeVar("T")

_PORT: Final = 2222
# Settings of a session or server for repeatable runs: no decision depends on measured durations.
SIMULATED: Final = SessionConfig(inline_budget=1e9, yield_every=1e9, threads=1)


def host_of(task: TaskId) -> str:
    """Return the name of a task's host."""
    return f"{task.job}{task.number}"


class SimCluster:
    """The servers of a cluster, each on a host of its own. Graphs may open files on the host's disk.

    Args:
        net: The network.
        jobs: Number of tasks of each job.
        config: Settings of the servers, by default `SIMULATED`; replace fields of that to change some of them.
        options: Options of the connections to the servers; by default the servers' own.

    Attributes:
        spec: The cluster.
        servers: The running servers, by the names of their hosts.
    """

    def __init__(
        self,
        net: SimNet,
        jobs: Mapping[str, int],
        config: SessionConfig = SIMULATED,
        options: CommOptions | None = None,
    ) -> None:
        self._options = options
        self._net = net
        self._config = config
        self.servers: dict[str, Server] = {}
        self._hosts = {
            TaskId(job, number): net.host(f"{job}{number}") for job, count in jobs.items() for number in range(count)
        }
        self.spec = ClusterSpec(
            {job: [f"{self._hosts[TaskId(job, i)].address}:{_PORT}" for i in range(n)] for job, n in jobs.items()}
        )
        # Events, since servers start within their own simulated processes.
        self._ready: dict[str, asyncio.Event] = {}

    @property
    def hosts(self) -> list[str]:
        """The names of the hosts."""
        return [host.name for host in self._hosts.values()]

    def target(self, host: str) -> str:
        """Return the target with which to open a session at this host's server."""
        return f"aioflow://{self._net.host(host).address}:{_PORT}"

    async def start(self) -> None:
        """Start all servers. Return when they listen."""
        for task, host in self._hosts.items():
            host.start(self._program(task, host), "server")
        for event in list(self._ready.values()):
            await event.wait()

    def _program(self, task: TaskId, host: SimHost) -> SimProgram:
        self._ready[host.name] = asyncio.Event()

        async def serve() -> None:
            disks = [] if host.disk is None else [host.disk]
            server = Server(
                self.spec, task.job, task.number, config=self._config, options=self._options, allow_dirs=disks
            )
            # One source per host: events on one host do not change the draws of another.
            chance = self._net.random(f"threads {host.name}")
            for device in server.worker.devices.values():
                # A copy, since the backend object is shared with the devices of other servers in this process.
                device.backend = copy.copy(device.backend)
                setattr(device.backend, "executor", _Threads(chance))  # noqa: B010  # read-only in the protocol
            async with server:
                self.servers[host.name] = server
                self._ready[host.name].set()
                try:
                    await asyncio.Event().wait()
                finally:
                    # A restarted host may have put its new server there.
                    if self.servers.get(host.name) is server:
                        del self.servers[host.name]

        return serve

    async def stop(self) -> None:
        """Stop all running servers, and wait for the remaining tasks of those that were killed."""
        processes = [host.process for host in self._hosts.values() if host.process is not None]
        for process in processes:
            for task in list(process.tasks):
                # Cancelling the server's main task stops it in order; its other tasks end with it.
                if task.get_name().endswith(": server"):
                    task.cancel()
        for process in processes:
            await process.ended()


class _Threads:
    """The executor of a simulated device. A call takes no simulated time; a random delay precedes and follows it."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance

    async def run(self, step: Step, function: Callable[..., T], *args: object) -> T:
        try:
            # The delay is the queue in front of the thread; the call itself takes no virtual time.
            await asyncio.sleep(self._time())
            # The step may have been stopped in the meantime, as in a real executor.
            if step.requested:
                step.halt()
            result = function(*args)
            await asyncio.sleep(self._time())
        except asyncio.CancelledError:
            step.stop()
            raise
        except Stopped:  # raised within the call: a value that it sent could not be delivered
            step.halt()
        return result

    def _time(self) -> float:
        # Half of the calls without delay; otherwise 0.5 ms on average.
        return 0.0 if self._chance.random() < 0.5 else float(self._chance.expovariate(2000.0))
