"""Devices and their backends, which are found by entry point and imported when a process first needs its devices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Any, Final

from aioflow.concurrency.forking import not_forked
from aioflow.concurrency.threads import in_thread
from aioflow.config import SessionConfig
from aioflow.errors import AlreadyRegisteredError, NotFoundError
from aioflow.kernels.registry import HOST, KERNELS
from aioflow.kernels.resources import ResourceManager
from aioflow.loading.installed import any_zipped, entry_points
from aioflow.memory.collector import full_collections_postponed
from aioflow.release import install_command, install_command_for
from aioflow.runtime.backend_api import Backend, BackendDevice

ENTRY_POINTS: Final = "aioflow.backends"
KERNEL_PACKAGES: Final = "aioflow.kernels"  # entry points of functions that register kernels for the backends' devices
_LOADING: Final = threading.RLock()  # one thread loads the backends; other callers wait for it


@cache
def load_backend(name: str) -> Backend:
    """Return the backend of that name.

    Raises:
        NotFoundError: no backend of that name is installed, or it cannot be imported. The error contains the install
            command.
    """
    found = {point.name: point for point in declared(ENTRY_POINTS)}
    if name not in found:
        raise NotFoundError(
            f"no backend {name!r} is installed",
            expected=f"one of {sorted(found)}, or `{install_command(name)}`",
            actual=name,
        )
    try:
        with not_forked(), KERNELS.trusting():
            backend: Backend = found[name].load()()
    except ImportError as error:
        raise NotFoundError(
            f"backend {name!r} cannot be imported",
            expected=f"`{install_command_for(error, name)}`",
            actual=str(error),
        ) from error
    return backend


def backends() -> tuple[Backend, ...]:
    """Return the installed backends whose library is present, the host's first.

    Raises:
        NotFoundError: there is no backend for the host.
        AlreadyRegisteredError: two backends have the same device type.
    """
    with not_forked(), _LOADING:
        return _loaded()


async def import_backends() -> None:
    """Import the backends in a thread, unless they are, so that the event loop goes on: NumPy's alone takes 50 ms."""
    if not _loaded.cache_info().currsize:
        await in_thread(full_collections_postponed()(backends))


@cache
def _loaded() -> tuple[Backend, ...]:
    found: list[Backend] = []
    for name in sorted(point.name for point in declared(ENTRY_POINTS)):
        try:
            found.append(load_backend(name))
        except NotFoundError:
            continue  # `python -m aioflow doctor` shows what to install
    # False sorts before True. The sort is stable, so the other backends stay in the order of their names.
    found.sort(key=lambda backend: backend.device_type != HOST)
    if not found or found[0].device_type != HOST:
        raise NotFoundError(
            "no backend for the host's CPU is installed",
            expected=f"one of device type {HOST}",
            actual=[backend.device_type for backend in found],
        )
    for backend, other in combinations(found, 2):
        if backend.device_type == other.device_type:
            raise AlreadyRegisteredError(
                f"two backends provide devices of type {backend.device_type}",
                expected="a distinct device type for each backend",
                actual=[backend.name, other.name],
            )
    with KERNELS.trusting():
        for package in declared(KERNEL_PACKAGES):
            package.load()()
    return tuple(found)


def declared(group: str) -> list[Any]:
    """Return the entry points that the installed distributions declare in `group`."""
    if not any_zipped():
        return list(entry_points(group))
    with not_forked():
        from importlib import metadata  # brings email and zipfile along
    # Two distributions may declare the same entry point; `loading.installed.entry_points` also returns it once.
    return list({(point.name, point.value): point for point in metadata.entry_points(group=group)}.values())


def host() -> BackendDevice:
    """Return the host's first CPU, for computations outside a session's devices."""
    return backends()[0].device(0)


@dataclass(slots=True)
class Device:
    """One device of a worker.

    Attributes:
        name: The full name.
        backend: The backend's device, which binds kernels and whose executor runs strands.
        resources: The resources on the device.
    """

    name: str
    backend: BackendDevice
    resources: ResourceManager = field(default_factory=ResourceManager)

    def __post_init__(self) -> None:
        self.resources.device = self.name

    @property
    def is_host(self) -> bool:
        """True if its arrays are in the host's memory."""
        return self.backend.device_type == HOST


def make_devices(config: SessionConfig, task: str) -> Iterator[Device]:
    """Yield the devices of a process, the host's first. Raises as `backends`."""
    for backend, index in present_devices(config):
        yield Device(f"{task}/device:{backend.device_type}:{index}", backend.device(index, config.threads))


def present_devices(config: SessionConfig) -> Iterator[tuple[Backend, int]]:
    """Yield the devices of a process as backends and indices, the host's first.

    `SessionConfig.device_count` determines the number of CPUs, and limits the number of other devices. Raises as
    `backends`.
    """
    for backend in backends():
        for index in range(_how_many(backend, config)):
            yield backend, index


def _how_many(backend: Backend, config: SessionConfig) -> int:
    present, wanted = backend.count(), config.device_count.get(backend.device_type)
    if present is None:
        return 1 if wanted is None else wanted
    return present if wanted is None else min(present, wanted)
