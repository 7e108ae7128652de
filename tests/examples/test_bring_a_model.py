"""The example of a model from a file learns what it did not know, and goes out with what it has learnt."""

from __future__ import annotations

import pytest

from examples import bring_a_model


async def test_it_is_fine_tuned_and_exported(capsys: pytest.CaptureFixture[str]) -> None:
    before, after, again = await bring_a_model.main()
    assert before < 0.3
    assert after > 0.85
    assert again == after
    assert "fine-tuned" in capsys.readouterr().out


async def test_without_a_step_it_is_as_it_was_loaded() -> None:
    before, after, again = await bring_a_model.main(steps=0)
    assert before == after == again
