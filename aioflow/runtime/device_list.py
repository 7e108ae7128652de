"""List of the devices that a session of this process would have, without opening one."""

from __future__ import annotations

from dataclasses import dataclass

from aioflow.config import SessionConfig
from aioflow.protos.session_config import session_config
from aioflow.runtime.device import present_devices
from aioflow.runtime.worker import LOCAL_TASK


@dataclass(frozen=True, slots=True)
class DeviceAttributes:
    """The attributes of one device.

    Attributes:
        name: The full name.
        device_type: "CPU", "GPU", …
        memory_limit_bytes: The memory that it may use; None without a limit of its own.
        description: A description for humans.
    """

    name: str
    device_type: str
    memory_limit_bytes: int | None = None
    description: str = ""


def list_devices(config: SessionConfig | None = None) -> list[DeviceAttributes]:
    """Return the devices of this process: the configured CPUs, and the GPUs that installed backends find.

    `SessionConfig.device_count` also limits the number of GPUs. A backend whose library is not installed adds none;
    `python -m aioflow doctor` shows what to install.
    """
    found: list[DeviceAttributes] = []
    for backend, index in present_devices(session_config(config)):
        memory, description = backend.describe(index)
        kind = backend.device_type
        found.append(DeviceAttributes(f"{LOCAL_TASK}/device:{kind}:{index}", kind, memory, description))
    return found
