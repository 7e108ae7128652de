"""Requests and responses, independent of the transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from aioflow.memory.values import Array

_MICROSECONDS: Final = 1_000_000  # per second


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """A requested output, and whether to send it as bytes after the JSON."""

    name: str
    binary: bool = False


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
