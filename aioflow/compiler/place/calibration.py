"""The speed of this machine as data: rates of each device type, bandwidth and latency of each kind of link.

`aioflow calibrate` measures once and writes a file into the user's cache folder; without the file, shipped defaults
apply. Steps are never delayed by such measurements. Placement only compares costs, so defaults that are off by a common
factor place as well as measured values.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from aioflow.errors import DataLossError, InvalidArgumentError, NotFoundError
from aioflow.formats.files import file_errors
from aioflow.formats.temporary_files import write_atomically
from aioflow.formats.user_cache import cache_folder
from aioflow.graph.device_spec import DeviceSpec

_VERSION: Final = 1

# The rates measured for a device besides matrix products: bytes per second, except for the convolution.
RATES: Final[Mapping[str, str]] = {
    "elementwise": "bytes read and written per second by an addition",
    "transcendental": "bytes read and written per second by an exponential",
    "reduction": "bytes read per second by a sum",
    "movement": "bytes read and written per second by a copy",
    "convolution": "multiply-adds per second of a 3x3 convolution",
}


@dataclass(frozen=True, slots=True)
class Speeds:
    """The speeds of one device type.

    Attributes:
        overhead: Seconds that every node takes besides its work.
        rates: Work per second, by the names in `RATES`.
        products: Multiply-adds per second of a matrix product, by dtype; float32 stands for missing dtypes.
    """

    overhead: float
    rates: Mapping[str, float]
    products: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class DeviceLink:
    """The connection from one device to another.

    Attributes:
        latency: Seconds until the first byte arrives.
        bandwidth: Bytes per second; None if the devices share memory and nothing is copied.
        overhead: Seconds that a transfer keeps the receiving device busy (the Recv and its half of the Send).
    """

    latency: float = 0.0
    bandwidth: float | None = None
    overhead: float = 0.0

    def seconds(self, size: float) -> float:
        """Return the transfer time of `size` bytes: latency + bytes / bandwidth, as in TensorFlow's cost model."""
        return self.latency + (0.0 if self.bandwidth is None else size / self.bandwidth)


# CPU: results of `aioflow calibrate` on a virtual machine of two cores, rounded down. GPU and links: the data sheet of
# a mid-range GPU, except for "memory", which is a hop through the event loop.
DEFAULT_SPEEDS: Final[Mapping[str, Speeds]] = {
    "CPU": Speeds(
        overhead=5e-7,
        rates={
            "elementwise": 2e10,
            "transcendental": 1e10,
            "reduction": 5e10,
            "movement": 1.5e10,
            "convolution": 5e10,
        },
        products={
            "float32": 6e10,
            "float64": 3e10,
            "bfloat16": 1e10,
            "float16": 1e10,
            "complex64": 1.5e10,
            "complex128": 8e9,
            "int32": 1e9,
            "int64": 1e9,
        },
    ),
    "GPU": Speeds(
        overhead=1e-5,
        rates={
            "elementwise": 5e11,
            "transcendental": 5e11,
            "reduction": 4e11,
            "movement": 5e11,
            "convolution": 4e12,
        },
        products={"float32": 6e12, "float64": 3e11, "bfloat16": 3e13, "float16": 3e13, "complex64": 1.5e12},
    ),
}

DEFAULT_LINKS: Final[Mapping[str, DeviceLink]] = {
    "memory": DeviceLink(latency=3e-5, bandwidth=None, overhead=6e-6),
    "host": DeviceLink(latency=2e-5, bandwidth=1e10, overhead=1e-5),
    "peer": DeviceLink(latency=2e-5, bandwidth=2e10, overhead=1e-5),
    "network": DeviceLink(latency=2e-4, bandwidth=1.5e9, overhead=5e-5),
}


@dataclass(frozen=True, slots=True)
class Calibration:
    """Speeds by device type, links by kind ("memory", "host", "peer", "network": see `link_kind`)."""

    speeds: Mapping[str, Speeds] = field(default_factory=lambda: DEFAULT_SPEEDS)
    links: Mapping[str, DeviceLink] = field(default_factory=lambda: DEFAULT_LINKS)

    def speeds_of(self, device_type: str) -> Speeds:
        """Return the speeds of a device type, falling back to the defaults and then to the CPU's defaults."""
        return self.speeds.get(device_type) or DEFAULT_SPEEDS.get(device_type) or DEFAULT_SPEEDS["CPU"]

    def link(self, kind: str) -> DeviceLink:
        """Return the link of a kind, or its default if it was not measured."""
        return self.links.get(kind) or DEFAULT_LINKS[kind]

    def to_json(self) -> str:
        """Return the calibration as human-readable JSON."""
        links = {kind: asdict(link) for kind, link in self.links.items()}
        speeds = {kind: asdict(speed) for kind, speed in self.speeds.items()}
        return json.dumps({"version": _VERSION, "speeds": speeds, "links": links}, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Calibration:
        """Return the calibration that `to_json` wrote.

        Raises:
            DataLossError: the text is not JSON, or an entry is missing.
            InvalidArgumentError: the version is another one, or a value is not a time or a rate.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataLossError("not a calibration", expected="JSON", actual=str(error)) from error
        if not isinstance(data, dict) or "version" not in data:
            raise DataLossError("not a calibration", expected="an object with a version", actual=type(data).__name__)
        if data["version"] != _VERSION:
            raise InvalidArgumentError(
                "the calibration is of another version: run `aioflow calibrate`",
                expected=_VERSION,
                actual=data["version"],
            )
        try:
            speeds = {str(kind): _speeds(kind, value) for kind, value in data["speeds"].items()}
            links = {str(kind): _link(kind, value) for kind, value in data["links"].items()}
        except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
            raise DataLossError(
                "the calibration is incomplete", expected="speeds and links", actual=repr(error)
            ) from error
        return cls(speeds, links)


def _speeds(kind: str, value: Mapping[str, Any]) -> Speeds:
    rates = {name: _positive(f"{kind} {name}", value["rates"][name]) for name in RATES}
    products = {str(name): _positive(f"{kind} {name}", rate) for name, rate in value["products"].items()}
    # float32 stands for missing dtypes, so it may not be missing itself.
    _positive(f"{kind} float32", products["float32"])
    return Speeds(_time(f"{kind} overhead", value["overhead"]), rates, products)


def _link(kind: str, value: Mapping[str, Any]) -> DeviceLink:
    bandwidth = value["bandwidth"]
    return DeviceLink(
        _time(f"{kind} latency", value["latency"]),
        None if bandwidth is None else _positive(f"{kind} bandwidth", bandwidth),
        _time(f"{kind} overhead", value["overhead"]),
    )


def _positive(name: str, value: object) -> float:
    number = _time(name, value)
    if number == 0.0:
        raise InvalidArgumentError(f"the calibration's {name} is wrong", expected="a rate above 0", actual=value)
    return number


def _time(name: str, value: object) -> float:
    # A bool is an int, and JSON's `true` would count as 1.
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not 0.0 <= number < math.inf:
        raise InvalidArgumentError(
            f"the calibration's {name} is wrong", expected="a number of at least 0", actual=value
        )
    return number


def link_kind(source: DeviceSpec, destination: DeviceSpec) -> str:
    """Return the kind of link from one device to another.

    "network" between tasks; within a task "memory" between CPUs, "host" between a CPU and another device, else "peer".
    """
    if (source.job, source.replica, source.task) != (destination.job, destination.replica, destination.task):
        return "network"
    on_host = (source.device_type == "CPU") + (destination.device_type == "CPU")
    return ("peer", "host", "memory")[on_host]


def calibration_path(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Return the path of this user's calibration, in the cache folder of the platform."""
    return cache_folder(environ, platform) / "calibration.json"


def read_calibration(path: Path) -> Calibration:
    """Read the calibration in a file. Blocks on the disk.

    Raises:
        NotFoundError: the file does not exist.
        DataLossError, InvalidArgumentError: the file is not a valid calibration; see `Calibration.from_json`.
    """
    with file_errors(path):
        text = path.read_bytes()
    try:
        return Calibration.from_json(text)
    except (DataLossError, InvalidArgumentError) as error:
        error.message = f"{path}: {error.message}"
        raise


def find_calibration(path: Path | None = None) -> Calibration:
    """Return the calibration in `path`, by default the user's, or the defaults if there is no such file.

    Blocks on the disk.

    Raises:
        DataLossError, InvalidArgumentError: the file is not a valid calibration.
    """
    try:
        return read_calibration(path or calibration_path())
    except NotFoundError:
        return Calibration()


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write a file for `read_calibration` atomically, and create its folder. Blocks on the disk."""
    with file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, calibration.to_json().encode())
