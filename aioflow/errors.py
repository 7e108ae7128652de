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
from typing import Any, ClassVar, Final, Self, overload

__all__ = [
    "ABORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
    "DATA_LOSS",
    "DEADLINE_EXCEEDED",
    "FAILED_PRECONDITION",
    "INTERNAL",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "OK",
    "OUT_OF_RANGE",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "UNKNOWN",
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
    "error_code_from_exception_type",
    "exception_type_from_error_code",
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

    Besides a message and keyword arguments, all classes accept TensorFlow's arguments:
    `InvalidArgumentError(node_def, op, message)`, where the first two may be None.

    Attributes:
        message: The error, without the context below.
        node_def, op: The definition of the node and the node, if they were passed.
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

    @overload
    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        op_type: str | None = None,
        source: SourceLine | None = None,
        expected: Any = None,
        actual: Any = None,
    ) -> None: ...

    @overload
    def __init__(self, node_def: Any, op: Any, message: str, error_code: int | None = None, *more: Any) -> None: ...

    def __init__(
        self,
        *given: Any,
        node: str | None = None,
        op_type: str | None = None,
        source: SourceLine | None = None,
        expected: Any = None,
        actual: Any = None,
        **named: Any,
    ) -> None:
        self.message: str
        self.node_def: Any = None
        self.op: Any = None
        self._code: int | None = None
        if len(given) == 1 and not named:
            self.message = given[0]
        else:
            self.node_def, self.op, self.message, self._code = _arguments_of_tensorflow(type(self), given, named)
            node = node or getattr(self.op, "name", None) or getattr(self.node_def, "name", None)
            op_type = op_type or getattr(self.op, "type", None) or getattr(self.node_def, "op", None)
            source = source or getattr(self.op, "source", None)
        super().__init__(self.message)
        self.node = node
        self.op_type = op_type
        self.source = source
        self.expected = expected
        self.actual = actual

    def __reduce__(self) -> tuple[Any, ...]:
        # A node belongs to its graph, and neither can be pickled. The node's name, op and source line are kept.
        return type(self), self.args, {**self.__dict__, "op": None, "node_def": None}

    @property
    def error_code(self) -> int:
        """The canonical status code, as in TensorFlow and gRPC."""
        return self.code if self._code is None else self._code

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


def _arguments_of_tensorflow(
    kind: type[OpError], given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, Any, str, int | None]:
    """Return node_def, op, message and error_code, as TensorFlow's classes accept them."""
    names = ("node_def", "op", "message", "error_code")
    found = dict(zip(names, given, strict=False))
    wrong = [name for name in named if name not in names or name in found]
    found.update(named)
    if wrong or "message" not in found or ("op" in found) != ("node_def" in found):
        raise TypeError(
            f"{kind.__name__} accepts (message, *, node, op_type, source, expected, actual) or TensorFlow's arguments "
            f"(node_def, op, message), not {len(given)} positional arguments with the keywords {sorted(named)}"
        )
    return found.get("node_def"), found.get("op"), found["message"], found.get("error_code")


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


# ── codes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

OK: Final = 0
CANCELLED: Final = 1
UNKNOWN: Final = 2
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
ALREADY_EXISTS: Final = 6
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
FAILED_PRECONDITION: Final = 9
ABORTED: Final = 10
OUT_OF_RANGE: Final = 11
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
DATA_LOSS: Final = 15
UNAUTHENTICATED: Final = 16

# The class that defines a code; its subclasses inherit it.
_CLASSES: Final[dict[int, type[OpError]]] = {
    kind.code: kind for kind in OpError.__subclasses__() if "code" in vars(kind)
}


def exception_type_from_error_code(error_code: int) -> type[OpError]:
    """Return the class of errors with this code. Raise NotFoundError, a KeyError, for a code without a class."""
    kind = _CLASSES.get(error_code)
    if kind is None:
        raise NotFoundError("no class of errors has this code", expected=sorted(_CLASSES), actual=error_code)
    return kind


def error_code_from_exception_type(cls: type[BaseException]) -> int:
    """Return the code of a class of errors; UNKNOWN for a class that is not aioflow's."""
    return cls.code if issubclass(cls, OpError) else UNKNOWN
