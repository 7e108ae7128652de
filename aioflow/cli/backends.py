"""Finds and loads the installed backends for the commands that report on them.

A session loads only the backends whose devices it names; a report wants all of them, and a broken one as a line of the
report instead of an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

from aioflow.runtime.device import KERNEL_PACKAGES

__all__ = ["BackendReport", "describe_backend", "install_command", "kernel_packages", "load_backends"]


@dataclass(frozen=True, slots=True)
class BackendReport:
    """One declared backend: `problem` is None where it loads, and otherwise says what to do."""

    name: str
    distribution: str
    problem: str | None = None
    device_type: str | None = None


def load_backends() -> list[BackendReport]:
    """Load every backend that an installed distribution declares, which registers its kernels."""
    return [_load(entry) for entry in sorted(metadata.entry_points(group="aioflow.backends"))]


def _load(entry: metadata.EntryPoint) -> BackendReport:
    distribution = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "unknown"
    try:
        backend = entry.load()()
    except ImportError as error:
        command = install_command(entry.name)
        return BackendReport(entry.name, distribution, f"{error}" + (f"; {command}" if command else ""))
    except Exception as error:  # a backend may be anybody's: whatever it raises belongs in the report
        return BackendReport(entry.name, distribution, f"{type(error).__name__}: {error}")
    return BackendReport(entry.name, distribution, device_type=getattr(backend, "device_type", None))


def kernel_packages() -> list[str]:
    """The names of the packages that have kernels for the devices of backends."""
    return sorted(entry.name for entry in metadata.entry_points(group=KERNEL_PACKAGES))


def install_command(extra: str) -> str | None:
    """The command that installs what an optional part needs, or None where aioflow has no such extra."""
    try:
        extras = metadata.metadata("aioflow").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return None
    return f"pip install 'aioflow[{extra}]'" if extra in extras else None


def describe_backend(name: str) -> dict[str, str]:
    """What a backend, or a package of kernels, says of itself by `aioflow.doctor`; empty where it says nothing."""
    lines: dict[str, str] = {}
    for entry in metadata.entry_points(group="aioflow.doctor", name=name):
        try:
            lines.update(entry.load()())
        except Exception as error:  # a report that cannot be made is a line of the report
            lines["report"] = f"failed with {type(error).__name__}: {error}"
    return lines
