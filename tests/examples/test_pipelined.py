"""The example of concurrent steps has several in flight, and loses no update."""

from __future__ import annotations

import re

import pytest

from examples import pipelined as example


async def test_steps_in_flight_wait_together(capsys: pytest.CaptureFixture[str]) -> None:
    one, several = await example.main()
    assert one == 1
    assert 1 < several <= example.IN_FLIGHT
    printed = capsys.readouterr().out
    assert re.findall(r"after (\d+) steps", printed) == [str(example.STEPS)] * 2
    shares = [float(text) for text in re.findall(r"([\d.]+)% right", printed)]
    assert min(shares) > 60
