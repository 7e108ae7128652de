"""Side by side with tensorflow-cpu in one process: medians of alternating rounds, printed as ratios.

These variables give NumPy other kernels than it chooses itself (`Haswell` halves it on processors with AVX-512), and so
other ratios than a user sees. They count when NumPy is loaded, so they are removed here, before a program or its
children load it; `benchmarks.history.machine` reports it with every table.
"""

from __future__ import annotations

import os
import sys
from typing import Final

__all__ = ["REMOVED"]

_VARIABLES: Final = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")

# What was set. Nothing is removed where NumPy is loaded already, as in the tests.
REMOVED: Final = {
    name: os.environ.pop(name) for name in _VARIABLES if name in os.environ and "numpy" not in sys.modules
}
