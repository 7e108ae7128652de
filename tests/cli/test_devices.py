"""`aioflow devices`: the list of devices as a table and as JSON, and install commands for missing backends."""

from __future__ import annotations

import argparse
import json
from importlib import metadata

import pytest

from aioflow.cli import devices
from aioflow.runtime.device_list import DeviceAttributes

CPU = DeviceAttributes("/job:localhost/replica:0/task:0/device:CPU:0", "CPU", None, "numpy")
GPU = DeviceAttributes("/job:localhost/replica:0/task:0/device:GPU:0", "GPU", 12 * 2**30, "a card")


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    devices.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["devices", *argv])
    status: int = arguments.run(arguments)
    return status


def test_table_has_a_row_for_each_device(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(devices, "list_devices", lambda: [CPU, GPU])
    assert run() == 0
    header, *rows = capsys.readouterr().out.splitlines()[:3]
    assert header.split() == ["device", "type", "memory", "description"]
    assert [row.split(maxsplit=2) for row in rows] == [
        [CPU.name, "CPU", "-       numpy"],
        [GPU.name, "GPU", "12 GiB  a card"],
    ]
    assert len({row.index("PU ") for row in rows}) == 1, "the columns are aligned"


def test_json_has_the_fields(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(devices, "list_devices", lambda: [GPU])
    assert run("--json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": GPU.name, "device_type": "GPU", "memory_limit_bytes": 12 * 2**30, "description": "a card"}
    ]


def test_this_machine_has_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert f"{CPU.name}  CPU" in capsys.readouterr().out


def test_missing_backend_is_reported_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = metadata.EntryPoint("cupy", "no_such_module:backend", "aioflow.backends")
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [missing])
    monkeypatch.setattr(devices, "list_devices", lambda: [CPU])
    assert run() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "cupy is not installed: pip install 'aioflow-engine[cupy]'"


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536 * 2**20, "1.5 GiB"), (2**50, "1024 TiB")],
)
def test_sizes_are_readable(count: int | None, text: str) -> None:
    assert devices.readable_size(count) == text
