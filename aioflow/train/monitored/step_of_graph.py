"""The global step as hooks need it: there, or an error that names the hook."""

from __future__ import annotations

from typing import Any

from aioflow.errors import FailedPreconditionError
from aioflow.ops.variables.variable import Variable
from aioflow.train.step import get_global_step

__all__ = ["required_global_step"]


def required_global_step(who: Any) -> Variable:
    """The global step of the default graph.

    Raises:
        FailedPreconditionError: there is none; the error names `who` needs it.
    """
    step = get_global_step()
    if step is None:
        raise FailedPreconditionError(
            f"{type(who).__name__} needs a global step",
            expected="train.get_or_create_global_step() before the session is made",
            actual="none",
        )
    return step
