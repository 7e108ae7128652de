"""`aioflow calibrate`: rates are work over the time of the clock, and sessions read the file that it writes."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioflow.cli import calibrate as command
from aioflow.compiler.place.calibration import DEFAULT_LINKS, RATES, Calibration, DeviceLink, find_calibration
from aioflow.kernels.registry import Binding, KernelBody, KernelDef
from aioflow.runtime import calibrate as measuring
from aioflow.runtime.backend_api import MemoryStats
from aioflow.runtime.calibrate import calibrate
from aioflow.runtime.device import host
from aioflow.runtime.step import Step


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser(prog="aioflow")
    command.add_parser(parser.add_subparsers(required=True))
    arguments = parser.parse_args(["calibrate", *argv])
    status: int = arguments.run(arguments)
    return status


def test_rates_are_work_over_the_time_of_the_clock() -> None:
    """The clock advances by a second per call, so every round takes one second."""
    seconds = itertools.count()
    speeds = calibrate(host(), seconds=1.0, clock=lambda: float(next(seconds))).speeds["CPU"]
    assert speeds.overhead == pytest.approx(1 / 1000)  # a round of the overhead's measurement is a thousand calls
    working = 1 - 1 / 1000
    megabytes = 1024 * 2048 * 4
    assert speeds.rates["elementwise"] == pytest.approx(3 * megabytes / working)
    assert speeds.rates["transcendental"] == pytest.approx(2 * megabytes / working)
    assert speeds.rates["reduction"] == pytest.approx(megabytes / working)
    assert speeds.rates["movement"] == pytest.approx(2 * 2 * megabytes / working)
    assert speeds.rates["convolution"] == pytest.approx(4 * 56 * 56 * 64 * 9 * 64 / working)
    assert speeds.products["float32"] == pytest.approx(512**3 / working)
    assert speeds.products["bfloat16"] == pytest.approx(128**3 / working)


def test_slow_rounds_are_ignored() -> None:
    """The second of three rounds of 5, 1 and 9 seconds counts."""
    # The clock's readings: at the start, at begin and end of each round, and for the check whether to go on.
    now = itertools.accumulate(itertools.cycle([0, 0, 5, 0, 1, 0, 9, 0]))
    speeds = calibrate(host(), seconds=1.0, clock=lambda: float(next(now))).speeds["CPU"]
    assert speeds.overhead == pytest.approx(1 / 1000)
    assert speeds.products["float32"] == pytest.approx(512**3 / (1 - 1 / 1000))


class Clock:
    """A clock that advances by a microsecond per call, and by `forward`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds


class Card:
    """A fake accelerator on the CPU: values are copied to and from it, and kernels run in its executor."""

    device_type = "NPU"  # has the portable kernels only, whatever backends are loaded

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.runs = 0
        self.executor = self

    @property
    def xp(self) -> Any:
        return np

    def generator(self, seed: int, seed2: int) -> Any:
        return host().generator(seed, seed2)

    def on_host(self, value: Any) -> Any:
        return value

    def copy_from(self, array: Any, other: Any) -> Any:
        return array.copy()

    def share(self, array: Any) -> Any:
        return array

    def captured(self, function: Callable[..., Any], nodes: Any) -> None:
        return None

    def memory(self) -> MemoryStats:
        return MemoryStats(0, 0)

    def close(self) -> None:
        """Do nothing: no resource is open."""

    async def run(self, step: Step, function: Callable[..., Any], *args: Any) -> Any:
        self.runs += 1
        return function(*args)

    def bind(self, kernel: KernelDef, binding: Binding) -> tuple[KernelDef, KernelBody]:
        return kernel, kernel.bind(binding)

    async def to_device(self, value: Any) -> Any:
        self.clock.forward(1e-3 + np.size(value) / 2**26)  # a millisecond, and a second for 64 MiB
        return np.array(value)

    async def to_host(self, value: Any) -> Any:
        self.clock.forward(2e-3 + 2 * np.size(value) / 2**26)
        return np.array(value)


@pytest.mark.blocks_loop("a calibration measures on a loop that nobody else uses")
def test_device_is_measured_in_its_executor_and_so_are_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_PRODUCTS", ("float32",))
    clock = Clock()
    card = Card(clock)
    made = calibrate(host(), [card], seconds=1e-6, clock=clock)
    assert set(made.speeds) == {"CPU", "NPU"}
    assert card.runs >= 3 * (1 + 4 + 1)  # scalars, four rates, a product
    # There is no portable convolution: its rate stays as shipped.
    assert made.speeds["NPU"].rates["convolution"] == Calibration().speeds_of("NPU").rates["convolution"]
    # Ten calls in a round of a microsecond.
    assert made.speeds["NPU"].products["float32"] == pytest.approx(10 * 512**3 / 1e-6, rel=0.05)
    # The slower direction: two milliseconds, and two seconds for 64 MiB.
    assert made.links["host"].latency == pytest.approx(2e-3, rel=0.01)
    assert made.links["host"].bandwidth == pytest.approx(2**26 / 2.0, rel=0.01)


def test_network_link_is_measured_by_the_given_function() -> None:
    clock = itertools.count()
    network = DeviceLink(latency=1e-4, bandwidth=2e9, overhead=1e-5)
    made = calibrate(host(), seconds=1.0, clock=lambda: float(next(clock)), network=lambda: network)
    assert made.links["network"] == network
    assert made.links["memory"].latency == 1.0
    assert made.links["host"] == DEFAULT_LINKS["host"]


def test_command_writes_a_file_that_sessions_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "calibration.json"
    assert run("--output", str(path), "--seconds", "1e-4") == 0
    written = find_calibration(path)
    assert set(written.speeds) == {"CPU"}
    assert all(rate > 0 for rate in written.speeds["CPU"].rates.values())
    out = capsys.readouterr().out
    assert out.splitlines() == [*command.table(written), f"written to {path}"]
    assert all(name in out for name in RATES)


def test_default_output_is_the_users_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "calibration_path", lambda: tmp_path / "default.json")
    assert run("--seconds", "1e-4") == 0
    assert (tmp_path / "default.json").exists()


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_seconds_must_be_a_time(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--seconds", seconds)
    assert "--seconds" in capsys.readouterr().err
