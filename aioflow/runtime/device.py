"""Devices and the backends behind them, found by entry point and imported when a process first needs its devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from aioflow.config import SessionConfig
from aioflow.errors import InvalidArgumentError, NotFoundError
from aioflow.kernels.registry import ArrayBackend
from aioflow.kernels.resources import ResourceManager
from aioflow.runtime.backend_api import Backend, Executor
from aioflow.runtime.executor import shared_threads
from aioflow.runtime.strand import Capture

__all__ = ["ENTRY_POINTS", "Device", "cards", "load_backend", "make_devices"]

ENTRY_POINTS: Final = "aioflow.backends"


@cache
def load_backend(name: str) -> Any:
    """The backend of that name.

    Raises:
        NotFoundError: none is installed under that name; the error gives the install command.
    """
    from importlib.metadata import entry_points  # brings email and zipfile: a tenth of `import aioflow` if at the top

    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        raise NotFoundError(
            f"no backend {name!r} is installed",
            expected=f"one of {sorted(found)}, or `pip install 'aioflow[{name}]'`",
            actual=name,
        )
    try:
        return found[name].load()()
    except ImportError as error:
        raise NotFoundError(
            f"backend {name!r} cannot be imported", expected=f"`pip install 'aioflow[{name}]'`", actual=str(error)
        ) from error


@dataclass(slots=True)
class Device:
    """One device of a worker.

    Attributes:
        name: The full name.
        backend: What its kernels are bound for.
        executor: Runs its strands.
        is_host: Whether its arrays are in the host's memory.
        capture: As `BackendDevice.captured`.
    """

    name: str
    backend: ArrayBackend
    executor: Executor
    is_host: bool = True
    capture: Capture | None = None
    resources: ResourceManager = field(default_factory=ResourceManager)


def make_devices(config: SessionConfig, task: str) -> Iterator[Device]:
    """The devices of a process: CPUs as they are counted in `SessionConfig.device_count`, then the cards.

    Raises:
        InvalidArgumentError: there is to be no CPU.
    """
    count = config.device_count.get("CPU", 1)
    if count < 1:
        raise InvalidArgumentError("a process needs a CPU device", expected="device_count of CPU ≥ 1", actual=count)
    for index in range(count):
        threads = shared_threads(f"-cpu{index}", config.threads)
        yield Device(f"{task}/device:CPU:{index}", load_backend("numpy"), threads)
    for backend, index in cards(config):
        card = backend.device(index)
        yield Device(f"{task}/device:{backend.device_type}:{index}", card, card.executor, False, card.captured)


def cards(config: SessionConfig) -> Iterator[tuple[Backend, int]]:
    """The devices beside the host's CPUs, as backends and numbers; `SessionConfig.device_count` may limit them."""
    for backend in _card_backends():
        present = backend.count()
        for index in range(min(present, config.device_count.get(backend.device_type, present))):
            yield backend, index


@cache
def _card_backends() -> tuple[Backend, ...]:
    """The backends for other devices than CPUs whose library is installed."""
    from importlib.metadata import entry_points  # see `load_backend`

    found: list[Backend] = []
    for name in sorted(point.name for point in entry_points(group=ENTRY_POINTS)):
        try:
            backend = load_backend(name)
        except NotFoundError:
            continue  # `python -m aioflow doctor` says what to install
        if backend.device_type != "CPU":
            found.append(backend)
    return tuple(found)
