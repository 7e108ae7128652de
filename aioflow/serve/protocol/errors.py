"""The mapping of errors to HTTP statuses, gRPC codes and messages for clients."""

from __future__ import annotations

import asyncio
import math
from typing import Final

from aioflow import errors
from aioflow.errors import InvalidArgumentError, OpError, ResourceExhaustedError


class MalformedRequestError(InvalidArgumentError):
    """A request that violates the protocol."""


class UnknownEncodingError(MalformedRequestError):
    """A request whose body has an unsupported compression."""


class TooLargeError(ResourceExhaustedError):
    """A request that exceeds the limits of the service at any time."""


class NoMemoryError(ResourceExhaustedError):
    """A model that does not fit into the memory budget of the service."""


# HTTP status and gRPC code per error class. The first class that matches an error applies.
_TABLE: Final = (
    (UnknownEncodingError, 415, 3),
    (TooLargeError, 413, 8),
    (NoMemoryError, 507, 8),
    (errors.InvalidArgumentError, 400, 3),
    (errors.OutOfRangeError, 400, 11),
    (errors.NotFoundError, 404, 5),
    (errors.AlreadyExistsError, 409, 6),
    (errors.UnauthenticatedError, 401, 16),
    (errors.PermissionDeniedError, 403, 7),
    (errors.DeadlineExceededError, 504, 4),
    (errors.ClientDisconnectedError, 499, 1),
    (errors.CancelledError, 503, 14),  # by the service: a client that cancels its call gets no response
    (errors.ClosedSessionError, 503, 14),
    (errors.UnavailableError, 503, 14),
    (errors.AbortedError, 503, 10),
    (errors.UnimplementedError, 501, 12),
)
_TOO_MANY_REQUESTS: Final = 429
_TOO_LARGE: Final = 413
_FAULT: Final = 500
_NO_MEMORY: Final = 507
_EXHAUSTED: Final = 8
_INTERNAL: Final = 13
_SOON: Final = 1  # seconds


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error.

    A request that exceeds the service's current resources is 429; one that exceeds its limits at any time is 413. A
    request for which the system has no memory is 507.
    """
    for kind, status, _ in _TABLE:
        if isinstance(error, kind):
            return status
    # The engine wraps a failed allocation in a ResourceExhaustedError, with the MemoryError as its cause.
    refusal = error.__cause__ if isinstance(error, ResourceExhaustedError) else error
    if isinstance(refusal, MemoryError) and not isinstance(refusal, OpError):  # raised by Python or NumPy
        return _NO_MEMORY
    if isinstance(error, ResourceExhaustedError):
        return _TOO_LARGE if error.retry_after is None else _TOO_MANY_REQUESTS
    return _FAULT


def code_of(error: BaseException) -> int:
    """Return the number of gRPC's status code for an error: its own canonical code, unless the table has another."""
    for kind, _, code in _TABLE:
        if isinstance(error, kind):
            return code
    if isinstance(error, OpError):
        return error.code
    return _EXHAUSTED if isinstance(error, MemoryError) else _INTERNAL


def retry_after(error: BaseException) -> int | None:
    """Return the number of seconds after which a client should retry, or None if a retry is pointless."""
    if isinstance(error, ResourceExhaustedError) and error.retry_after is not None:
        # At most an hour, and never 0: clients would retry in a busy loop.
        return max(_SOON, math.ceil(min(error.retry_after, 3600.0)))
    return _SOON if status_of(error) == 503 else None


def message_of(error: BaseException) -> str:
    """Return the message for the client: the fault in its request, without details of the server such as file paths."""
    if isinstance(error, asyncio.CancelledError):
        return "the request was given up"
    if not isinstance(error, OpError):
        return "internal error"
    parts = [error.message]
    if error.expected is not None:
        parts.append(f"expected: {error.expected}")
    if error.actual is not None:
        parts.append(f"actual: {error.actual}")
    if error.node is not None:
        parts.append(f"node: {error.node!r}")
    return "; ".join(parts)
