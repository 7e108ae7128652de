"""The number of random examples of a test: a quarter by default, and the same ones in each run; in `tox -e sweep` all
of them, and others each time. `tests/conftest.py` has the profiles.
"""

from __future__ import annotations

import hypothesis

__all__ = ["examples"]

_ALL = 100  # examples of a test that does not say how many, in the thorough profile


def examples(count: int) -> int:
    """Return the number of examples under the current profile, `count` in the thorough one."""
    return max(1, count * hypothesis.settings().max_examples // _ALL)
