"""Lookup of the global step for hooks, with an error that names the hook."""

from __future__ import annotations

from aioflow.errors import FailedPreconditionError
from aioflow.ops.variables.variable import Variable
from aioflow.train.step import get_global_step


def required_global_step(who: object) -> Variable:
    """Return the global step of the default graph.

    Raises:
        FailedPreconditionError: there is no global step; the error names the type of `who`.
    """
    step = get_global_step()
    if step is None:
        raise FailedPreconditionError(
            f"{type(who).__name__} needs a global step",
            expected="train.get_or_create_global_step() before the session is made",
            actual="none",
        )
    return step
