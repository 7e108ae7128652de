"""Concurrent steps: the example has several steps in flight, and loses no update."""

from __future__ import annotations

import re

import pytest

from examples import pipelined as example


async def test_several_steps_are_in_flight(capsys: pytest.CaptureFixture[str]) -> None:
    one, several = await example.main()
    assert one == 1
    assert 1 < several <= example.IN_FLIGHT
    printed = capsys.readouterr().out
    assert re.findall(r"after (\d+) steps", printed) == [str(example.STEPS)] * 2
    shares = [float(text) for text in re.findall(r"([\d.]+)% right", printed)]
    assert min(shares) > 60
