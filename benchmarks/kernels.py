"""The kernels of this process (oneDNN's if available, otherwise NumPy's) and of its children."""

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
    """Return True if oneDNN's kernels are used here."""
    try:
        library()
    except (NotFoundError, FailedPreconditionError):
        return False
    return True


def fresh_environment() -> dict[str, str]:
    """Return the environment without the settings that aioflow chose in this process, so that a child chooses its own.

    Settings of the user are kept.
    """
    choices = (blas.VARIABLE, blas.chosen()), (blas.TIMEOUT_VARIABLE, blas.chosen_timeout())
    ours = {variable for variable, choice in choices if choice is not None and choice.set_by == "aioflow"}
    return {name: value for name, value in os.environ.items() if name not in ours}
