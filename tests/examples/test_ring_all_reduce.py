"""The example without a parameter server trains, on every task alike."""

from __future__ import annotations

import pytest

from examples import ring_all_reduce


@pytest.mark.parametrize("tasks", [2, 3])
async def test_it_learns_on_every_task_alike(tasks: int, capsys: pytest.CaptureFixture[str]) -> None:
    shares = await ring_all_reduce.main(tasks)
    assert len(shares) == tasks
    assert shares[0] > 0.9
    assert set(shares) == {shares[0]}
    assert "test digits right" in capsys.readouterr().out


async def test_without_training_it_knows_nothing() -> None:
    assert max(await ring_all_reduce.main(2, steps=0)) < 0.4
