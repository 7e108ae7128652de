"""Clusters whose tasks are Ray actors. Ray places and supervises them; tensors use aioflow's own TCP connections."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any, Final

from aioflow.concurrency.threads import in_thread
from aioflow.distributed.ray_actor import WorkerActor
from aioflow.distributed.supervising import (
    ClusterRequest,
    Job,
    Jobs,
    StartedCluster,
    TaskProcess,
    cluster_request,
    device_count,
    supervised,
    tasks_of,
)
from aioflow.errors import AlreadyExistsError, DeadlineExceededError, InvalidArgumentError, UnavailableError
from aioflow.loading.later import not_installed
from aioflow.net.cluster_spec import ClusterSpec, TaskId
from aioflow.net.credentials import Credentials
from aioflow.net.errors_codec import decode_error
from aioflow.net.remote_step import outcomes

__all__ = ["start"]


# ── requests to Ray as plain data: a bundle of resources for each task, and the options of its actor ──────────────────


STRATEGIES: Final = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def check_strategy(strategy: str) -> None:
    """Raise InvalidArgumentError if Ray has no such strategy."""
    if strategy not in STRATEGIES:
        raise InvalidArgumentError("no such strategy of placement", expected=STRATEGIES, actual=strategy)


def bundles(jobs: Mapping[str, Job]) -> list[dict[str, float]]:
    """Return the resources of each task's bundle, in the order of `tasks_of`.

    Raises InvalidArgumentError if a task needs no resources.
    """
    found = []
    for task in tasks_of(jobs):
        bundle = {name: amount for name, amount in _amounts(jobs[task.job]).items() if amount}
        if not bundle:
            raise InvalidArgumentError(
                f"the job {task.job!r} needs nothing, and Ray would have no place for it", expected="num_cpus above 0"
            )
        found.append(bundle)
    return found


def _amounts(job: Job) -> dict[str, float]:
    return {"CPU": job.num_cpus, "GPU": job.num_gpus, **job.resources}


def actor_options(job: Job, max_restarts: int) -> dict[str, object]:
    """Return the options for `ray.remote(…).options`.

    Ray repeats no call of a restarted actor. The supervisor does, and so notices the restart.
    """
    return {
        "num_cpus": job.num_cpus,
        "num_gpus": job.num_gpus,
        "resources": dict(job.resources) or None,
        "max_restarts": max_restarts,
        # Calls are not repeated: a repeated `ended` would hide the restart.
        "max_task_retries": 0,
    }


def orders(request: ClusterRequest, task: TaskId, spec: ClusterSpec, bind: str | None) -> dict[str, object]:
    """Return the arguments with which an actor starts serving, as plain data.

    They are never part of the actor's constructor arguments, since Ray stores those.
    """
    known = request.credentials
    return {
        "cluster": spec.as_dict(),
        "secret": known.secret,
        "tls": None if known.tls is None else known.tls.files,
        "seals_loopback": known.seals_loopback,
        "allow_dirs": list(request.allow_dirs),
        "device_count": device_count(request.jobs[task.job]),
        "bind": bind,
    }


# ── the host: a placement group with one bundle per task, and an actor in each bundle ─────────────────────────────────
#
# A bundle keeps its actor on its node. So a restarted actor keeps its address and binds its port again. If the node is
# gone, the address is lost too.


_LOGGER: Final = logging.getLogger("aioflow.distributed")
_SOON: Final = 5.0  # seconds until a warning that Ray has no room
_PAUSE: Final = 0.1  # seconds between attempts
_DRAIN_SECONDS: Final = 3.0  # after the time for the steps: answers, graceful closes
_END_SECONDS: Final = 5.0  # wait for killed actors
_LINE: Final = 300  # maximum characters of a line of Ray's message


class RayHost:
    """A placement group and its actors (`supervising.Host`).

    Args:
        ray: The module, connected to a cluster.
        request: The tasks to start.
        strategy: Strategy of the placement group.
        bind: Host at which the workers listen, if it is not their node's address.
        patience: Seconds in which Ray must restart an actor.

    Raises:
        InvalidArgumentError: a task needs no resources.
    """

    def __init__(self, ray: Any, request: ClusterRequest, strategy: str, bind: str | None, patience: float) -> None:
        self._ray = ray
        self._request = request
        self._strategy = strategy
        self._bind = bind
        self._patience = patience
        self._bundles = bundles(request.jobs)
        self._group: Any = None
        self._actors: dict[TaskId, Any] = {}

    async def place(self, seconds: float) -> Mapping[TaskId, str]:
        try:
            async with asyncio.timeout(seconds) as limit:
                make = partial(self._ray.util.placement_group, self._bundles, strategy=self._strategy)
                # Critical: a group made after a cancellation would stay in Ray forever.
                await in_thread(self._keep_group, make, critical=True)
                await self._until_there_is_room(seconds)
                await in_thread(self._make_actors, critical=True)
                async with asyncio.TaskGroup() as tg:
                    found = {task: tg.create_task(self._address(task)) for task in self._actors}
        except ExceptionGroup as group:
            # The caller expects the error of an actor, without a group around it.
            raise group.exceptions[0] from None
        except TimeoutError as error:
            # Another timeout, inside Ray, is not this one.
            if not limit.expired():
                raise
            free = await in_thread(self._ray.available_resources, effects=False)
            raise DeadlineExceededError(
                f"Ray has no room for all tasks within {seconds:g} s",
                expected=f"{self._bundles}, placed by {self._strategy}",
                actual=f"free: {free}",
            ) from error
        return {task: address.result() for task, address in found.items()}

    async def _until_there_is_room(self, seconds: float) -> None:
        said = "Ray has no room yet for %s; waiting up to %g s. ray.available_resources() lists the free resources"
        # Logged once while this waits: the cause may be a request that Ray can never meet.
        saying = asyncio.get_running_loop().call_later(_SOON, _LOGGER.warning, said, self._bundles, seconds)
        try:
            await self._group.ready()
        finally:
            saying.cancel()

    def _keep_group(self, make: Callable[[], object]) -> None:
        # Assigned in the thread: `close` removes the group even if the waiting task is cancelled meanwhile.
        self._group = make()

    def _make_actors(self) -> None:
        """Create the actors. Each takes some tens of milliseconds the first time, when Ray exports the class."""
        made = self._ray.remote(WorkerActor)
        strategies = self._ray.util.scheduling_strategies
        for index, task in enumerate(tasks_of(self._request.jobs)):
            place = strategies.PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
            options = actor_options(self._request.jobs[task.job], self._request.max_restarts)
            actor = made.options(scheduling_strategy=place, **options)
            self._actors[task] = actor.remote(task.job, task.number, list(self._request.imports))

    async def _address(self, task: TaskId) -> str:
        return str(await self._answer(task, lambda actor: actor.place.remote(self._bind)))

    async def begin(self, task: TaskId, spec: ClusterSpec) -> TaskProcess:
        told = orders(self._request, task, spec, self._bind)
        found = "no process"
        try:
            async with asyncio.timeout(self._patience) as limit:
                while True:
                    answer = await self._answer(task, lambda actor: actor.begin.remote(told))
                    if "error" not in answer:
                        return TaskProcess(answer["node"], answer["pid"])
                    error = decode_error(answer["error"], task.name)
                    # Only this error passes by itself.
                    if not isinstance(error, AlreadyExistsError):
                        raise error
                    found = error.message  # the port is in use, perhaps by the task's previous process
                    await asyncio.sleep(_PAUSE)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise UnavailableError(
                f"{task.name} is lost: it did not start serving within {self._patience:g} s",
                expected="resources and its port free on its node; otherwise, start the cluster again",
                actual=found,
            ) from error

    async def _answer(self, task: TaskId, ask: Callable[[Any], Any]) -> Any:
        """Return an actor's answer, after its restart if necessary. Raise UnavailableError if the task is lost."""
        errors = self._ray.exceptions
        while True:
            try:
                return await ask(self._actors[task])
            except errors.ActorUnavailableError:
                # Ray is restarting the actor; the call is repeated until it answers or is lost.
                await asyncio.sleep(_PAUSE)
            except errors.RayError as error:
                raise self._lost(task, error) from error

    def _lost(self, task: TaskId, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"{task.name} is lost: {_brief(error)}",
            expected=f"an actor that starts, and at most {self._request.max_restarts} restarts",
        )

    async def ended(self, task: TaskId) -> None:
        errors = self._ray.exceptions
        try:
            await self._actors[task].ended.remote()
        except errors.ActorUnavailableError:
            return  # its process has died, and Ray restarts it
        except errors.RayError as error:
            raise self._lost(task, error) from error

    async def drain(self, task: TaskId) -> None:
        seconds = self._request.drain_seconds
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds + _DRAIN_SECONDS):
                try:
                    await self._actors[task].drain.remote(seconds)
                except self._ray.exceptions.RayError as error:
                    _LOGGER.info("%s could not be drained: %s", task.name, _brief(error))

    async def close(self) -> None:
        await in_thread(self._remove, critical=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await outcomes(_ended(actor.ended.remote()) for actor in self._actors.values())

    def _remove(self) -> None:
        for actor in self._actors.values():
            # `kill` ends an actor without restarting it.
            self._ray.kill(actor)
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)


async def _ended(call: Any) -> None:
    """Await a call of a killed actor, which fails once Ray reports that the actor is gone.

    Ray's references can be awaited but are not coroutines, which `outcomes` requires.
    """
    await call


def _brief(error: Exception) -> str:
    """Return the first and the last line of a message; the last has the error of an actor's constructor."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " … ".join(line[:_LINE] for line in dict.fromkeys((lines[0], lines[-1])))


# ── the public function ───────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def start(
    jobs: Jobs,
    *,
    strategy: str = "PACK",
    bind: str | None = None,
    max_restarts: int = 3,
    allow_dirs: Iterable[str | os.PathLike[str]] = (),
    imports: Iterable[str] = (),
    credentials: Credentials | None = None,
    timeout: float = 60.0,
    drain_seconds: float = 10.0,
    may_lose: Collection[str] = (),
) -> AsyncIterator[StartedCluster]:
    """Start a cluster of Ray actors for the duration of the block.

        jobs = {"ps": 1, "worker": aioflow.distributed.Job(4, num_cpus=2, num_gpus=1)}
        async with aioflow.distributed.ray.start(jobs, strategy="SPREAD") as cluster:
            async with aioflow.Session(cluster.target) as session:
                ...

    The program uses the Ray cluster that it has chosen by `ray.init`, or else the one that `ray.init()` finds or
    starts. Each task is an actor in a bundle of one placement group, with the resources of its `Job` and the GPUs that
    Ray assigns. Ray restarts an actor that dies on its node, at its address, without state: a
    `train.MonitoredTrainingSession` resumes from its last checkpoint. If the node is gone, the task is lost. Actors and
    placement group end with the block, and with this program.

    Args:
        jobs: As in `aioflow.distributed.processes.start`.
        strategy: Strategy of the placement group: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".
        bind: Host to listen at if that is not the node's address, such as "0.0.0.0".
        max_restarts: As in `aioflow.distributed.processes.start`.
        allow_dirs: As in `aioflow.distributed.processes.start`; folders of the nodes.
        imports: As in `aioflow.distributed.processes.start`.
        credentials: As in `aioflow.distributed.processes.start`; certificate files are those of the nodes.
        timeout: Time limit in seconds for the start of all tasks, and for each restart of an actor by Ray.
        drain_seconds: As in `aioflow.distributed.processes.start`.
        may_lose: As in `aioflow.distributed.processes.start`.

    Raises:
        UnimplementedError: Ray is not installed: `pip install 'aioflow-engine[ray]'`.
        InvalidArgumentError: an argument is out of range.
        DTypeError: an argument has the wrong type.
        DeadlineExceededError: Ray has no room for all tasks in time, or they do not serve in time.
        UnavailableError: a task is lost: its node is gone, or it has ended more often than `max_restarts` allows. If
            that happens while the block runs, the block is cancelled and raises this error. A cluster that is started
            again resumes from the last checkpoint.
    """
    check_strategy(strategy)
    request = cluster_request(
        jobs,
        credentials=credentials,
        allow_dirs=allow_dirs,
        imports=imports,
        max_restarts=max_restarts,
        drain_seconds=drain_seconds,
    )
    async with _connected() as ray:
        host = RayHost(ray, request, strategy, bind, timeout)
        async with supervised(host, request, timeout=timeout, may_lose=may_lose) as cluster:
            yield cluster


def _ray() -> Any:
    """Import Ray, which takes a third of a second."""
    try:
        ray = import_module("ray")
        for part in ("exceptions", "util.placement_group", "util.scheduling_strategies"):
            import_module(f"ray.{part}")
    except ImportError as error:
        raise not_installed("a cluster of actors", "Ray", error, "ray") from error
    return ray


@asynccontextmanager
async def _connected() -> AsyncIterator[Any]:
    """Yield Ray, connected to a cluster. A connection made here ends with the block."""
    # In a thread: the import would block the event loop for as long.
    ray = await in_thread(_ray)
    # The program's own connection stays open after the block.
    if ray.is_initialized():
        yield ray
        return
    try:
        await in_thread(ray.init, critical=True)
        yield ray
    finally:
        # Also after a failed `init`, which may have started processes.
        await in_thread(ray.shutdown, critical=True)
