"""Loading of the installed backends, for the commands that report on them.

A session loads only the backends whose devices it names. A report loads all of them, and shows a broken one as a line
instead of raising an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata

from aioflow.release import DISTRIBUTION, install_command, install_command_for
from aioflow.runtime.device import ENTRY_POINTS, KERNEL_PACKAGES


@dataclass(frozen=True, slots=True)
class BackendReport:
    """One declared backend.

    Attributes:
        name: Name of its entry point.
        distribution: Name and version of the distribution that declares it.
        problem: The error and the remedy; None if the backend loads.
        device_type: The type of its devices; None if it does not load.
        command: The command that installs a missing package; None if the backend loads, or no command would help.
    """

    name: str
    distribution: str
    problem: str | None = None
    device_type: str | None = None
    command: str | None = None


def load_backends() -> list[BackendReport]:
    """Load every backend that an installed distribution declares, which registers its kernels."""
    return [_load(entry) for entry in sorted(_declared(ENTRY_POINTS))]


def _load(entry: metadata.EntryPoint) -> BackendReport:
    distribution = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "unknown"
    try:
        backend = entry.load()()
    except ImportError as error:
        command = install_command_for(error, entry.name) if extra_command(entry.name) else None
        return BackendReport(
            entry.name, distribution, f"{error}" + (f"; {command}" if command else ""), command=command
        )
    except Exception as error:  # third-party code: any exception belongs in the report
        return BackendReport(entry.name, distribution, f"{type(error).__name__}: {error}")
    return BackendReport(entry.name, distribution, device_type=getattr(backend, "device_type", None))


def kernel_packages() -> list[str]:
    """Return the names of the packages that have kernels for the devices of backends."""
    return sorted(entry.name for entry in _declared(KERNEL_PACKAGES))


def _declared(group: str) -> Iterable[metadata.EntryPoint]:
    """Return the entry points of a group without duplicates.

    An installation of aioflow under its earlier name declares the same entry points again.
    """
    return {(entry.name, entry.value): entry for entry in metadata.entry_points(group=group)}.values()


def extra_command(extra: str) -> str | None:
    """Return the command that installs the extra, or None if aioflow has no such extra."""
    try:
        extras = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return None
    return install_command(extra) if extra in extras else None


def describe_backend(name: str) -> dict[str, str]:
    """Return what the `aioflow.doctor` entry point of a backend or kernel package reports; empty without one."""
    lines: dict[str, str] = {}
    for entry in metadata.entry_points(group="aioflow.doctor", name=name):
        try:
            lines.update(entry.load()())
        except Exception as error:  # a report that cannot be made is a line of the report
            lines["report"] = f"failed with {type(error).__name__}: {error}"
    return lines
