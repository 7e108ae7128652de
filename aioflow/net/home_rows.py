"""Where resources are, as others say it: checked before anything of it is kept, and without holding the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np

from aioflow.checks.brief import brief
from aioflow.errors import DataLossError, InvalidArgumentError, ResourceExhaustedError
from aioflow.graph.arrays import Array
from aioflow.graph.device_spec import DeviceSpec, task_of
from aioflow.net.limits import Limits

__all__ = [
    "Resource",
    "check_home",
    "check_homes",
    "check_places",
    "pack_rows",
    "read_homes",
    "read_rows",
    "size_of",
    "unhurried",
]

_TURN: Final = 512  # rows between which the event loop does other things: about a millisecond
_T = TypeVar("_T")


class Resource(NamedTuple):
    """What names a resource, and where it may be.

    Attributes:
        request: The device that its user asks for, in part: resources of one name in two such places are two.
    """

    container: str
    name: str
    request: str


async def unhurried(rows: Iterable[_T]) -> AsyncIterator[_T]:
    """The rows, with breaks for the event loop."""
    for number, row in enumerate(rows, 1):
        yield row
        if number % _TURN == 0:
            await asyncio.sleep(0)


# ── as tensors ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def pack_rows(rows: Sequence[Sequence[str]]) -> list[Array]:
    """Rows of texts as a tensor, or no tensor where there are none."""
    if not rows:
        return []
    packed = np.empty((len(rows), len(rows[0])), object)
    index = 0
    async for row in unhurried(rows):
        packed[index] = [text.encode() for text in row]
        index += 1
    return [packed]


async def read_rows(tensors: Sequence[Array], columns: int, limits: Limits, most: int = 0) -> list[list[str]]:
    """The rows in the one tensor of a message that asks for something.

    Args:
        most: How many there may be, if not `Limits.rows`.

    Raises:
        DataLossError: there are none.
        ResourceExhaustedError: there are too many, or one is too long.
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
    """Resources, each with its device. Args, Raises: as `read_rows`."""
    return [(Resource(*row[:3]), row[3]) for row in await read_rows(tensors, 4, limits, most)]


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise ResourceExhaustedError("resources in one message", expected=f"at most {most}", actual=count)


def _too_long(size: int, limits: Limits) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        "the name of a resource is too long", expected=f"at most {limits.name_bytes} bytes", actual=size
    )


# ── what may be kept ─────────────────────────────────────────────────────────────────────────────────────────────────


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
    """Raise unless all of it can be kept.

    Args:
        tasks: Those of the cluster.
        known: On how many devices there are resources of that container and name already.

    Raises:
        InvalidArgumentError: a request or a device is malformed, or the device is of none of the tasks.
        ResourceExhaustedError: there are too many, or a name is too long.
    """
    _check_count(len(resources), limits.rows)
    places: Counter[tuple[str, str]] = Counter()
    checked: set[str] = set()  # devices: there are few
    async for resource, device in unhurried(zip(resources, devices, strict=True)):
        for text in (*resource, device):
            if len(text) > limits.name_bytes:
                raise _too_long(len(text), limits)
        DeviceSpec.from_string(resource.request)
        if device not in checked:
            check_home(device, tasks)
            checked.add(device)
        key = resource.container, resource.name
        places[key] += 1
        check_places(resource, places[key] + known(key), limits)


def check_places(resource: Resource, count: int, limits: Limits) -> None:
    """Raise ResourceExhaustedError if there are too many of the resource's name."""
    if count > limits.places:
        raise ResourceExhaustedError(
            f"places for resources of the name {brief(resource.name)}",
            expected=f"at most {limits.places}",
            actual=count,
        )


def size_of(resource: Resource, device: str) -> int:
    """Letters of what is kept of it."""
    return sum(map(len, resource)) + len(device)
