"""Checks of the tensors of a request, shared by all transports."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

from aioflow.graph.dtypes import DType
from aioflow.serve.protocol.datatypes import DATATYPES
from aioflow.serve.protocol.errors import MalformedRequestError, TooLargeError
from aioflow.serve.protocol.limits import Limits
from aioflow.serve.protocol.messages import Parameters

_SHARED_MEMORY: Final = "shared_memory_region"
_SHOWN: Final = 60


def check_count(count: int, what: str, limits: Limits) -> None:
    """Raise TooLargeError if there are too many tensors."""
    if count > limits.tensors:
        raise TooLargeError(f"too many {what}", expected=f"at most {limits.tensors}", actual=count)


def check_input(parameters: Parameters, name: str) -> None:
    """Raise MalformedRequestError if the parameters of an input request an unsupported feature."""
    if _SHARED_MEMORY in parameters:
        raise MalformedRequestError(f"input {name!r} is in shared memory", expected="data in the request")


def check_output(parameters: Parameters, name: str) -> None:
    """Raise MalformedRequestError if the parameters of an output request an unsupported feature."""
    for unknown in (_SHARED_MEMORY, "classification"):
        if parameters.get(unknown):
            raise MalformedRequestError(f"output {name!r}: {unknown} is not offered here")


def tensor_name(name: object, found: Container[str], what: str) -> str:
    """Return the name of a tensor. Raise MalformedRequestError if it is invalid or among `found`."""
    if type(name) is not str or not name:
        raise MalformedRequestError(f"an {what} has no name", expected="a text", actual=shown(name))
    if name in found:
        raise MalformedRequestError(f"{what} {name[:_SHOWN]!r} is given twice", expected="once")
    return name


def tensor_dtype(datatype: object, name: str) -> DType:
    """Return the dtype with the protocol's name `datatype`. Raises MalformedRequestError."""
    found = DATATYPES.get(datatype) if type(datatype) is str else None
    if found is None:
        raise MalformedRequestError(
            f"input {name!r} has an unknown datatype", expected=", ".join(DATATYPES), actual=shown(datatype)
        )
    return found


def tensor_shape(shape: object, name: str, limits: Limits) -> tuple[int, ...]:
    """Return the shape in a list.

    Raises:
        MalformedRequestError: it is not a list of sizes.
        TooLargeError: it has too many axes, or too many elements.
    """
    if type(shape) is not list or not all(type(size) is int and size >= 0 for size in shape):
        raise MalformedRequestError(
            f"the shape of input {name!r} is wrong", expected="a list of sizes, none negative", actual=shown(shape)
        )
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
    return tuple(shape)


def kind(value: object) -> str:
    """Return the kind of a JSON value, for errors."""
    return {dict: "an object", list: "a list", str: "a text", type(None): "nothing"}.get(type(value), "a number")


def shown(value: Any) -> str:
    """Return a short form of a value for a message."""
    if type(value) is int and not -(10**_SHOWN) < value < 10**_SHOWN:
        return "a number of many digits"
    if type(value) in (list, dict):
        value = [shown(each) for each in list(value)[:8]]
        return f"[{', '.join(value)}]"[:_SHOWN]
    return repr(value)[:_SHOWN]
