"""Where the resources of a cluster are: decided once, by one of its tasks, for all clients.

A client that has placed a resource asks this task, the keeper, which knows what it told others before. What it has not
been asked since it started it looks up: a resource that exists is where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from aioflow.errors import DataLossError, OpError, ResourceExhaustedError
from aioflow.graph.arrays import Array
from aioflow.net.channel import Channel
from aioflow.net.messages import HOLDS
from aioflow.runtime.worker import Worker

__all__ = ["Homes", "Resource", "keeper_of", "pack_texts", "unpack_texts"]

_MOST: Final = 1_000_000
_SECONDS: Final = 2.0  # for another task to say what it has

Reach: TypeAlias = Callable[[str], AbstractAsyncContextManager[Channel]]


class Resource(NamedTuple):
    """What names a resource in a cluster."""

    container: str
    name: str


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
        self._known: dict[Resource, str] = {}

    async def settle(self, resources: Sequence[Resource], devices: Sequence[str]) -> list[str]:
        """The devices of the resources, which are those proposed where nobody has decided otherwise.

        Raises:
            ResourceExhaustedError: there are too many.
        """
        new = [resource for resource in resources if resource not in self._known]
        if len(self._known) + len(new) > _MOST:
            raise ResourceExhaustedError("resources of a cluster", expected=f"at most {_MOST}", actual=len(new))
        if new:
            found = await self._look_up(new)
            for resource, device in zip(new, found, strict=True):
                if device:
                    self._known.setdefault(resource, device)
        return [self._known.setdefault(*pair) for pair in zip(resources, devices, strict=True)]

    def held(self, resources: Sequence[Resource]) -> list[str]:
        """The device here that has each of the resources, or ""."""
        devices = self._worker.devices.items()
        return [
            next((name for name, device in devices if device.resources.find(*resource) is not None), "")
            for resource in resources
        ]

    async def _look_up(self, resources: Sequence[Resource]) -> list[str]:
        found = self.held(resources)
        message = pack_texts(resources)

        async def ask(task: str) -> None:
            with suppress(OpError):  # what cannot be reached has nothing that anybody can use
                async with self._reach(task) as channel:
                    reply = await channel.call(HOLDS, {}, [message], timeout=_SECONDS)
                    for index, (device,) in enumerate(unpack_texts(reply.tensors, 1, len(resources))):
                        found[index] = found[index] or device

        async with asyncio.TaskGroup() as tg:
            for task in self._others():
                tg.create_task(ask(task))
        return found


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
