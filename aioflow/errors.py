"""Every exception that aioflow raises, in one tree.

    AioflowError
    └── OpError                    carries code, node, op type, user's line, expected, actual
        ├── CancelledError         the step was stopped: session closed, or a peer step aborted it
        │   └── ClientDisconnectedError  the client that waited for the response has disconnected
        ├── UnknownError           a kernel raised an exception that has no better code
        ├── InvalidArgumentError   (ValueError) a value, shape or attribute is wrong
        │   └── DTypeError         (TypeError) a value or tensor has the wrong type or dtype
        ├── DeadlineExceededError  (TimeoutError) `timeout=` ran out
        ├── NotFoundError          (KeyError) no such node, op, kernel, file or tensor name
        │   └── UnknownNameError   (ValueError, TypeError) a name in a call that refers to nothing; a DTypeError too
        ├── AlreadyExistsError     (ValueError) the name is taken
        │   └── AlreadyRegisteredError (KeyError) a gradient, an op or a kernel has the name
        ├── PermissionDeniedError  (PermissionError) the operation is not permitted
        ├── UnauthenticatedError
        ├── ResourceExhaustedError (MemoryError) a size or a limit was exceeded
        ├── FailedPreconditionError  (RuntimeError) the state does not allow it: uninitialized, finalized
        │   ├── ClosedSessionError   the session is closed
        │   └── NoSessionError     (ValueError) there is no default session; an InvalidArgumentError too
        ├── AbortedError
        ├── OutOfRangeError        (IndexError) a source has ended: a queue, a reader, an iterator, a counter
        ├── UnimplementedError     (NotImplementedError) no kernel, no gradient
        │   └── NoGradientError    (LookupError) the op has no registered gradient
        ├── InternalError          a bug in aioflow
        ├── UnavailableError       a peer cannot be reached
        └── DataLossError          a file is truncated or altered

The codes are the canonical ones that TensorFlow and gRPC share. Where Python has a builtin of the same
meaning the class derives from it too, so that published code with `except ValueError` goes on working.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

__all__ = [
    "AbortedError",
    "AioflowError",
    "AlreadyExistsError",
    "AlreadyRegisteredError",
    "CancelledError",
    "ClientDisconnectedError",
    "ClosedSessionError",
    "DTypeError",
    "DataLossError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "NoGradientError",
    "NoSessionError",
    "NotFoundError",
    "OpError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "SourceLine",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
    "UnknownNameError",
]


@dataclass(frozen=True, slots=True)
class SourceLine:
    """The line of the user's own file that created a node."""

    filename: str
    lineno: int
    function: str

    def __str__(self) -> str:
        return f"{self.filename}:{self.lineno} in {self.function}"


class AioflowError(Exception):
    """Root of the tree: `except aioflow.errors.AioflowError` catches every exception of the engine."""


class OpError(AioflowError):
    """An error with a canonical code and, if known, the node that it belongs to.

    Attributes:
        message: The error, without the context below.
        node: Name of the node, or None.
        op_type: Type of the node's op, or None.
        source: User's line that created the node, or None.
        expected: Requirement that was not met; None if that does not apply.
        actual: Value that was received instead; None if that does not apply.
        may_have_been_applied: For the error of a step, whether some of its updates may have been made. False only if it
            is certain that no update was made or will be made, so that the step may be run again.
    """

    code: ClassVar[int] = 2
    may_have_been_applied: bool = True

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        op_type: str | None = None,
        source: SourceLine | None = None,
        expected: Any = None,
        actual: Any = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.node = node
        self.op_type = op_type
        self.source = source
        self.expected = expected
        self.actual = actual

    @property
    def error_code(self) -> int:
        """The canonical status code, as in TensorFlow and gRPC."""
        return self.code

    def at(self, node: str | None, op_type: str, source: SourceLine | None) -> OpError:
        """Fill in the node if it is not known yet, and return self: the innermost node wins.

        `node` is None for a node that is being created and has no name yet.
        """
        if self.node is None and self.source is None:
            self.node, self.op_type, self.source = node, op_type, source
        return self

    def __str__(self) -> str:
        parts = [self.message]
        if self.expected is not None:
            parts.append(f"  expected: {self.expected}")
        if self.actual is not None:
            parts.append(f"  actual:   {self.actual}")
        if self.node is not None:
            op = "" if self.op_type is None else f" (op {self.op_type})"
            parts.append(f"  node:     {self.node!r}{op}")
        elif self.op_type is not None:
            parts.append(f"  op:       {self.op_type}")
        if self.source is not None:
            parts.append(f"  created:  {self.source}")
        if "may_have_been_applied" in self.__dict__:  # set on the instance: the step has been checked
            parts.append(f"  applied:  {'perhaps' if self.may_have_been_applied else 'no'}")
        return "\n".join(parts)


class CancelledError(OpError):
    """The step was stopped from outside.

    A cancelled *task* gets `asyncio.CancelledError`.
    """

    code = 1


class ClientDisconnectedError(CancelledError):
    """The client that requested the step has disconnected.

    Web servers log such a request as 499.
    """


class UnknownError(OpError):
    """An exception of a kernel that has no better code; the exception is the `__cause__`."""

    code = 2


class InvalidArgumentError(OpError, ValueError):
    """A value, a shape or an attribute is not what the op accepts."""

    code = 3


class DTypeError(InvalidArgumentError, TypeError):
    """A value or a tensor has the wrong type or dtype."""


class DeadlineExceededError(OpError, TimeoutError):
    """The time that the caller allowed has passed."""

    code = 4


class NotFoundError(OpError, KeyError):
    """A named object does not exist."""

    code = 5


class UnknownNameError(NotFoundError, DTypeError):
    """A name in a call does not refer to anything.

    TensorFlow raises a KeyError for it in a lookup, a ValueError as a fetch, a TypeError as the key of a feed.
    """


class AlreadyExistsError(OpError, ValueError):
    """An object of that name already exists."""

    code = 6


class AlreadyRegisteredError(AlreadyExistsError, KeyError):
    """A registry already has an entry of that name."""


class PermissionDeniedError(OpError, PermissionError):
    """The operation is not permitted: by the file system, by missing credentials, or by a rule of the service."""

    code = 7


class ResourceExhaustedError(OpError, MemoryError):
    """A limit or the available memory is exceeded.

    Attributes:
        retry_after: Estimated seconds until a retry may succeed, if known.
    """

    code = 8
    retry_after: float | None = None


class FailedPreconditionError(OpError, RuntimeError):
    """The state of the graph, the session or a resource does not allow the operation."""

    code = 9


class ClosedSessionError(FailedPreconditionError):
    """The session has been closed."""

    @classmethod
    def refusing(cls) -> Self:
        """Return the error for a step that was not started because the session is closed."""
        error = cls("attempted to use a closed Session", expected="an open session", actual="closed")
        error.may_have_been_applied = False
        return error


class NoSessionError(FailedPreconditionError, InvalidArgumentError):
    """No session was passed, and there is no default session."""


class AbortedError(OpError):
    """The operation was aborted because of a conflict, such as with another step or program."""

    code = 10


class OutOfRangeError(OpError, IndexError):
    """A source has ended, which stops its readers without a failure: see `train.QueueRunner`, `Session.stream`.

    An index out of bounds is an InvalidArgumentError.
    """

    code = 11


class UnimplementedError(OpError, NotImplementedError):
    """There is no kernel or gradient for the operation."""

    code = 12


class NoGradientError(UnimplementedError, LookupError):
    """There is no gradient for an op."""


class InternalError(OpError):
    """An invariant of aioflow itself does not hold: a bug worth reporting."""

    code = 13


class UnavailableError(OpError):
    """A peer cannot be reached; trying again may help."""

    code = 14


class DataLossError(OpError):
    """Stored data is truncated or altered."""

    code = 15


class UnauthenticatedError(OpError):
    """The caller is not authenticated."""

    code = 16
