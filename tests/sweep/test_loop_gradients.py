"""Gradients of third order of while loops, and of branches in them, against central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.autodiff.test_loops import PROGRAMS, check_order


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_gradients_of_third_order(program: Callable[..., Any]) -> None:
    check_order(program, 3)
