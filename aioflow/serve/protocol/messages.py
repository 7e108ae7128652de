"""Requests and responses, independent of the transport, and the checks of their tensors."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from aioflow.graph.dtypes import DType
from aioflow.memory.values import Array
from aioflow.serve.protocol.datatypes import DATATYPES
from aioflow.serve.protocol.errors import MalformedRequestError, TooLargeError
from aioflow.serve.protocol.limits import Limits
from aioflow.serve.protocol.schemas import CLASSIFICATION, FORMS, Form, shown

_MICROSECONDS: Final = 1_000_000  # per second


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """A requested output.

    Attributes:
        name: Its name.
        binary: Whether to send it as bytes after the JSON.
        classes: The number of classes to send instead of the elements; 0 for the elements.
    """

    name: str
    binary: bool = False
    classes: int = 0


Parameters: TypeAlias = Mapping[str, Any]  # of a request, an input or an output; values as the client sent them


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One call of a model.

    Attributes:
        inputs: Arrays by name; binary ones are views of the request's bytes. Strings are objects.
        outputs: The requested outputs; None for all.
        id: Returned in the response unchanged; "" for none.
        binary: Whether outputs are sent as bytes if they are not named in `outputs`.
        timeout: Time limit in seconds; None for no limit of its own.
        priority: Requests with lower numbers run first.
        parameters: All parameters of the request, including those of the attributes above.
    """

    inputs: Mapping[str, Array]
    outputs: Sequence[RequestedOutput] | None = None
    id: str = ""
    binary: bool = False
    timeout: float | None = None
    priority: int = 0
    parameters: Parameters = field(default_factory=dict)

    def within(self, seconds: float | None) -> InferRequest:
        """Return this request with a time limit of at most `seconds`, the limit of the transport if not None."""
        if seconds is None or (self.timeout is not None and self.timeout <= seconds):
            return self
        return replace(self, timeout=seconds)


@dataclass(frozen=True, slots=True)
class InferResponse:
    """The response to one call: arrays by output name, in the requested order."""

    model_name: str
    model_version: str
    outputs: Mapping[str, Array]
    id: str = ""


def scheduling(parameters: Parameters) -> tuple[float | None, int]:
    """Return time limit, in seconds, and priority of a request with these parameters, which have been checked.

    These are Triton's parameters: `timeout` in microseconds, where 0 means no limit, and `priority`, where 1 is the
    most urgent and 0, the default, means the same.
    """
    timeout, priority = parameters.get("timeout", 0), parameters.get("priority", 0)
    return (timeout / _MICROSECONDS if timeout else None), max(priority - 1, 0)


# ── checks of the tensors of a request ────────────────────────────────────────────────────────────────────────────────


_SHARED_MEMORY: Final = "shared_memory_region"
_INPUT: Final = FORMS["InputTensor"]
_OUTPUT: Final = FORMS["RequestedOutput"]


def check_count(count: int, what: str, limits: Limits) -> None:
    """Raise TooLargeError if there are too many tensors."""
    if count > limits.tensors:
        raise TooLargeError(f"too many {what}", expected=f"at most {limits.tensors}", actual=count)


def read_input(entry: Any, found: Container[str], limits: Limits) -> tuple[str, DType, tuple[int, ...], Parameters]:
    """Return name, dtype, shape and parameters of an input, given as in JSON.

    Raises:
        MalformedRequestError: it violates the protocol, has a name in `found`, or needs what is not supported.
        TooLargeError: it has too many axes, or too many elements.
    """
    name, parameters = _read(entry, found, "input", _INPUT)
    if _SHARED_MEMORY in parameters:
        raise MalformedRequestError(f"input {name!r} is in shared memory", expected="data in the request")
    shape = entry["shape"]
    if len(shape) > limits.rank:
        raise TooLargeError(
            f"input {name!r} has too many axes", expected=f"at most {limits.rank}", actual=f"{len(shape)} axes"
        )
    count = 1
    for size in shape:
        count *= max(size, 1)  # sizes of an empty array must be limited too: NumPy computes strides from them
        if count > limits.elements:
            raise TooLargeError(
                f"input {name!r} has too many elements", expected=f"at most {limits.elements}", actual=shown(shape)
            )
    return name, DATATYPES[entry["datatype"]], tuple(shape), parameters


def read_output(entry: Any, found: Container[str]) -> tuple[str, Parameters]:
    """Return name and parameters of a requested output, given as in JSON. Raises as `read_input`."""
    name, parameters = _read(entry, found, "output", _OUTPUT)
    if parameters.get(_SHARED_MEMORY):
        raise MalformedRequestError(f"output {name!r}: {_SHARED_MEMORY} is not offered here")
    CLASSIFICATION.check(parameters, f"output {name!r:.60}")
    return name, parameters


def _read(entry: Any, found: Container[str], kind: str, form: Form) -> tuple[str, Parameters]:
    if type(entry) is not dict:
        raise MalformedRequestError(f"an element of '{kind}s' is not an object", actual=shown(entry))
    form.check(entry, kind)
    name = entry["name"]
    if name in found:
        raise MalformedRequestError(f"{kind} {name!r:.60} is given twice", expected="once")
    return name, entry.get("parameters") or {}
