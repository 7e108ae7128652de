"""`aioflow calibrate`: rates are work over time by whatever clock, and the file it writes is the one that is read."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import pytest

from aioflow.cli import calibrate as command
from aioflow.compiler.place.calibration import DEFAULT_LINKS, RATES, Link, find_calibration
from aioflow.runtime.calibrate import calibrate, measure_speeds
from aioflow.runtime.device import load_backend


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser(prog="aioflow")
    command.add_parser(parser.add_subparsers(required=True))
    arguments = parser.parse_args(["calibrate", *argv])
    status: int = arguments.run(arguments)
    return status


def test_rates_are_work_over_the_time_of_the_clock() -> None:
    """A clock that goes on by a second whenever it is asked: every round takes one."""
    seconds = itertools.count()
    speeds = measure_speeds(load_backend("numpy"), 1.0, lambda: float(next(seconds)))
    assert speeds.overhead == pytest.approx(1 / 1000)  # a round of it is a thousand calls
    working = 1 - 1 / 1000
    megabytes = 1024 * 2048 * 4
    assert speeds.rates["elementwise"] == pytest.approx(3 * megabytes / working)
    assert speeds.rates["transcendental"] == pytest.approx(2 * megabytes / working)
    assert speeds.rates["reduction"] == pytest.approx(megabytes / working)
    assert speeds.rates["movement"] == pytest.approx(2 * 2 * megabytes / working)
    assert speeds.rates["convolution"] == pytest.approx(4 * 56 * 56 * 64 * 9 * 64 / working)
    assert speeds.products["float32"] == pytest.approx(512**3 / working)
    assert speeds.products["bfloat16"] == pytest.approx(128**3 / working)


def test_other_work_on_the_machine_does_not_make_it_slower() -> None:
    """Of three rounds of 5, 1 and 9 seconds the second counts."""
    now = itertools.accumulate(itertools.cycle([0, 0, 5, 0, 1, 0, 9, 0]))  # begin; begin and end of a round; go on?
    speeds = measure_speeds(load_backend("numpy"), 1.0, lambda: float(next(now)))
    assert speeds.overhead == pytest.approx(1 / 1000)
    assert speeds.products["float32"] == pytest.approx(512**3 / (1 - 1 / 1000))


def test_a_device_that_runs_behind_is_waited_for() -> None:
    waits = []
    clock = itertools.count()
    measure_speeds(load_backend("numpy"), 1.0, lambda: float(next(clock)), lambda: waits.append(1))
    assert len(waits) >= 3 * (len(RATES) + 1)


def test_the_network_is_measured_by_whoever_can() -> None:
    clock = itertools.count()
    network = Link(latency=1e-4, bandwidth=2e9, overhead=1e-5)
    made = calibrate({}, seconds=1.0, clock=lambda: float(next(clock)), network=lambda: network)
    assert made.links["network"] == network
    assert made.links["memory"].latency == 1.0
    assert made.links["host"] == DEFAULT_LINKS["host"]


def test_the_command_writes_what_sessions_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "calibration.json"
    assert run("--output", str(path), "--seconds", "1e-4") == 0
    written = find_calibration(path)
    assert set(written.speeds) == {"CPU"}
    assert all(rate > 0 for rate in written.speeds["CPU"].rates.values())
    out = capsys.readouterr().out
    assert out.splitlines() == [*command.table(written), f"written to {path}"]
    assert all(name in out for name in RATES)


def test_the_default_is_the_users_cache_folder(
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
