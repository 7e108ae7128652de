"""The devices that a session of this process would have, without opening one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aioflow.config import SessionConfig
from aioflow.errors import NotFoundError
from aioflow.runtime.device import ENTRY_POINTS, load_backend
from aioflow.runtime.worker import LOCAL_TASK

__all__ = ["DeviceAttributes", "list_devices"]


@dataclass(frozen=True, slots=True)
class DeviceAttributes:
    """One device.

    Attributes:
        name: The full name.
        device_type: "CPU", "GPU", …
        memory_limit_bytes: How much memory it may use; None where it has no limit of its own.
        description: What it is, in words.
    """

    name: str
    device_type: str
    memory_limit_bytes: int | None = None
    description: str = ""


def list_devices(config: SessionConfig | None = None) -> list[DeviceAttributes]:
    """The devices of this process: CPUs as the configuration counts them, and the cards that installed backends see.

    `SessionConfig.device_count` also limits the cards. A backend whose library is not installed adds nothing:
    `python -m aioflow doctor` says what to install.
    """
    settings = config or SessionConfig()
    from importlib.metadata import entry_points  # brings email and zipfile: a tenth of `import aioflow` if at the top

    names = sorted(point.name for point in entry_points(group=ENTRY_POINTS))
    found = [device for name in names for device in _devices_of(name, settings)]
    return sorted(found, key=lambda device: device.device_type != "CPU")  # stable: CPUs first


def _devices_of(name: str, settings: SessionConfig) -> Iterator[DeviceAttributes]:
    try:
        backend = load_backend(name)
    except NotFoundError:
        return
    kind: str = backend.device_type
    for index in range(_count(backend, kind, settings)):
        memory, description = _described(backend, name, index)
        yield DeviceAttributes(f"{LOCAL_TASK}/device:{kind}:{index}", kind, memory, description)


def _count(backend: Any, kind: str, settings: SessionConfig) -> int:
    if kind == "CPU":
        return settings.device_count.get(kind, 1)
    present: int = backend.count() if hasattr(backend, "count") else 0
    return min(present, settings.device_count.get(kind, present))


def _described(backend: Any, name: str, index: int) -> tuple[int | None, str]:
    """What the backend says of a device; it need not say anything."""
    if not hasattr(backend, "describe"):
        return None, name
    memory, description = backend.describe(index)
    return memory, description
