"""`aioflow devices`: a table of the devices that a session on this machine has."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from aioflow.cli.backends import load_backends
from aioflow.runtime.device_list import list_devices

if TYPE_CHECKING:
    import argparse

    from aioflow.cli.arguments import Commands
    from aioflow.runtime.device_list import DeviceAttributes

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "devices",
        help="list the devices of this machine",
        description="List the devices of this machine that a graph may use, with their types and memory, by the names "
        "that `device` accepts.",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    devices = list_devices()
    if arguments.json:
        print(json.dumps([dataclasses.asdict(device) for device in devices], indent=2))
        return 0
    rows = [("device", "type", "memory", "description"), *map(_row, devices)]
    # The head of the table is its first row, and counts for the widths.
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    for backend in load_backends():
        if backend.command is not None:
            print(f"{backend.name} is not installed: {backend.command}")
    return 0 if devices else 1


def _row(device: DeviceAttributes) -> tuple[str, str, str, str]:
    return device.name, device.device_type, readable_size(device.memory_limit_bytes), device.description


def readable_size(count: int | None) -> str:
    """Return a number of bytes in the largest unit that leaves at least one; "-" for None."""
    if count is None:
        return "-"
    # ⌊log₂(count) / 10⌋, exact for any integer.
    power = min(max(count.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{count / 1024**power:.4g} {_UNITS[power]}"
