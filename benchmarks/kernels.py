"""Which kernels this process computes with: oneDNN's where that is there, or NumPy's alone; and its children."""

from __future__ import annotations

import os
from functools import cache
from typing import Final

from aioflow.errors import FailedPreconditionError, NotFoundError
from aioflow_numpy import blas
from aioflow_onednn.library import SETTING, library

__all__ = ["NUMPY_ALONE", "fresh_environment", "have_onednn"]

NUMPY_ALONE: Final = {SETTING: "off"}  # the environment of a process without oneDNN


@cache
def have_onednn() -> bool:
    """Whether oneDNN's kernels are used here."""
    try:
        library()
    except (NotFoundError, FailedPreconditionError):
        return False
    return True


def fresh_environment() -> dict[str, str]:
    """Without what this process's aioflow has chosen: a child is to find out for itself. The user's settings stay."""
    choices = (blas.VARIABLE, blas.chosen()), (blas.TIMEOUT_VARIABLE, blas.chosen_timeout())
    ours = {variable for variable, choice in choices if choice is not None and choice.set_by == "aioflow"}
    return {name: value for name, value in os.environ.items() if name not in ours}
