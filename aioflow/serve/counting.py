"""Request outcomes, counted in one place for every transport."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

from aioflow.serve.models import ServedModel
from aioflow.serve.protocol import message_of, status_of
from aioflow.serve.tally import outcome_of

_LOG: Final = logging.getLogger("aioflow.serve")


@contextmanager
def counted(model: ServedModel, only_failures: bool = False) -> Iterator[None]:
    """Count the outcome of a request to a model, which the block answers. The outcome depends on the exception raised.

    Args:
        model: The model.
        only_failures: Count failures only, for a block that reads the request and does not answer it.
    """
    begun = perf_counter()
    outcome = "gone"  # unless set below: the task was cancelled
    try:
        yield
        # Nothing is counted then: the block that answers the request counts the success.
        outcome = "" if only_failures else "ok"
    # A cancellation is no Exception and keeps the outcome "gone".
    except Exception as error:
        outcome = outcome_of(status_of(error))
        if outcome == "failed":
            _LOG.warning("a request to %s failed: %s", model.name, message_of(error), exc_info=error)
        raise
    finally:
        if outcome:
            model.tally.ended(outcome, perf_counter() - begun, asyncio.get_running_loop().time())
