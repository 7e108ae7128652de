"""Fixtures: the parts of a test's steps that are delegated to onnxruntime, and repeatable random numbers."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow_onnxruntime.engine import Engine
from aioflow_onnxruntime.kernels import Delegated
from tests.backends.onnxruntime.steps import GENERATOR, SEEDED


@pytest.fixture(autouse=True)
def repeatable() -> None:
    """Let the random numbers of a test not depend on the tests before it."""
    GENERATOR.bit_generator.state = SEEDED


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[Delegated]:
    """Return the delegated parts of the steps that the test registers, however small they are."""
    monkeypatch.setattr(Engine, "call_seconds", 0.0)
    found: list[Delegated] = []
    before = Delegated.__init__

    def noted(self: Delegated, *args: Any) -> None:
        before(self, *args)
        found.append(self)

    monkeypatch.setattr(Delegated, "__init__", noted)
    return found
