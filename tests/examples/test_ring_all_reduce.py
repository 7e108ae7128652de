"""Training without a parameter server: the example learns, alike on every task."""

from __future__ import annotations

import pytest

from examples import ring_all_reduce


@pytest.mark.parametrize("tasks", [2, 3])
async def test_training_learns_alike_on_every_task(tasks: int, capsys: pytest.CaptureFixture[str]) -> None:
    shares = await ring_all_reduce.main(tasks)
    assert len(shares) == tasks
    assert shares[0] > 0.9
    assert set(shares) == {shares[0]}
    assert "test digits right" in capsys.readouterr().out


async def test_accuracy_is_low_without_training() -> None:
    assert max(await ring_all_reduce.main(2, steps=0)) < 0.4
