"""What is asked and what is answered, on whatever transport it comes and goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from aioflow.serve.protocol.errors import MalformedRequestError

__all__ = ["InferRequest", "InferResponse", "RequestedOutput", "scheduling"]

_MICROSECONDS: Final = 1_000_000  # of a second
_MOST: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that is to be in the answer, and whether as bytes behind the JSON."""

    name: str
    binary: bool = False


@dataclass(frozen=True, slots=True)
class InferRequest:
    """One call of a model.

    Attributes:
        inputs: Arrays by name; they are views of the request's bytes where these are binary. Strings are objects.
        outputs: Which outputs are wanted; None for all of them.
        id: Given back as it is; "" for none.
        binary: Whether outputs that are not named come as bytes.
        timeout: Seconds; None for no limit of its own.
        priority: 0 goes before 1, and so on.
        parameters: All of the request, those of above included.
    """

    inputs: Mapping[str, Any]
    outputs: Sequence[RequestedOutput] | None = None
    id: str = ""
    binary: bool = False
    timeout: float | None = None
    priority: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def within(self, seconds: float | None) -> InferRequest:
        """The same with at most that time limit, which the transport has; None for no other."""
        if seconds is None or (self.timeout is not None and self.timeout <= seconds):
            return self
        return replace(self, timeout=seconds)


@dataclass(frozen=True, slots=True)
class InferResponse:
    """The answer to one call: arrays by the names of the outputs, in the order that they were asked for."""

    model_name: str
    model_version: str
    outputs: Mapping[str, Any]
    id: str = ""


def scheduling(parameters: Mapping[str, Any]) -> tuple[float | None, int]:
    """The time limit in seconds and the priority that a request's parameters have: Triton's `timeout`, in microseconds,
    where 0 is none, and `priority`, where 1 is the most urgent and 0, the default, stands for that.

    Raises:
        MalformedRequestError: they are not whole numbers.
    """
    timeout, priority = (_whole(parameters, name) for name in ("timeout", "priority"))
    return (timeout / _MICROSECONDS if timeout else None), max(priority - 1, 0)


def _whole(parameters: Mapping[str, Any], name: str) -> int:
    value = parameters.get(name, 0)
    if type(value) is not int or not 0 <= value < _MOST:
        raise MalformedRequestError(
            f"parameter {name!r} is wrong", expected="a whole number, not negative", actual=repr(value)[:40]
        )
    return value
