"""The list of devices: CPUs as configured, GPUs as backends count them, nothing for a backend that is not installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from aioflow.config import SessionConfig
from aioflow.errors import AlreadyRegisteredError, InvalidArgumentError, NotFoundError
from aioflow.loading.installed import EntryPoint
from aioflow.runtime import device
from aioflow.runtime.device_list import DeviceAttributes, list_devices

TASK = "/job:localhost/replica:0/task:0"


class Cpu:
    device_type = "CPU"

    def count(self) -> None:
        """Return None: the host has as many CPU devices as are configured."""

    def describe(self, index: int) -> tuple[int | None, str]:
        return None, "a processor"


class Cards:
    device_type = "GPU"

    def __init__(self, name: str = "cards") -> None:
        self.name = name

    def count(self) -> int:
        return 2

    def describe(self, index: int) -> tuple[int | None, str]:
        return 1000 + index, f"card {index}"


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, Any]]:
    """Backends by name; None stands for a backend that is declared but not installed."""
    table: dict[str, Any] = {"numpy": Cpu()}

    def load(name: str) -> Any:
        if table[name] is None:
            raise NotFoundError(f"backend {name!r} cannot be imported")
        return table[name]

    def points(group: str) -> list[EntryPoint]:
        return [EntryPoint(name, "x:y") for name in table] if group == device.ENTRY_POINTS else []

    monkeypatch.setattr(device, "declared", points)
    monkeypatch.setattr(device, "load_backend", load)
    device._loaded.cache_clear()
    yield table
    device._loaded.cache_clear()


def names(**counts: int) -> list[str]:
    found = list_devices(SessionConfig(device_count=counts))
    assert all(device.name.startswith(f"{TASK}/device:") for device in found)
    return [device.name.removeprefix(f"{TASK}/device:") for device in found]


@pytest.mark.usefixtures("backends")
def test_cpus_are_as_many_as_configured() -> None:
    assert list_devices() == [DeviceAttributes(f"{TASK}/device:CPU:0", "CPU", None, "a processor")]
    assert names(CPU=3) == ["CPU:0", "CPU:1", "CPU:2"]
    with pytest.raises(InvalidArgumentError, match="CPU"):
        names(CPU=0)


def test_gpus_come_after_cpus_and_may_be_limited(backends: dict[str, Any]) -> None:
    backends["a_cards"] = Cards()
    assert names() == ["CPU:0", "GPU:0", "GPU:1"]
    assert names(CPU=2, GPU=1) == ["CPU:0", "CPU:1", "GPU:0"]
    assert names(GPU=9) == ["CPU:0", "GPU:0", "GPU:1"]
    assert names(GPU=0) == ["CPU:0"]
    assert list_devices()[2] == DeviceAttributes(f"{TASK}/device:GPU:1", "GPU", 1001, "card 1")


def test_backend_that_is_not_installed_adds_no_device(backends: dict[str, Any]) -> None:
    backends["cupy"] = None
    assert names() == ["CPU:0"]


def test_two_backends_for_one_device_type_are_rejected(backends: dict[str, Any]) -> None:
    backends.update(one=Cards("one"), other=Cards("other"))
    with pytest.raises(AlreadyRegisteredError, match="of type GPU") as caught:
        list_devices()
    assert caught.value.actual == ["one", "other"]


@pytest.mark.parametrize(("host", "found"), [(None, []), (Cards(), ["GPU"])])
def test_missing_host_backend_is_reported(backends: dict[str, Any], host: Any, found: list[str]) -> None:
    backends["numpy"] = host
    with pytest.raises(NotFoundError, match="no backend for the host's CPU") as caught:
        list_devices()
    assert caught.value.actual == found
