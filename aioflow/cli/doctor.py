"""`aioflow doctor`: versions, backends and devices of this machine, to paste into a bug report."""

from __future__ import annotations

import os
import platform
from importlib import metadata, util
from typing import TYPE_CHECKING

from aioflow.cli.backends import BackendReport, describe_backend, extra_command, kernel_packages, load_backends
from aioflow.cli.devices import readable_size
from aioflow.concurrency.loops import is_debug_mode
from aioflow.release import DISTRIBUTION
from aioflow.runtime.device_list import list_devices

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from aioflow.cli.arguments import Commands

_PACKAGES = ("numpy", "ml_dtypes", "msgpack", "protobuf", "google-crc32c", "google-re2", "uvloop")
_DEMO_PACKAGES = ("starlette", "uvicorn", "httpx", "rich", "matplotlib")


def report() -> tuple[list[tuple[str, str]], bool]:
    """Return the lines as (subject, finding), and whether at least one backend is ready."""
    lines = [("aioflow", _version(DISTRIBUTION)), *_machine(), *((name, _version(name)) for name in _PACKAGES)]
    ready = False
    for backend in load_backends():
        lines.append((f"backend {backend.name}", _state(backend)))
        if backend.problem is None:
            ready = True
            lines.extend((f"  {subject}", finding) for subject, finding in describe_backend(backend.name).items())
    for package in kernel_packages():
        lines.extend((f"kernels {subject}", finding) for subject, finding in describe_backend(package).items())
    if ready:
        lines.extend(_devices())
    else:
        lines.append(("backends", "none is ready: no graph can run here"))
    lines.append(("demo", _demo(_DEMO_PACKAGES)))
    return lines, ready


def _state(backend: BackendReport) -> str:
    if backend.problem is None:
        return f"from {backend.distribution}"
    if backend.command is not None:  # an optional part that is not installed
        return f"not installed; {backend.command}"
    return f"NOT READY: {backend.problem}"


def _devices() -> Iterator[tuple[str, str]]:
    try:
        for device in list_devices():
            yield "device", f"{device.name}, {readable_size(device.memory_limit_bytes)}, {device.description}"
    except Exception as error:  # a driver may raise anything, which belongs in the report
        yield "devices", f"NOT READY: {type(error).__name__}: {error}"


def _machine() -> Iterator[tuple[str, str]]:
    debugging = " (asyncio debug mode: slow)" if is_debug_mode() else ""
    yield "python", f"{platform.python_version()} {platform.python_implementation()}{debugging}"
    yield "platform", platform.platform()
    # Containers often restrict a process to fewer processors than the machine has.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "processors", f"{usable} usable of {os.cpu_count()}"


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _demo(packages: Iterable[str]) -> str:
    missing = [name for name in packages if util.find_spec(name) is None]
    if not missing:
        return "ready"
    return f"needs {', '.join(missing)}: {extra_command('demo') or 'install them'}"


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "doctor",
        help="report versions, backends, devices, BLAS and missing parts",
        description="Report the versions of aioflow and its libraries, the backends and devices, and missing optional "
        "parts with the commands that install them. The exit status is 1 if no backend is ready.",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    lines, ready = report()
    width = max(len(subject) for subject, _ in lines)
    for subject, finding in lines:
        print(f"{subject:<{width}}  {finding}")
    return 0 if ready else 1
