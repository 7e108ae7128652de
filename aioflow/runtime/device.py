"""Devices and the backends behind them, found by entry point and imported when a process first needs its devices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Any, Final

from aioflow.config import SessionConfig
from aioflow.errors import AlreadyRegisteredError, InvalidArgumentError, NotFoundError
from aioflow.installed import any_zipped, entry_points
from aioflow.kernels.registry import HOST, KERNELS
from aioflow.kernels.resources import ResourceManager
from aioflow.release import install_command
from aioflow.runtime.backend_api import Backend, BackendDevice
from aioflow.work.forking import not_forked

__all__ = [
    "ENTRY_POINTS",
    "KERNEL_PACKAGES",
    "Device",
    "backends",
    "declared",
    "host",
    "load_backend",
    "make_devices",
    "present_devices",
]

ENTRY_POINTS: Final = "aioflow.backends"
KERNEL_PACKAGES: Final = "aioflow.kernels"  # entry points whose functions register kernels for the backends' devices
_LOADING: Final = threading.RLock()  # one thread loads the backends, and whoever comes meanwhile waits for them


@cache
def load_backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
        NotFoundError: none is installed under that name; the error gives the install command.
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
            f"backend {name!r} cannot be imported", expected=f"`{install_command(name)}`", actual=str(error)
        ) from error
    return backend


def backends() -> tuple[Backend, ...]:
    """The installed backends whose library is there, the host's first.

    Raises:
        NotFoundError: there is none for the host.
        AlreadyRegisteredError: two have the same device type.
    """
    with not_forked(), _LOADING:
        return _loaded()


@cache
def _loaded() -> tuple[Backend, ...]:
    found: list[Backend] = []
    for name in sorted(point.name for point in declared(ENTRY_POINTS)):
        try:
            found.append(load_backend(name))
        except NotFoundError:
            continue  # `python -m aioflow doctor` says what to install
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
                f"two backends have devices of type {backend.device_type}",
                expected="a type of its own for each",
                actual=[backend.name, other.name],
            )
    with KERNELS.trusting():
        for package in declared(KERNEL_PACKAGES):
            package.load()()
    return tuple(found)


def declared(group: str) -> list[Any]:
    """Return what the installed distributions declare for a group: each has a name, and what it loads."""
    if not any_zipped():
        return list(entry_points(group))
    with not_forked():
        from importlib import metadata  # brings email and zipfile along
    # Once where two declare the same, as `installed.entry_points` does.
    return list({(point.name, point.value): point for point in metadata.entry_points(group=group)}.values())


def host() -> BackendDevice:
    """The host's first CPU, for whoever computes outside a session's devices."""
    return backends()[0].device(0)


@dataclass(slots=True)
class Device:
    """One device of a worker.

    Attributes:
        name: The full name.
        backend: The device itself: its kernels are bound for it, and its executor runs its strands.
    """

    name: str
    backend: BackendDevice
    resources: ResourceManager = field(default_factory=ResourceManager)

    @property
    def is_host(self) -> bool:
        """Whether its arrays are in the host's memory."""
        return self.backend.device_type == HOST


def make_devices(config: SessionConfig, task: str) -> Iterator[Device]:
    """The devices of a process, the host's first.

    Raises:
        InvalidArgumentError: no CPU is requested.
    """
    for backend, index in present_devices(config):
        yield Device(f"{task}/device:{backend.device_type}:{index}", backend.device(index, config.threads))


def present_devices(config: SessionConfig) -> Iterator[tuple[Backend, int]]:
    """The devices of a process as backends and numbers, the host's first: CPUs as they are counted in
    `SessionConfig.device_count`, which may limit the others.

    Raises:
        InvalidArgumentError: no CPU is requested.
    """
    for backend in backends():
        for index in range(_how_many(backend, config)):
            yield backend, index


def _how_many(backend: Backend, config: SessionConfig) -> int:
    present, wanted = backend.count(), config.device_count.get(backend.device_type)
    if backend.device_type == HOST and wanted is not None and wanted < 1:
        raise InvalidArgumentError("a process needs a CPU device", expected="device_count of CPU ≥ 1", actual=wanted)
    if present is None:
        return 1 if wanted is None else wanted
    return present if wanted is None else min(present, wanted)
