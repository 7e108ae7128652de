"""A table on two parameter servers: the example learns, and prints where the parts are."""

from __future__ import annotations

import pytest

from examples import sharded_embedding


async def test_training_learns_over_two_parameter_servers(capsys: pytest.CaptureFixture[str]) -> None:
    right = await sharded_embedding.main()
    said = capsys.readouterr().out
    assert right > 0.9
    assert "table/part_1:0 (100, 8) on /job:ps/task:1" in said
    assert "in order after 300 steps" in said


async def test_accuracy_is_low_without_training() -> None:
    assert await sharded_embedding.main(steps=0) < 0.8
