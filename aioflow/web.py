"""Helpers for web services of any framework: validate request rows, and stop a step when its client disconnects.

ASGI servers do not cancel the handler of a disconnected client; they report the disconnect only through `receive`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from types import NoneType
from typing import Any, Final, NoReturn, TypeVar

import numpy as np

from aioflow.errors import ClientDisconnectedError, FailedPreconditionError, InvalidArgumentError
from aioflow.graph.dtypes import DType, string
from aioflow.graph.graph import Tensor
from aioflow.loading.later import load_later as _load_later

__all__ = ["rows_of", "until_disconnect"]

T = TypeVar("T")
_JSON_TYPES: Final = {
    str: "a string",
    dict: "an object",
    NoneType: "null",
    bool: "a boolean",
    int: "a number",
    float: "a number with a fraction",
}


def rows_of(body: Any, tensor: Tensor) -> Any:
    """Return the rows of a request body as an array that can be fed to a tensor.

        rows = aioflow.web.rows_of(await request.body(), x)

    All other input raises the same error, whose `message` is suitable as a response to the client:

    - invalid JSON, or JSON that is nested too deeply
    - lists of different lengths
    - elements of another type
    - numbers that the dtype cannot represent, such as 1e300 for float32, NaN and infinities
    - another shape

    The size of the body is not limited here; the server should do that.

    Args:
        body: JSON as bytes or text, or the parsed lists.
        tensor: Placeholder of numbers, bools or strings, of shape [rows, ...].

    Returns:
        An array of the tensor's dtype and a compatible shape. Strings are UTF-8 bytes.

    Raises:
        InvalidArgumentError: the body does not contain such rows.
    """
    dtype = tensor.dtype
    try:
        text = bytes(body) if isinstance(body, memoryview) else body
        is_text = isinstance(text, bytes | bytearray | str)
        lists = json.loads(text, parse_constant=_no_number) if is_text else text
        # As objects first: NumPy would turn mixed numbers and text into text, and bools into numbers.
        elements = np.array(lists, np.object_)
        # `type`, not `isinstance`: a bool is an int.
        if wrong := set(map(type, elements.reshape(-1))) - _types(dtype):
            raise TypeError(_misfit(elements, wrong))
        rows = _converted(elements, dtype)
    except RecursionError as error:
        raise _refused(tensor, "the lists are nested too deeply") from error
    except UnicodeDecodeError as error:
        raise _refused(tensor, f"the body is not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise _refused(tensor, f"the body is not JSON: {error.msg} (character {error.pos})") from error
    except (ArithmeticError, TypeError, ValueError) as error:
        raise _refused(tensor, str(error)) from error
    if not elements.ndim or not tensor.shape.is_compatible_with(rows.shape):
        raise _refused(tensor, f"the shape is {list(rows.shape)}")
    return rows


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


def _misfit(elements: Any, wrong: set[type]) -> str:
    """Describe the first element of one of the types `wrong`."""
    if list in wrong:
        return "the lists differ in length"
    at = next(index for index, element in np.ndenumerate(elements) if type(element) in wrong)
    kind = type(elements[at])
    place = f"the element at {list(at)}" if at else "the body"
    return f"{place} is {_JSON_TYPES.get(kind, kind.__name__)}"


def _types(dtype: DType) -> set[type]:
    """Return the Python types that JSON elements for a dtype may have."""
    if dtype.is_floating:
        return {int, float}
    if dtype.is_integer or dtype.is_quantized:
        return {int}
    return {bool} if dtype.is_bool else {str} if dtype is string else set()


def _converted(elements: Any, dtype: DType) -> Any:
    """Convert the elements to an array. Raise ArithmeticError or ValueError if one does not fit the dtype."""
    if dtype is string:
        texts = np.empty(elements.shape, np.object_)
        texts.reshape(-1)[:] = [text.encode() for text in elements.reshape(-1)]
        return texts
    if not dtype.is_floating:
        # From Python's ints, so that a number out of range raises OverflowError.
        return elements.astype(dtype.np_dtype)
    with np.errstate(over="ignore"):
        # Through float64, which holds all numbers of JSON; the cast then makes those too large infinite.
        rows = elements.astype(np.float64).astype(dtype.np_dtype)
    if not np.isfinite(rows).all():
        raise OverflowError("a number is NaN, infinite or too large")
    return rows


def _refused(tensor: Tensor, why: str) -> InvalidArgumentError:
    name, expected = tensor.name.removesuffix(":0"), _expected(tensor)
    return InvalidArgumentError(f"invalid rows for {name!r}: {why}; expected {expected}", expected=expected, actual=why)


def _expected(tensor: Tensor) -> str:
    """Describe the JSON that a tensor accepts, for a client that does not know the graph."""
    dtype, dims = tensor.dtype, tensor.dims
    kind = "strings" if dtype is string else "booleans" if dtype.is_bool else "numbers"
    if not dtype.is_floating and kind == "numbers":
        kind = "whole numbers"
    if dims is None:
        return f"a JSON list of rows of {kind} ({dtype.name})"
    count, row = (f"{dims[0]} " if dims and dims[0] is not None else ""), dims[1:]
    if not row:
        return f"a JSON list of {count}{kind} ({dtype.name})"
    size = "" if row[0] is None else f"{row[0]} "
    if len(row) == 1:
        return f"a JSON list of {count}rows, each a list of {size}{kind} ({dtype.name})"
    sizes = ", ".join("?" if size is None else str(size) for size in row)
    return f"a JSON list of {count}rows, each nested lists of {kind} ({dtype.name}) of shape [{sizes}]"


async def until_disconnect(receive: Callable[[], Awaitable[Mapping[str, Any]]], work: Awaitable[T]) -> T:
    """Await `work`, usually a step, and return its result; cancel it if the client disconnects.

        rows = await request.json()
        result = await aioflow.web.until_disconnect(request.receive, predict(rows))

    The body of the request must have been read before, since its messages arrive on the same channel. The work runs in
    the caller's task: its errors propagate unchanged, and cancelling the caller cancels the work.

    A response that streams (`StreamingResponse`) watches for the disconnect itself. aiohttp has no `receive`; it
    cancels the handler if the application runs with `handler_cancellation=True`.

    Args:
        receive: ASGI receive channel; `request.receive` in Starlette and FastAPI.
        work: Any awaitable.

    Raises:
        ClientDisconnectedError: the client disconnected, and the work was cancelled.
        FailedPreconditionError: the body has not been read.
    """
    failure: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(_watch(receive))
            # The watcher is cancelled at the end, so the group does not wait for it.
            try:
                result = await work
            except Exception as error:  # raised below: the group would wrap it in an ExceptionGroup
                failure = error
            finally:
                watcher.cancel()
    except ExceptionGroup as ended:  # the watcher is the only task of the group
        raise ended.exceptions[0] from failure
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # break the reference cycle: its traceback holds this frame
    return result


async def _watch(receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> NoReturn:
    """Raise ClientDisconnectedError when the client disconnects."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("body") and not message.get("more_body"):
        message = await receive()  # the previous message was the end of an empty body
    if message["type"] != "http.disconnect":
        raise FailedPreconditionError(
            "the body of the request has not been read", expected="http.disconnect", actual=message["type"]
        )
    raise ClientDisconnectedError("the client disconnected, and its work was cancelled")


_load_later(__name__)
