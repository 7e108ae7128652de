"""What becomes of a request, counted in one place for every transport."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

from aioflow.serve.models import ServedModel
from aioflow.serve.protocol import said_of, status_of
from aioflow.serve.tally import outcome_of

__all__ = ["counted"]

_LOG: Final = logging.getLogger("aioflow.serve")


@contextmanager
def counted(model: ServedModel, only_failures: bool = False) -> Iterator[None]:
    """A block in which a request to a model is answered; by what it raises, it is known what has become of it.

    Args:
        only_failures: Whether it is only read in the block, and counts if it ends there.
    """
    begun = perf_counter()
    outcome = "gone"  # unless something else is said: the task is cancelled
    try:
        yield
        outcome = "" if only_failures else "ok"
    except Exception as error:
        outcome = outcome_of(status_of(error))
        if outcome == "failed":
            _LOG.warning("a request to %s failed: %s", model.name, said_of(error), exc_info=error)
        raise
    finally:
        if outcome:
            model.tally.ended(outcome, perf_counter() - begun, asyncio.get_running_loop().time())
