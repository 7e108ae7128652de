"""The number of random examples of a test: a quarter by default, and the same ones in each run; in `tox -e sweep` all
of them, and others each time. `tests/conftest.py` has the profiles. And the seeds of simulations.
"""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest

__all__ = ["examples", "seeds"]

_ALL = 100  # examples of a test that does not say how many, in the thorough profile


def examples(count: int) -> int:
    """Return the number of examples under the current profile, `count` in the thorough one."""
    return max(1, count * hypothesis.settings().max_examples // _ALL)


def seeds(few: int, many: int) -> list[Any]:
    """Return parameters of a test: a few seeds for each run, and the others for `tox -e sim`."""
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.sim) for seed in range(few, many))]
