"""The example of a model from a file: fine-tuning improves the model, and its export keeps the result."""

from __future__ import annotations

import pytest

from examples import bring_a_model


async def test_the_model_is_fine_tuned_and_exported(capsys: pytest.CaptureFixture[str]) -> None:
    before, after, again = await bring_a_model.main()
    assert before < 0.3
    assert after > 0.85
    assert again == after
    assert "fine-tuned" in capsys.readouterr().out


async def test_the_model_is_unchanged_without_training() -> None:
    before, after, again = await bring_a_model.main(steps=0)
    assert before == after == again
