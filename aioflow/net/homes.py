"""Where the resources of a cluster are: decided once, by one of its tasks, for all clients.

A client that has placed a resource asks this task, the keeper. Before the keeper answers, the task that is to have the
resource writes it down: a keeper that has been restarted looks up what the others have, and what they are to have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from aioflow.errors import (
    AbortedError,
    DataLossError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
    UnavailableError,
)
from aioflow.graph.arrays import Array
from aioflow.graph.device_spec import DeviceSpec, task_of
from aioflow.net.channel import Channel
from aioflow.net.messages import CLAIM, HOLDS
from aioflow.runtime.worker import Worker

__all__ = ["Holdings", "Homes", "Resource", "keeper_of", "pack_texts", "unpack_texts"]

_MOST: Final = 1_000_000
_SECONDS: Final = 2.0  # for another task to say what it has, and to be there where it is to have something
_PAUSE: Final = 0.05  # seconds between attempts to reach it

Reach: TypeAlias = Callable[[str], AbstractAsyncContextManager[Channel]]
Name: TypeAlias = tuple[str, str]  # container and name of resources


class Resource(NamedTuple):
    """What names a resource, and where it may be.

    Attributes:
        request: The device that its user asks for, in part: resources of one name in two such places are two.
    """

    container: str
    name: str
    request: str


def keeper_of(tasks: Sequence[str]) -> str:
    """The task that all clients ask."""
    return min(tasks)


class Holdings:
    """What one task has, or has been told that it will have.

    It remembers who has asked last: what another process of the keeper's task had sent before, and comes late, is void.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._claimed: dict[Name, dict[str, str]] = {}  # devices by what was asked for
        self._keeper = 0

    def look_up(self, names: Sequence[Name], keeper: int = 0) -> list[tuple[Resource, str]]:
        """The resources of these names that are here, as if each had been asked for right there, and those to come.

        Args:
            keeper: The number of the process that asks.
        """
        self._keeper = keeper
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

    def claim(self, homes: Mapping[Resource, str], keeper: int = 0) -> None:
        """These resources are to be on these devices, and nowhere else.

        Raises:
            AbortedError: another process has asked since what is here.
            NotFoundError: there is no such device here.
            InvalidArgumentError: what was asked for is malformed.
            ResourceExhaustedError: there are too many.
        """
        if self._keeper not in (0, keeper):
            raise AbortedError("another task keeps where the resources of the cluster are")
        for resource, device in homes.items():
            DeviceSpec.from_string(resource.request)
            if device not in self._worker.devices:
                raise NotFoundError("no such device", expected=f"one of {list(self._worker.devices)}", actual=device)
        _require_room(self._claimed, (resource[:2] for resource in homes))
        for resource, device in homes.items():
            self._claimed.setdefault(resource[:2], {})[resource.request] = device


class Homes:
    """What one task knows of it.

    Args:
        holdings: Its own.
        others: The names of the other tasks.
        reach: Opens a channel to one of them.
    """

    def __init__(self, holdings: Holdings, others: Callable[[], Sequence[str]], reach: Reach) -> None:
        self.holdings = holdings
        self._others = others
        self._reach = reach
        self._known: dict[Name, list[str]] = {}
        self._decided: dict[Resource, str] = {}

    async def settle(self, resources: Sequence[Resource], devices: Sequence[str]) -> list[str]:
        """The devices of the resources, which are those proposed where nobody has decided otherwise. Their tasks know.

        Raises:
            ResourceExhaustedError: there are too many.
            InvalidArgumentError: a request or a device is malformed; nothing is decided then.
            DeadlineExceededError, UnavailableError: a task does not say what it has, and may have something; nothing is
                decided then. Or one that is to have a resource is not there.
        """
        for name in {*(resource.request for resource in resources), *devices}:
            DeviceSpec.from_string(name)
        while new := [name for name in dict.fromkeys(r[:2] for r in resources) if name not in self._known]:
            _require_room(self._known, new)
            self._learn(new, await self._look_up(new))
        settled = [self._settled(*pair) for pair in zip(resources, devices, strict=True)]
        try:
            await self._claim(dict(zip(resources, settled, strict=True)))
        except AbortedError:  # they have been asked by a predecessor, late; they are asked again next time
            for resource in resources:
                self._known.pop(resource[:2], None)
            raise
        return settled

    def _learn(self, names: Sequence[Name], found: Sequence[tuple[Resource, str]]) -> None:
        for name in names:
            self._known.setdefault(name, [])
        for resource, device in sorted(found, key=lambda row: (row[0].request != row[1], row)):  # first what exists
            self._decided.setdefault(resource, device)
            self._note(resource, device)

    def _note(self, resource: Resource, device: str) -> None:
        known = self._known[resource[:2]]
        if device not in known:
            known.append(device)

    def _settled(self, resource: Resource, device: str) -> str:
        decided = self._decided.get(resource)  # which need not match: soft placement may have found no such device
        if decided is None:
            asked = DeviceSpec.from_string(resource.request)
            found = (home for home in self._known[resource[:2]] if asked.matches(DeviceSpec.from_string(home)))
            decided = self._decided[resource] = next(found, device)
            self._note(resource, decided)
        return decided

    async def _look_up(self, names: Sequence[Name]) -> list[tuple[Resource, str]]:
        """What all tasks have of these names, or are to have."""
        found = self.holdings.look_up(names)
        message = pack_texts(names)

        async def ask(task: str) -> None:
            try:
                async with self._reach(task) as channel:
                    reply = await channel.call(HOLDS, {}, [message], timeout=_SECONDS)
            except UnavailableError as error:
                if not _is_refusal(error):  # who is there, and says nothing, may have it
                    raise
            else:
                found.extend(resource_rows(reply.tensors) if reply.tensors else [])

        await self._of_each(self._others(), ask)
        return found

    async def _claim(self, homes: Mapping[Resource, str]) -> None:
        """Have the tasks write down what they are to have."""
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
        """Ask all of the tasks at once. Raises the first error when all have been asked."""
        errors: list[OpError] = []

        async def asked(task: str) -> None:
            try:
                await ask(task)
            except OpError as error:
                errors.append(error)

        async with asyncio.TaskGroup() as tg:
            for task in tasks:
                tg.create_task(asked(task))
        if errors:
            raise errors[0]


def _require_room(table: Mapping[Name, object], names: Iterable[Name]) -> None:
    new = sum(name not in table for name in set(names))
    if len(table) + new > _MOST:
        raise ResourceExhaustedError("resources of a cluster", expected=f"at most {_MOST}", actual=len(table) + new)


def _is_refusal(error: BaseException) -> bool:
    """Whether nothing listens there: who cannot be reached, or is not heard any more, may go on all the same."""
    while error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, ConnectionRefusedError)


def resource_rows(tensors: Sequence[Array]) -> list[tuple[Resource, str]]:
    """The resources in a message, each with its device. Raises DataLossError."""
    return [(Resource(*row[:3]), row[3]) for row in unpack_texts(tensors, 4)]


def pack_texts(rows: Sequence[Sequence[str]]) -> Array:
    """Rows of texts, at least one, as a tensor, which a message has more room for than its header."""
    packed = np.empty((len(rows), len(rows[0])), object)
    for index, row in enumerate(rows):
        packed[index] = [text.encode() for text in row]
    return packed


def unpack_texts(tensors: Sequence[Array], columns: int, rows: int | None = None) -> list[list[str]]:
    """The rows in the one tensor of a message. Raises DataLossError."""
    fits = len(tensors) == 1 and tensors[0].dtype == object and tensors[0].ndim == 2
    if not fits or tensors[0].shape != (len(tensors[0]) if rows is None else rows, columns):
        raise DataLossError("malformed rows of texts", expected=(rows, columns), actual=[t.shape for t in tensors])
    return [[text.decode("utf-8", "replace") for text in row] for row in tensors[0].tolist()]
