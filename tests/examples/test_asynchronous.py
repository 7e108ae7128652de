"""The example of asynchronous training between graphs learns, with its variables on two servers."""

from __future__ import annotations

import re

import pytest

from examples import asynchronous as example


async def test_it_learns(capsys: pytest.CaptureFixture[str]) -> None:
    assert await example.main() > 0.9
    printed = capsys.readouterr().out
    assert len(re.findall(r"/job:ps/task:[01] holds \d+ variables", printed)) == 2
    steps = [int(text) for text in re.search(r"after \[(.*)\] steps", printed)[1].split(",")]  # type: ignore[index]
    assert len(steps) == example.WORKERS
    assert all(steps)
    assert example.STEPS <= sum(steps) < 1.1 * example.STEPS


async def test_after_a_step_it_knows_nothing() -> None:
    assert await example.main(steps=1) < 0.4
