"""Clusters of processes on this machine, started and supervised by a training program."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count, islice
from typing import Final

from aioflow.distributed.restarts import Restarts
from aioflow.distributed.supervising import (
    ClusterRequest,
    Jobs,
    StartedCluster,
    TaskProcess,
    cluster_request,
    supervised,
    tasks_of,
)
from aioflow.errors import InvalidArgumentError, UnavailableError
from aioflow.net.cluster_spec import ClusterSpec, TaskId, free_addresses
from aioflow.net.credentials import NAMES, Credentials
from aioflow.net.remote_step import outcomes

__all__ = ["start"]

_LOGGER: Final = logging.getLogger("aioflow.distributed")
_VISIBLE_GPUS: Final = "CUDA_VISIBLE_DEVICES"
_READY: Final = b" serves at "  # part of a line that docs/cluster.md specifies
_TOO_LONG: Final = b"(a long line)"
_END_SECONDS: Final = 3.0  # after the time for the steps: answers, graceful closes, exit of the interpreter


@asynccontextmanager
async def start(
    jobs: Jobs,
    *,
    max_restarts: int = 3,
    allow_dirs: Iterable[str | os.PathLike[str]] = (),
    imports: Iterable[str] = (),
    credentials: Credentials | None = None,
    timeout: float = 60.0,
    drain_seconds: float = 10.0,
    may_lose: Collection[str] = (),
) -> AsyncIterator[StartedCluster]:
    """Start a cluster of processes on this machine for the duration of the block.

        async with aioflow.distributed.processes.start({"ps": 1, "worker": 2}) as cluster:
            async with aioflow.Session(cluster.target) as session:
                ...

    Each task is `python -m aioflow.worker` at a loopback address. A task that ends is started again at its address,
    without state: a `train.MonitoredTrainingSession` resumes from its last checkpoint. All tasks end with the block, as
    they do at SIGTERM, and also if this program is killed.

    Args:
        jobs: For each job the number of its tasks, or a `Job`. GPUs (`Job.num_gpus`) are assigned one by one, from
            CUDA_VISIBLE_DEVICES if that is set.
        max_restarts: Maximum number of restarts of each task; -1 for no limit.
        allow_dirs: Folders in which graphs may open files on every task.
        imports: Modules that register ops, which every task imports.
        credentials: Credentials of the tasks, for each other and for sessions; by default those of the environment, or
            else a new secret for this cluster. Sessions of this process use them.
        timeout: Time limit in seconds for the start of all tasks.
        drain_seconds: Time for steps that run when the block ends.
        may_lose: Jobs whose tasks may be lost without ending the block, as in elastic training.

    Raises:
        InvalidArgumentError: an argument is out of range.
        DTypeError: an argument has the wrong type.
        DeadlineExceededError: not all tasks serve in time.
        UnavailableError: a task is lost: it has ended more often than `max_restarts` allows. If that happens while the
            block runs, the block is cancelled and raises this error.
    """
    request = cluster_request(
        jobs,
        credentials=credentials,
        allow_dirs=allow_dirs,
        imports=imports,
        max_restarts=max_restarts,
        drain_seconds=drain_seconds,
    )
    async with supervised(_Processes(request, os.environ), request, timeout=timeout, may_lose=may_lose) as cluster:
        yield cluster


class _Process:
    """The state of one task's process."""

    def __init__(self, most: int, environment: Mapping[str, str]) -> None:
        self.restarts = Restarts(most)
        self.environment = environment
        self.running: asyncio.subprocess.Process | None = None


class _Processes:
    """A host of tasks (`supervising.Host`) that runs them as processes of this machine."""

    def __init__(self, request: ClusterRequest, environment: Mapping[str, str]) -> None:
        if request.credentials.seals_loopback:
            raise InvalidArgumentError(
                "processes of this machine do not seal the loopback", expected="seals_loopback=False"
            )
        self._request = request
        # The tasks get the credentials in `request` alone, not also those of this program's environment.
        inherited = {name: value for name, value in environment.items() if name not in NAMES}
        self._processes = {
            task: _Process(request.max_restarts, inherited | own)
            for task, own in environments(request, environment).items()
        }

    async def place(self, seconds: float) -> Mapping[TaskId, str]:
        # All addresses at once, so that they differ.
        return dict(zip(self._processes, free_addresses(len(self._processes)), strict=True))

    async def begin(self, task: TaskId, spec: ClusterSpec) -> TaskProcess:
        process, clock = self._processes[task], asyncio.get_running_loop().time
        failure = ""
        # None: no restart is left.
        while (pause := process.restarts.next(clock())) is not None:
            await asyncio.sleep(pause)
            try:
                running = process.running = await self._process(process, command(self._request, task, spec))
            except OSError as error:  # out of files, processes or memory, perhaps only for a while
                failure = str(error)
                continue
            failure = ""
            # Lines before this one, such as warnings of imports, are skipped.
            while line := await _line_of(running):
                if _READY in line:
                    return TaskProcess(socket.gethostname(), running.pid)
            # Standard output has ended, and the process with it: the loop starts it again.
            await running.wait()
        status = None if process.running is None else process.running.returncode
        why = f"cannot be started ({failure})" if failure else f"has ended with status {status}"
        raise UnavailableError(
            f"{task.name} is lost: its process {why}, and it was started again {process.restarts.count} times",
            expected=f"at most {self._request.max_restarts} restarts",
        )

    async def _process(self, process: _Process, arguments: Sequence[str]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            stdin=asyncio.subprocess.PIPE,  # closed when this program ends, for whatever reason
            stdout=asyncio.subprocess.PIPE,
            env=process.environment,
            start_new_session=True,  # keeps a terminal's Ctrl-C from the tasks: this program ends them gracefully
        )

    async def ended(self, task: TaskId) -> None:
        running = self._processes[task].running
        if running is not None:
            while line := await _line_of(running):
                # Reading to the end also keeps the pipe from filling up, which would block the task.
                _LOGGER.info("%s: %s", task.name, line.decode(errors="replace").rstrip())
            await running.wait()

    async def drain(self, task: TaskId) -> None:
        running = self._processes[task].running
        if running is None or running.stdin is None:
            return
        # The end of its standard input tells the task to drain.
        running.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._request.drain_seconds + _END_SECONDS):
                await self.ended(task)

    async def close(self) -> None:
        running = [process.running for process in self._processes.values() if process.running is not None]
        for process in running:
            with suppress(ProcessLookupError):
                process.kill()
        # Reads what is left and waits, so that no process stays behind as a zombie.
        await outcomes(process.communicate() for process in running)


async def _line_of(process: asyncio.subprocess.Process) -> bytes:
    if process.stdout is None:
        return b""
    try:
        return await process.stdout.readline()
    except ValueError:  # the line exceeds the reader's limit; asyncio has dropped that much of it
        return _TOO_LONG


def command(request: ClusterRequest, task: TaskId, spec: ClusterSpec) -> list[str]:
    """Return the arguments of a task's interpreter. They contain no secret, since other users can read them."""
    # In the order of the task numbers, which the command line implies.
    cluster = {job: ",".join(spec.task_address(job, index) for index in spec.task_indices(job)) for job in spec.jobs}
    options = [("--cluster", f"{job}={addresses}") for job, addresses in cluster.items()]
    options += [("--job", task.job), ("--task", str(task.number))]
    options += [("--cpus", str(request.jobs[task.job].cpu_devices)), ("--drain-seconds", f"{request.drain_seconds:g}")]
    options += [("--allow-dir", folder) for folder in request.allow_dirs]
    options += [("--import", module) for module in request.imports]
    return ["-m", "aioflow.worker", "--until-eof", *(f"{name}={value}" for name, value in options)]


def environments(request: ClusterRequest, environment: Mapping[str, str]) -> dict[TaskId, dict[str, str]]:
    """Return the additional environment variables of each task: its credentials and its GPUs.

    Raises:
        InvalidArgumentError: there are fewer GPUs than the jobs request, or a job requests a fraction of one.
    """
    # One iterator for all tasks: each GPU is given to one task.
    gpus = _visible_gpus(environment.get(_VISIBLE_GPUS))
    found: dict[TaskId, dict[str, str]] = {}
    for task in tasks_of(request.jobs):
        number = request.jobs[task.job].num_gpus
        if number != int(number):
            raise InvalidArgumentError("a process has whole GPUs", expected="a whole number", actual=number)
        own = list(islice(gpus, int(number)))
        if len(own) < number:
            raise InvalidArgumentError(f"no GPU is left for {task.name}", expected=number, actual=len(own))
        # An empty list hides all GPUs from tasks that asked for none.
        found[task] = {_VISIBLE_GPUS: ",".join(own), **request.credentials.environment()}
    return found


def _visible_gpus(visible: str | None) -> Iterator[str]:
    """Yield the names of the GPUs that this program sees; without a setting, all numbers from 0."""
    return map(str, count()) if visible is None else iter([gpu for gpu in visible.split(",") if gpu.strip()])
