"""Checks of the tensors of a request, shared by all transports."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

from aioflow.graph.dtypes import DType
from aioflow.serve.protocol.datatypes import DATATYPES
from aioflow.serve.protocol.errors import MalformedRequestError, TooLargeError
from aioflow.serve.protocol.limits import Limits
from aioflow.serve.protocol.messages import Parameters
from aioflow.serve.protocol.schemas import FORMS, INPUT_PARAMETERS, OUTPUT_PARAMETERS, Form, shown

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
    name, parameters = _read(entry, found, "input", _INPUT, INPUT_PARAMETERS)
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
    name, parameters = _read(entry, found, "output", _OUTPUT, OUTPUT_PARAMETERS)
    for unknown in (_SHARED_MEMORY, "classification"):
        if parameters.get(unknown):
            raise MalformedRequestError(f"output {name!r}: {unknown} is not offered here")
    return name, parameters


def _read(entry: Any, found: Container[str], kind: str, form: Form, inside: Form) -> tuple[str, Parameters]:
    form.check(entry, kind)
    name = entry["name"]
    if name in found:
        raise MalformedRequestError(f"{kind} {name!r:.60} is given twice", expected="once")
    parameters = entry.get("parameters")
    if not parameters:
        return name, {}
    inside.check(parameters, f"{kind} {name!r:.60}")
    return name, parameters
