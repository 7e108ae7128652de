"""Checks of the resource locations that other tasks and clients send, without blocking the event loop.

All data is checked before any of it is kept.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np

from aioflow.arguments import brief
from aioflow.errors import DataLossError, InvalidArgumentError, ResourceExhaustedError
from aioflow.graph.device_spec import DeviceSpec, task_of
from aioflow.memory.values import Array
from aioflow.net.limits import Limits

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


# ── as tensors ───────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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
