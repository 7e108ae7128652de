"""Supervision: start the tasks of a cluster on a host, restart them when they end, and end them with the block.

Supervision is one keeper per task. A keeper starts the task, waits until it has ended, and starts it again at the same
address. So the other tasks and all sessions find it where it was; the number of its process tells them that its
variables are gone. The block would wait forever for a task that is lost for good, so such a task ends the block with an
error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

from aioflow.arguments import check_number, check_whole
from aioflow.distributed.starting.cluster import StartedCluster
from aioflow.distributed.starting.host import ClusterRequest, Host
from aioflow.distributed.starting.jobs import Jobs, read_jobs
from aioflow.errors import DeadlineExceededError, InvalidArgumentError, OpError
from aioflow.net.cluster_spec import ClusterSpec, TaskId, comm_address
from aioflow.net.credentials import Credentials, introduced
from aioflow.net.remote_step import outcomes

_LOGGER: Final = logging.getLogger("aioflow.distributed")
_END_SECONDS: Final = 15.0  # after the time for the steps, for tasks to end


def wanted(
    jobs: Jobs,
    *,
    credentials: Credentials | None,
    allow_dirs: Iterable[str | os.PathLike[str]],
    imports: Iterable[str],
    max_restarts: int,
    drain_seconds: float,
) -> ClusterRequest:
    """Return the tasks to start.

    Without `credentials`, the tasks get those of the environment, or else a new secret.

    Raises:
        InvalidArgumentError: a value is out of range.
        DTypeError: a value has the wrong type.
    """
    check_whole(max_restarts, "max_restarts", -1)
    check_number(drain_seconds, "drain_seconds", "a number of seconds")
    known = Credentials.from_environment() if credentials is None else credentials
    # Without a secret anyone on the machine could use the tasks.
    if not known.prove:
        known = Credentials(secrets.token_hex(32).encode())
    return ClusterRequest(
        read_jobs(jobs), known, tuple(map(str, allow_dirs)), tuple(imports), max_restarts, drain_seconds
    )


@asynccontextmanager
async def supervised(
    host: Host, wanted: ClusterRequest, *, timeout: float, may_lose: Collection[str]
) -> AsyncIterator[StartedCluster]:
    """Yield a cluster that runs for the duration of the block.

    Args:
        host: Host on which the tasks run.
        wanted: The tasks to start.
        timeout: Time limit in seconds for the start of all tasks.
        may_lose: Jobs whose tasks may be lost without ending the block.

    Raises:
        DeadlineExceededError: not all tasks serve in time.
        OpError: a task cannot be started, or is lost for good.
        InvalidArgumentError: `timeout` is out of range, or `may_lose` names an unknown job.
    """
    check_number(timeout, "the start timeout", "a number of seconds", above=0)
    unknown = sorted(set(may_lose) - set(wanted.jobs))
    if unknown:
        raise InvalidArgumentError("may_lose names unknown jobs", expected=list(wanted.jobs), actual=unknown)
    clock = asyncio.get_running_loop().time
    until = clock() + timeout
    # Stays empty if no place was found: there is nothing to drain then.
    placed: list[TaskId] = []
    try:
        addresses = await host.place(timeout)
        placed += addresses
        # Clients get a secret that does not suffice to pose as a task.
        known = wanted.credentials if wanted.credentials.secret is None else wanted.credentials.client()
        supervisor = _Supervisor(host, StartedCluster(_spec(addresses), known), may_lose)
        # From now on sessions of this program find the credentials by the address.
        with introduced(map(comm_address, addresses.values()), known):
            async with supervisor.keeping():
                # Finding the places has used part of the time limit.
                await supervisor.all_serve(until - clock())
                yield supervisor.cluster
    finally:
        try:
            with suppress(TimeoutError):  # `close` kills tasks that do not drain in time
                async with asyncio.timeout(wanted.drain_seconds + _END_SECONDS):
                    await outcomes(host.drain(task) for task in placed)
        finally:
            await host.close()


def _spec(addresses: Mapping[TaskId, str]) -> ClusterSpec:
    jobs: dict[str, dict[int, str]] = {}
    for task, address in addresses.items():
        jobs.setdefault(task.job, {})[task.number] = address
    return ClusterSpec(jobs)


class _Supervisor:
    """The keepers of all tasks."""

    def __init__(self, host: Host, cluster: StartedCluster, may_lose: Collection[str]) -> None:
        self.cluster = cluster
        self._host = host
        self._may_lose = may_lose
        self._lost: Exception | None = None
        self._serving = {task: asyncio.Event() for task in cluster.spec.tasks()}

    async def all_serve(self, seconds: float) -> None:
        """Wait until each task serves. Raise DeadlineExceededError, which names the tasks that do not."""
        try:
            async with asyncio.timeout(seconds):
                for event in self._serving.values():
                    await event.wait()
        except TimeoutError as error:
            late = [task.name for task, event in self._serving.items() if not event.is_set()]
            raise DeadlineExceededError(
                "not all tasks started serving in time", expected="all", actual=f"not {late}"
            ) from error

    @asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Run the keepers for the duration of the block. Raise the error of a lost task, or else the block's own."""
        raised: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                keepers = [group.create_task(self._keep(task)) for task in self._serving]
                try:
                    yield
                except BaseException as error:
                    raised = error
                    raise
                finally:
                    for keeper in keepers:
                        # Keepers run forever, so the group ends only with their cancellation.
                        keeper.cancel()
        # The group wraps every error; the caller expects the lost task's error, or the one that the block raised.
        except BaseExceptionGroup:
            if self._lost is None and raised is None:
                raise
        else:
            return
        if self._lost is not None:  # a lost task cancels the block, unless the block has failed before
            raise self._lost from (None if isinstance(raised, asyncio.CancelledError) else raised)
        if raised is not None:
            raise raised

    async def _keep(self, task: TaskId) -> None:
        status, spec = self.cluster.tasks[task.name], self.cluster.spec
        try:
            while True:
                running = await self._host.begin(task, spec)
                # The first start is not a restart.
                status.restarts += status.pid != 0
                status.state, (status.node, status.pid) = "serves", running
                self._serving[task].set()
                _LOGGER.info("%s serves at %s: process %d of %s", task.name, status.address, status.pid, status.node)
                await self._host.ended(task)
                status.state = "begins"
                _LOGGER.warning("%s has ended", task.name)
        except Exception as error:  # not only errors of the task: the host may fail
            status.state = "lost"
            # A task that never served was not lost in training: the cluster could not be started.
            if isinstance(error, OpError) and task.job in self._may_lose and self._serving[task].is_set():
                _LOGGER.warning("%s is lost; training continues without it: %s", task.name, error.message)
                return
            self._lost = error
            raise
