"""Asynchronous training between graphs: the example learns, with its variables on two servers."""

from __future__ import annotations

import re

import pytest

from examples import asynchronous as example


async def test_training_learns_with_variables_on_two_servers(capsys: pytest.CaptureFixture[str]) -> None:
    assert await example.main() > 0.9
    printed = capsys.readouterr().out
    assert len(re.findall(r"/job:ps/task:[01] holds \d+ variables", printed)) == 2
    steps = [int(text) for text in re.search(r"after \[(.*)\] steps", printed)[1].split(",")]  # type: ignore[index]
    assert len(steps) == example.WORKERS
    assert all(steps)
    assert example.STEPS <= sum(steps) < 1.1 * example.STEPS


async def test_accuracy_is_low_after_one_step() -> None:
    assert await example.main(steps=1) < 0.4
