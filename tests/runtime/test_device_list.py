"""The list of devices: CPUs as configured, cards as backends count them, nothing from what is not installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

import pytest

from aioflow.config import SessionConfig
from aioflow.errors import NotFoundError
from aioflow.runtime import device
from aioflow.runtime.device_list import DeviceAttributes, list_devices

TASK = "/job:localhost/replica:0/task:0"


class Cpu:
    device_type = "CPU"


class Cards:
    device_type = "GPU"

    def count(self) -> int:
        return 2

    def describe(self, index: int) -> tuple[int | None, str]:
        return 1000 + index, f"card {index}"


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, Any]]:
    """Backends by name; one that is None is declared and not installed."""
    table: dict[str, Any] = {"numpy": Cpu()}

    def load(name: str) -> Any:
        if table[name] is None:
            raise NotFoundError(f"backend {name!r} cannot be imported")
        return table[name]

    points = lambda group: [metadata.EntryPoint(name, "x:y", group) for name in table]  # noqa: E731
    monkeypatch.setattr(metadata, "entry_points", points)
    monkeypatch.setattr(device, "load_backend", load)
    device._card_backends.cache_clear()
    yield table
    device._card_backends.cache_clear()


def names(**counts: int) -> list[str]:
    found = list_devices(SessionConfig(device_count=counts))
    assert all(device.name.startswith(f"{TASK}/device:") for device in found)
    return [device.name.removeprefix(f"{TASK}/device:") for device in found]


@pytest.mark.usefixtures("backends")
def test_cpus_are_as_many_as_are_asked_for() -> None:
    assert list_devices() == [DeviceAttributes(f"{TASK}/device:CPU:0", "CPU", None, "NumPy")]
    assert names(CPU=3) == ["CPU:0", "CPU:1", "CPU:2"]


def test_cards_come_after_cpus_and_may_be_limited(backends: dict[str, Any]) -> None:
    backends["a_cards"] = Cards()
    assert names() == ["CPU:0", "GPU:0", "GPU:1"]
    assert names(CPU=2, GPU=1) == ["CPU:0", "CPU:1", "GPU:0"]
    assert names(GPU=9) == ["CPU:0", "GPU:0", "GPU:1"]
    assert names(GPU=0) == ["CPU:0"]
    assert list_devices()[2] == DeviceAttributes(f"{TASK}/device:GPU:1", "GPU", 1001, "card 1")


def test_what_is_not_installed_adds_nothing(backends: dict[str, Any]) -> None:
    backends["cupy"] = None
    assert names() == ["CPU:0"]
