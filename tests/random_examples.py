"""How many random examples the slowest tests look at: half of them in a usual run, which gets others each time, and all
with `AIOFLOW_EXAMPLES=all`, as in `tox -e sim`.
"""

from __future__ import annotations

import os

__all__ = ["examples"]


def examples(count: int) -> int:
    """So many, or half of them."""
    return count if os.environ.get("AIOFLOW_EXAMPLES") == "all" else count // 2
