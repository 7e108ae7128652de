"""`aioflow calibrate`: measure this machine for the cost model of placement, and store the result."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from aioflow.cli.arguments import Commands, output_file, seconds
from aioflow.cli.progress import progress
from aioflow.compiler.place.calibration import RATES, Calibration, DeviceLink, calibration_path, write_calibration
from aioflow.config import SessionConfig
from aioflow.kernels.registry import HOST
from aioflow.runtime.calibrate import calibrate
from aioflow.runtime.device import host, present_devices


def table(calibration: Calibration) -> Iterator[str]:
    """Yield the calibration as readable lines."""
    for device_type, speeds in calibration.speeds.items():
        # Seconds are shown in microseconds.
        yield f"{device_type}: {speeds.overhead * 1e6:.2f} µs per node"
        for name, rate in speeds.rates.items():
            yield f"  {name:<15} {rate / 1e9:9.2f} G/s  {RATES[name]}"
        for dtype, rate in speeds.products.items():
            yield f"  {dtype:<15} {rate / 1e9:9.2f} G/s  multiply-adds per second of a matrix product"
    for kind, link in calibration.links.items():
        yield f"link {kind}: {_link_text(link)}"


def _link_text(link: DeviceLink) -> str:
    bandwidth = "nothing is copied" if link.bandwidth is None else f"{link.bandwidth / 1e9:.2f} GB/s"
    return f"{link.latency * 1e6:.1f} µs, {bandwidth}, {link.overhead * 1e6:.1f} µs of the receiver's time"


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "calibrate",
        help="measure this machine for the cost model of placement",
        description="Measure the speeds of this machine and its devices, and write them to a file. Sessions and "
        "`aioflow explain` read the file to predict steps and to place nodes; without it they use default speeds.",
    )
    parser.add_argument(
        "--output", type=output_file, metavar="FILE", help="file to write instead of the one that sessions read"
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=0.2,
        metavar="S",
        help="duration of each of about 13 measurements (default: 0.2)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    path: Path = arguments.output or calibration_path()
    # One GPU of each type: all GPUs of a type share one entry of the calibration.
    first = {backend.device_type: backend.device(i) for backend, i in present_devices(SessionConfig()) if i == 0}
    gpus = [device for device_type, device in first.items() if device_type != HOST]
    with progress("measurement") as shown:
        calibration = calibrate(host(), gpus, seconds=arguments.seconds, measures=shown.advance)
    write_calibration(calibration, path)
    for line in table(calibration):
        print(line)
    print(f"written to {path}")
    return 0
