"""The example of a model on two tasks trains, and says so."""

from __future__ import annotations

import pytest

from examples import two_tasks


async def test_it_learns_over_two_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    share = await two_tasks.main()
    assert share > 0.85
    assert "on two tasks" in capsys.readouterr().out


async def test_without_training_it_knows_nothing() -> None:
    assert await two_tasks.main(steps=0) < 0.4
