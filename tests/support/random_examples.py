"""Numbers of random examples of tests, and seeds of simulations.

By default a test runs a quarter of its examples, the same ones in each run. `tox -e sweep` runs all of them, with new
examples each time. `tests/conftest.py` has the profiles.
"""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest

__all__ = ["examples", "seeds"]

_ALL = 100  # examples in the thorough profile of a test that sets no number


def examples(count: int) -> int:
    """Return the number of examples under the current profile: `count` in the thorough one."""
    return max(1, count * hypothesis.settings().max_examples // _ALL)


def seeds(few: int, many: int) -> list[Any]:
    """Return seeds as parameters of a test: a few for each run, and the others for `tox -e sim`."""
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.sim) for seed in range(few, many))]
