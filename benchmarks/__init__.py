"""Comparisons with tensorflow-cpu in one process: medians of alternating rounds, printed as ratios.

These variables make NumPy use other kernels than those that it chooses (`Haswell` halves its speed on processors with
AVX-512), so the ratios would differ from what a user sees. They take effect when NumPy is loaded, so they are removed
here, before a program or its children load it. `benchmarks.history.machine` reports the removal with every table.
"""

from __future__ import annotations

import os
import sys
from typing import Final

__all__ = ["REMOVED"]

_VARIABLES: Final = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")

# The removed settings. Nothing is removed if NumPy is already loaded, as in the tests.
REMOVED: Final = {
    name: os.environ.pop(name) for name in _VARIABLES if name in os.environ and "numpy" not in sys.modules
}
