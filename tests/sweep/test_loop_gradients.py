"""Tests of third-order gradients of while loops, and of branches in them, against central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.autodiff.test_loops import PROGRAMS, check_order


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_third_order_gradients_match_central_differences(program: Callable[..., Any]) -> None:
    check_order(program, 3)
