"""Targets of aioflow's entry points; importing this module does not load oneDNN."""

from __future__ import annotations

from aioflow.errors import FailedPreconditionError, NotFoundError
from aioflow_onednn.library import library


def register() -> None:
    """Register the kernels if oneDNN is found and suitable; `python -m aioflow doctor` reports why it is not."""
    try:
        library()
    except (NotFoundError, FailedPreconditionError):
        return
    import aioflow_onednn.kernels
    import aioflow_onednn.layer_kernels  # noqa: F401  # importing registers them


def describe() -> dict[str, str]:
    """Return the lines of `python -m aioflow doctor`."""
    from aioflow_onednn.choices import CHOICES

    try:
        found = library()
    except (NotFoundError, FailedPreconditionError) as error:
        return {"oneDNN": f"not used: {error.message} ({error.expected})"}
    counts = ", ".join(f"{count} by {name}" for name, count in CHOICES.counts().items())
    return {
        "oneDNN": f"{found.version} ({found.path})",
        "convolutions": f"by measurement of each shape, kept in {CHOICES.path}; so far {counts}",
    }
