"""The devices that a session of this process would have, without opening one."""

from __future__ import annotations

from dataclasses import dataclass

from aioflow.config import SessionConfig
from aioflow.runtime.device import present_devices
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
    found: list[DeviceAttributes] = []
    for backend, index in present_devices(config or SessionConfig()):
        memory, description = backend.describe(index)
        kind = backend.device_type
        found.append(DeviceAttributes(f"{LOCAL_TASK}/device:{kind}:{index}", kind, memory, description))
    return found
