"""Synchronous training with a backup worker: the example learns, and does not wait for the slow worker."""

from __future__ import annotations

import re

import pytest

from examples import synchronous as example


async def test_training_learns_from_the_first_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    assert await example.main() > 0.9
    printed = capsys.readouterr().out
    quick, other, slow = (int(text) for text in re.search(r"\[(.*)\]", printed)[1].split(","))  # type: ignore[index]
    assert quick + other + slow >= example.STEPS * example.NEEDED
    assert slow < max(quick, other)
