"""`examples/monitored_training.py`: a killed server costs some seconds, and nothing else."""

from __future__ import annotations

import pytest

from examples import monitored_training


async def test_a_killed_server_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    disturbed = await monitored_training.main()
    assert "the server was killed at step" in capsys.readouterr().out
    undisturbed = await monitored_training.main(kill=False)
    assert disturbed.restored is not None
    assert disturbed.restored % monitored_training.SAVED_EVERY == 0
    assert 0 < disturbed.restored <= monitored_training.KILLED_AT
    assert undisturbed.restored is None
    for report in (disturbed, undisturbed):
        assert report.counted == [1] * monitored_training.STEPS
        assert report.steps == monitored_training.STEPS
        assert report.accuracy > 0.9
    assert disturbed.weights.tobytes() == undisturbed.weights.tobytes()
