"""What aioflow's entry points name: loading this module loads nothing of oneDNN."""

from __future__ import annotations

from aioflow.errors import FailedPreconditionError, NotFoundError
from aioflow_onednn.library import describe as describe
from aioflow_onednn.library import library

__all__ = ["describe", "register"]


def register() -> None:
    """Register the kernels, where oneDNN is there and fits. Why it does not, `python -m aioflow doctor` says."""
    try:
        library()
    except (NotFoundError, FailedPreconditionError):
        return
    import aioflow_onednn.kernels
    import aioflow_onednn.layer_kernels  # noqa: F401  # importing registers them
