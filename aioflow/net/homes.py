"""Where the resources of a cluster are: decided once, by one of its tasks, for all clients.

A client that has placed a resource asks this task, the keeper, which knows what it told others before. What it has not
been asked since it started it looks up: a resource that exists is where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from aioflow.errors import DataLossError, OpError, ResourceExhaustedError, UnavailableError
from aioflow.graph.arrays import Array
from aioflow.graph.device_spec import DeviceSpec
from aioflow.net.channel import Channel
from aioflow.net.messages import HOLDS
from aioflow.runtime.worker import Worker

__all__ = ["Homes", "Resource", "keeper_of", "pack_texts", "unpack_texts"]

_MOST: Final = 1_000_000
_SECONDS: Final = 2.0  # for another task to say what it has

Reach: TypeAlias = Callable[[str], AbstractAsyncContextManager[Channel]]


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


class Homes:
    """What one task knows of it.

    Args:
        worker: Its own.
        others: The names of the other tasks.
        reach: Opens a channel to one of them.
    """

    def __init__(self, worker: Worker, others: Callable[[], Sequence[str]], reach: Reach) -> None:
        self._worker = worker
        self._others = others
        self._reach = reach
        self._known: dict[tuple[str, str], list[str]] = {}
        self._decided: dict[Resource, str] = {}

    async def settle(self, resources: Sequence[Resource], devices: Sequence[str]) -> list[str]:
        """The devices of the resources, which are those proposed where nobody has decided otherwise.

        Raises:
            ResourceExhaustedError: there are too many.
            InvalidArgumentError: a request or a device is malformed; nothing is decided then.
            DeadlineExceededError: a task that is there does not say what it has; nothing is decided then.
        """
        for name in {*(resource.request for resource in resources), *devices}:
            DeviceSpec.from_string(name)
        new = list(dict.fromkeys((r.container, r.name) for r in resources if (r.container, r.name) not in self._known))
        if len(self._known) + len(new) > _MOST:
            raise ResourceExhaustedError("resources of a cluster", expected=f"at most {_MOST}", actual=len(new))
        found = await self._look_up(new) if new else []
        for key, held in zip(new, found, strict=True):
            self._known.setdefault(key, held)
        return [self._settled(*pair) for pair in zip(resources, devices, strict=True)]

    def _settled(self, resource: Resource, device: str) -> str:
        decided = self._decided.get(resource)  # which need not match: soft placement may have found no such device
        if decided is None:
            asked = DeviceSpec.from_string(resource.request)
            known = self._known[resource.container, resource.name]
            found = (home for home in known if asked.matches(DeviceSpec.from_string(home)))
            decided = self._decided[resource] = next(found, device)
            if decided not in known:
                known.append(decided)
        return decided

    def held(self, names: Sequence[tuple[str, str]]) -> list[str]:
        """The device here that has each of the resources, or ""."""
        devices = self._worker.devices.items()
        return [
            next((device for device, owner in devices if owner.resources.find(*name) is not None), "") for name in names
        ]

    async def _look_up(self, names: Sequence[tuple[str, str]]) -> list[list[str]]:
        """The devices that have each of the resources."""
        found: list[list[str]] = [[device] if device else [] for device in self.held(names)]
        message = pack_texts(names)
        errors: list[OpError] = []

        async def ask(task: str) -> None:
            try:
                async with self._reach(task) as channel:
                    reply = await channel.call(HOLDS, {}, [message], timeout=_SECONDS)
                    for (device,), devices in zip(unpack_texts(reply.tensors, 1, len(names)), found, strict=True):
                        devices += [device] if device else []
            except UnavailableError:
                pass  # who is not there has nothing
            except OpError as error:  # who is there, and says nothing, may have it
                errors.append(error)

        async with asyncio.TaskGroup() as tg:
            for task in self._others():
                tg.create_task(ask(task))
        if errors:
            raise errors[0]
        return [sorted(devices) for devices in found]


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
