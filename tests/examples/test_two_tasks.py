"""A model on two tasks: the example learns, and prints that it uses both."""

from __future__ import annotations

import pytest

from examples import two_tasks


async def test_training_learns_over_two_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    share = await two_tasks.main()
    assert share > 0.85
    assert "on two tasks" in capsys.readouterr().out


async def test_accuracy_is_low_without_training() -> None:
    assert await two_tasks.main(steps=0) < 0.4
