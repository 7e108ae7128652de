"""The resource directory of a cluster: one task, the coordinator, decides for all clients where resources are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from aioflow.arguments import brief
from aioflow.errors import (
    AbortedError,
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)
from aioflow.graph.device_spec import DeviceSpec, task_of
from aioflow.memory.values import Array
from aioflow.net.limits import DEFAULT_LIMITS, Limits, Quota
from aioflow.net.messages import CLAIM, HOLDS
from aioflow.net.outbox import OpenChannel
from aioflow.runtime.worker import Worker

__all__ = ["Holdings", "Resource", "ResourceDirectory", "coordinator_of", "pack_texts", "unpack_texts"]


# ── rows of resources, processed without blocking the event loop ──────────────────────────────────────────────────────


_TURN: Final = 512  # rows between two yields to the event loop: about a millisecond
_T = TypeVar("_T")


class Resource(NamedTuple):
    """The identity of a resource.

    Attributes:
        container: Name of its container.
        name: Its name.
        request: The partial device specification of its user. Resources of one name with different requests are
            distinct.
    """

    container: str
    name: str
    request: str


async def unhurried(rows: Iterable[_T]) -> AsyncIterator[_T]:
    """Yield the rows, and let the event loop run other tasks in between."""
    for number, row in enumerate(rows, 1):
        yield row
        if number % _TURN == 0:
            await asyncio.sleep(0)


# ── rows as tensors ───────────────────────────────────────────────────────────────────────────────────────────────────


async def pack_rows(rows: Sequence[Sequence[str]]) -> list[Array]:
    """Encode rows of texts as a tensor. Return no tensor if there are no rows."""
    if not rows:
        return []
    packed = np.empty((len(rows), len(rows[0])), object)
    index = 0
    async for row in unhurried(rows):
        packed[index] = [text.encode() for text in row]
        index += 1
    return [packed]


async def read_rows(tensors: Sequence[Array], columns: int, limits: Limits, most: int = 0) -> list[list[str]]:
    """Decode the rows in the single tensor of a request.

    Args:
        tensors: The tensors of the message.
        columns: Number of texts per row.
        limits: Limits of the rows and texts.
        most: Maximum number of rows; 0 for `Limits.rows`.

    Raises:
        DataLossError: the tensors are malformed.
        ResourceExhaustedError: there are too many rows, or a text is too long.
    """
    if not (
        len(tensors) == 1 and tensors[0].dtype == object and tensors[0].ndim == 2 and tensors[0].shape[1] == columns
    ):
        raise DataLossError("malformed rows of texts", expected=(None, columns), actual=[t.shape for t in tensors])
    _check_count(len(tensors[0]), most or limits.rows)
    rows = []
    async for row in unhurried(tensors[0]):
        for text in row:
            if len(text) > limits.name_bytes:
                raise _too_long(len(text), limits)
        rows.append([text.decode("utf-8", "replace") for text in row])
    return rows


async def read_homes(tensors: Sequence[Array], limits: Limits, most: int = 0) -> list[tuple[Resource, str]]:
    """Decode resources, each with its device. Arguments and errors are those of `read_rows`."""
    return [(Resource(*row[:3]), row[3]) for row in await read_rows(tensors, 4, limits, most)]


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise ResourceExhaustedError("resources in one message", expected=f"at most {most}", actual=count)


def _too_long(size: int, limits: Limits) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        "the name of a resource is too long", expected=f"at most {limits.name_bytes} bytes", actual=size
    )


# ── checks ────────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# All data is checked before any of it is kept.


def check_home(device: str, tasks: Collection[str]) -> None:
    """Raise InvalidArgumentError unless this is the full name of a device of one of the tasks."""
    spec = DeviceSpec.from_string(device)
    if None in (spec.replica, spec.device_type, spec.device_index) or task_of(device) not in tasks:
        raise InvalidArgumentError(
            "a resource cannot be there",
            expected=f"the full name of a device of {brief(sorted(tasks), 200)}",
            actual=brief(device),
        )


async def check_homes(
    resources: Sequence[Resource],
    devices: Sequence[str],
    tasks: Collection[str],
    limits: Limits,
    known: Callable[[tuple[str, str]], int],
) -> None:
    """Raise an error unless all of these resources can be kept.

    Args:
        resources: The resources.
        devices: The device of each.
        tasks: The tasks of the cluster.
        limits: Limits of the resources.
        known: Returns the number of devices that already have resources of a container and name.

    Raises:
        InvalidArgumentError: a request or a device is malformed, or the device does not belong to any of the tasks.
        ResourceExhaustedError: there are too many resources, or a name is too long.
    """
    _check_count(len(resources), limits.rows)
    places: Counter[tuple[str, str]] = Counter()
    checked: set[str] = set()  # distinct devices are few, so check each only once
    async for resource, device in unhurried(zip(resources, devices, strict=True)):
        for text in (*resource, device):
            if len(text) > limits.name_bytes:
                raise _too_long(len(text), limits)
        # Only to raise an error if it is malformed.
        DeviceSpec.from_string(resource.request)
        if device not in checked:
            check_home(device, tasks)
            checked.add(device)
        key = resource.container, resource.name
        places[key] += 1
        check_places(resource, places[key] + known(key), limits)


def check_places(resource: Resource, count: int, limits: Limits) -> None:
    """Raise ResourceExhaustedError if too many devices have resources of this name."""
    if count > limits.places:
        raise ResourceExhaustedError(
            f"places for resources of the name {brief(resource.name)}",
            expected=f"at most {limits.places}",
            actual=count,
        )


def size_of(resource: Resource, device: str) -> int:
    """Return the number of characters that are kept for a resource."""
    return sum(map(len, resource)) + len(device)


# ── the directory ─────────────────────────────────────────────────────────────────────────────────────────────────────
#
# A client that places a resource asks the coordinator (`coordinator_of`). Before it answers, the task that is to own
# the resource records the reservation. A restarted coordinator therefore looks up the resources and reservations of all
# tasks.


# Seconds for another task to answer a lookup, and to become reachable for a reservation.
_SECONDS: Final = 2.0
_PAUSE: Final = 0.05  # seconds between attempts to connect
_ANSWERS: Final = 64  # maximum resources per name in the answer of one task, on average

Name: TypeAlias = tuple[str, str]  # container and name of resources


def coordinator_of(tasks: Sequence[str]) -> str:
    """Return the coordinator: the first task by name, so that all clients choose the same."""
    return min(tasks)


class Holdings:
    """The resources that one task owns, and those reserved for it.

    Remembers the incarnation of the coordinator that asked last. Late requests of its predecessor are rejected.

    Args:
        worker: The task's worker.
        limits: Limits of the reservations.
    """

    def __init__(self, worker: Worker, limits: Limits = DEFAULT_LIMITS) -> None:
        self._worker = worker
        self._limits = limits
        self._room = _room(limits)
        self.task = task_of(next(iter(worker.devices)))
        self._claimed: dict[Name, dict[str, str]] = {}  # reservations: devices by request
        self._coordinator = 0

    def look_up(self, names: Sequence[Name], coordinator: int = 0) -> list[tuple[Resource, str]]:
        """Return the resources of these names that exist here, and the reservations.

        The request of an existing resource is taken to be its device.

        Args:
            names: Containers and names of the resources.
            coordinator: Incarnation of the coordinator that asks.
        """
        self._coordinator = coordinator
        held = [
            (Resource(*name, device), device)
            for name in names
            for device, owner in self._worker.devices.items()
            if owner.resources.find(*name) is not None
        ]
        return held + [
            (Resource(*name, request), device)
            for name in names
            for request, device in self._claimed.get(name, {}).items()
        ]

    def claim(self, homes: Mapping[Resource, str], coordinator: int = 0) -> None:
        """Reserve these resources for the given devices.

        Args:
            homes: The device of each resource.
            coordinator: Incarnation of the coordinator that asks.

        Raises:
            AbortedError: another coordinator has called `look_up` since.
            NotFoundError: this task has no such device.
            InvalidArgumentError: a request is malformed.
            ResourceExhaustedError: there are too many reservations.
        """
        if self._coordinator not in (0, coordinator):
            raise AbortedError("another task keeps where the resources of the cluster are")
        for resource, device in homes.items():
            DeviceSpec.from_string(resource.request)
            if device not in self._worker.devices:
                raise NotFoundError("no such device", expected=f"one of {list(self._worker.devices)}", actual=device)
        new = [resource for resource in homes if resource.request not in self._claimed.get(resource[:2], ())]
        for name, count in Counter(resource[:2] for resource in new).items():
            check_places(Resource(*name, ""), count + len(self._claimed.get(name, ())), self._limits)
        self._room.take(len(new), sum(size_of(resource, homes[resource]) for resource in new))
        for resource, device in homes.items():
            # All checks precede the first change, so a refused request reserves nothing.
            self._claimed.setdefault(resource[:2], {})[resource.request] = device


class ResourceDirectory:
    """The resource directory, as one task knows it.

    Args:
        holdings: The resources of this task.
        others: Returns the names of the other tasks.
        reach: Opens a channel to one of them.
        limits: Limits of the directory, and of one message.
    """

    def __init__(
        self,
        holdings: Holdings,
        others: Callable[[], Sequence[str]],
        reach: OpenChannel,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._limits = limits
        self._room = _room(limits)
        self.holdings = holdings
        self._others = others
        self._reach = reach
        self._known: dict[Name, list[str]] = {}
        self._decided: dict[Resource, str] = {}

    async def resolve(self, resources: Sequence[Resource], devices: Sequence[str]) -> list[str]:
        """Return the devices of the resources: those decided earlier, or else those proposed.

        The tasks that own them have recorded the reservations.

        Args:
            resources: The resources.
            devices: The proposed device of each.

        Raises:
            ResourceExhaustedError: there are too many resources, or a name is too long. Nothing is decided then.
            InvalidArgumentError: a request or device is malformed, or not of this cluster. Nothing is decided then.
            DeadlineExceededError, UnavailableError: a task that may own some of the resources does not answer the
                lookup; nothing is decided then. Or a task that is to own one cannot be reached.
            AbortedError: a task that is to own one has served another coordinator meanwhile. The next call looks the
                resources up again.
        """
        await check_homes(resources, devices, {self.holdings.task, *self._others()}, self._limits, self._places)
        fresh = {r: size_of(r, d) for r, d in zip(resources, devices, strict=True) if r not in self._decided}
        # Held across the lookups, so that concurrent calls cannot exceed the limits together.
        with self._room.reserved(len(fresh), sum(fresh.values())):
            # In a loop, since a concurrent call that was aborted may have removed names meanwhile.
            while new := [name for name in dict.fromkeys(r[:2] for r in resources) if name not in self._known]:
                self._learn(new, await self._look_up(new))
            # No await lies within, so concurrent calls see all of these decisions or none.
            resolved = [self._resolved(*pair) for pair in zip(resources, devices, strict=True)]
        try:
            await self._claim(dict(zip(resources, resolved, strict=True)))
        except AbortedError:  # a task has served another coordinator in between: look up again next time
            for resource in resources:
                self._known.pop(resource[:2], None)
            raise
        return resolved

    def _places(self, name: Name) -> int:
        return len(self._known.get(name, ()))

    def _learn(self, names: Sequence[Name], found: Sequence[tuple[Resource, str]]) -> None:
        for name in names:
            self._known.setdefault(name, [])
        # Existing resources first, so that they take precedence over reservations. Their request equals their device.
        for resource, device in sorted(found, key=lambda row: (row[0].request != row[1], row)):
            if resource not in self._decided:
                self._decide(resource, device)
            self._note(resource, device)

    def _decide(self, resource: Resource, device: str) -> str:
        self._room.add(1, size_of(resource, device))
        self._decided[resource] = device
        return device

    def _note(self, resource: Resource, device: str) -> None:
        known = self._known[resource[:2]]
        if device not in known:
            known.append(device)

    def _resolved(self, resource: Resource, device: str) -> str:
        # The proposed device need not match the request: soft placement may have found no such device.
        decided = self._decided.get(resource)
        if decided is None:
            asked = DeviceSpec.from_string(resource.request)
            found = (home for home in self._known[resource[:2]] if asked.matches(DeviceSpec.from_string(home)))
            decided = self._decide(resource, next(found, device))
            self._note(resource, decided)
        return decided

    async def _look_up(self, names: Sequence[Name]) -> list[tuple[Resource, str]]:
        """Return the existing and reserved resources of these names, of all tasks."""
        found = self.holdings.look_up(names)
        message = await pack_rows(names)
        asked, most = set(names), len(names) * _ANSWERS

        async def ask(task: str) -> None:
            try:
                async with self._reach(task) as channel:
                    reply = await channel.call(HOLDS, {}, message, timeout=_SECONDS)
            except UnavailableError as error:
                if not _is_refusal(error):  # a running task that does not answer may own the resources
                    raise
            else:
                rows = await read_homes(reply.tensors, self._limits, most) if reply.tensors else []
                for resource, device in rows:
                    check_home(device, {task})
                    DeviceSpec.from_string(resource.request)
                # Ignore names that were not requested: `_learn` expects only those.
                found.extend(row for row in rows if row[0][:2] in asked)

        await self._of_each(self._others(), ask)
        return found

    async def _claim(self, homes: Mapping[Resource, str]) -> None:
        """Send each task its reservations, and retry tasks that cannot be reached yet."""
        others = set(self._others())
        rows: dict[str, list[Sequence[str]]] = {}
        for resource, device in homes.items():
            if (task := task_of(device)) in others:
                rows.setdefault(task, []).append((*resource, device))
        until = asyncio.get_running_loop().time() + _SECONDS

        async def tell(task: str) -> None:
            message = pack_texts(rows[task])
            while True:
                try:
                    async with self._reach(task) as channel:
                        await channel.call(CLAIM, {}, [message], timeout=_SECONDS)
                        return
                except UnavailableError:
                    if asyncio.get_running_loop().time() > until:
                        raise
                await asyncio.sleep(_PAUSE)

        await self._of_each(rows, tell)

    async def _of_each(self, tasks: Iterable[str], ask: Callable[[str], Awaitable[None]]) -> None:
        """Call `ask` for all tasks concurrently. Raises the first error once all calls have ended."""
        errors: list[OpError] = []

        async def asked(task: str) -> None:
            try:
                await ask(task)
            except OpError as error:
                # Collected instead of raised: the task group would cancel the other calls and wrap the error.
                errors.append(error)

        async with asyncio.TaskGroup() as tg:
            for task in tasks:
                tg.create_task(asked(task))
        if errors:
            raise errors[0]


def _room(limits: Limits) -> Quota:
    return Quota("resources of a cluster", limits.resources, limits.resource_bytes)


def _is_refusal(error: BaseException) -> bool:
    """Return True if the connection was refused, so that the task is not running.

    A task that cannot be reached, or has gone silent, may still run.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, ConnectionRefusedError)


def pack_texts(rows: Sequence[Sequence[str]]) -> Array:
    """Encode rows of texts, at least one, as a tensor, since a header is limited to fewer bytes."""
    packed = np.empty((len(rows), len(rows[0])), object)
    for index, row in enumerate(rows):
        packed[index] = [text.encode() for text in row]
    return packed


def unpack_texts(tensors: Sequence[Array], columns: int, rows: int | None = None) -> list[list[str]]:
    """Decode the rows in the single tensor of a message. Raises DataLossError."""
    fits = len(tensors) == 1 and tensors[0].dtype == object and tensors[0].ndim == 2
    if not fits or tensors[0].shape != (len(tensors[0]) if rows is None else rows, columns):
        raise DataLossError("malformed rows of texts", expected=(rows, columns), actual=[t.shape for t in tensors])
    return [[text.decode("utf-8", "replace") for text in row] for row in tensors[0].tolist()]
