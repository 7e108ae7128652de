"""For web services of any framework: the rows that a client sends, checked, and a step that ends with its client.

ASGI servers do not cancel a handler whose client has gone: they only say so when they are asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn, TypeVar

import numpy as np

from aioflow.errors import ClientDisconnectedError, FailedPreconditionError, InvalidArgumentError
from aioflow.graph.dtypes import DType, string
from aioflow.graph.tensor import Tensor
from aioflow.work.later import load_later as _load_later

__all__ = ["rows_of", "until_disconnect"]

T = TypeVar("T")


def rows_of(body: Any, tensor: Tensor) -> Any:
    """Return the rows that a client has sent, as an array that can be fed to a tensor.

        rows = aioflow.web.rows_of(await request.body(), x)

    Whatever else was sent raises one error, whose `message` is an answer for the client: JSON that is none, or nested
    too deeply; lists of different lengths; elements of another type; numbers that the dtype does not hold, such as
    1e300 of float32, NaN and infinities; another shape. How many bytes a body may have is for the server to limit.

    Args:
        body: JSON as bytes or text, or the lists that it has been parsed to.
        tensor: The placeholder: numbers, bools or strings, of shape [rows, ...].

    Returns:
        An array of the tensor's dtype, of a shape that it can be fed with; strings are bytes, in UTF-8.

    Raises:
        InvalidArgumentError: these are no such rows.
    """
    dtype = tensor.dtype
    try:
        text = bytes(body) if isinstance(body, memoryview) else body
        is_text = isinstance(text, bytes | bytearray | str)
        lists = json.loads(text, parse_constant=_no_number) if is_text else text
        elements = np.array(lists, np.object_)
        if wrong := set(map(type, elements.reshape(-1))) - _types(dtype):
            ragged = list in wrong
            raise TypeError("the lists differ in length" if ragged else f"an element is {wrong.pop().__name__}")
        rows = _converted(elements, dtype)
    except RecursionError as error:
        raise _refused(tensor, "lists are nested too deeply") from error
    except (ArithmeticError, TypeError, ValueError) as error:
        raise _refused(tensor, str(error)) from error
    if not elements.ndim or not tensor.shape.is_compatible_with(rows.shape):
        raise _refused(tensor, f"the shape is {list(rows.shape)}")
    return rows


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _types(dtype: DType) -> set[type]:
    """Return the types of Python that an element of a dtype may have in what JSON was parsed to."""
    if dtype.is_floating:
        return {int, float}
    if dtype.is_integer or dtype.is_quantized:
        return {int}
    return {bool} if dtype.is_bool else {str} if dtype is string else set()


def _converted(elements: Any, dtype: DType) -> Any:
    """Return the array of the elements. Raises ArithmeticError or ValueError where one does not fit the dtype."""
    if dtype is string:
        texts = np.empty(elements.shape, np.object_)
        texts.reshape(-1)[:] = [text.encode() for text in elements.reshape(-1)]
        return texts
    if not dtype.is_floating:
        return elements.astype(dtype.np_dtype)
    with np.errstate(over="ignore"):
        rows = elements.astype(np.float64).astype(dtype.np_dtype)
    if not np.isfinite(rows).all():
        raise OverflowError("a number is NaN, infinite or too large")
    return rows


def _refused(tensor: Tensor, why: str) -> InvalidArgumentError:
    expected = f"rows of {tensor.dtype.name}, shape {tensor.shape}"
    return InvalidArgumentError(f"expected {expected}: {why}", expected=expected, actual=why)


async def until_disconnect(receive: Callable[[], Awaitable[Mapping[str, Any]]], work: Awaitable[T]) -> T:
    """The result of some work, usually of a step; it is cancelled when the client of the request goes away.

        rows = await request.json()
        result = await aioflow.web.until_disconnect(request.receive, predict(rows))

    The body of the request must have been read before, since its messages come the same way. The work runs in the task
    of the caller: its errors come out as they are, and when the caller is cancelled, so is the work.

    A response that streams (`StreamingResponse`) watches for the client itself. aiohttp has no `receive`: there, the
    handler is cancelled if the application runs with `handler_cancellation=True`.

    Args:
        receive: The ASGI receive channel; `request.receive` in Starlette and FastAPI.
        work: Whatever can be awaited.

    Raises:
        ClientDisconnectedError: the client has gone away, and the work has been stopped.
        FailedPreconditionError: the body has not been read.
    """
    failure: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(_watch(receive))
            try:
                result = await work
            except Exception as error:  # raised below: the group would put it into an ExceptionGroup
                failure = error
            finally:
                watcher.cancel()
    except ExceptionGroup as ended:  # the watcher is the only one in the group
        raise ended.exceptions[0] from failure
    if failure is not None:
        try:
            raise failure
        finally:
            failure = None  # whose traceback holds this frame
    return result


async def _watch(receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> NoReturn:
    """Raise when the client goes away."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("body") and not message.get("more_body"):
        message = await receive()  # that was the end of a body that is empty
    if message["type"] != "http.disconnect":
        raise FailedPreconditionError(
            "the body of the request has not been read", expected="http.disconnect", actual=message["type"]
        )
    raise ClientDisconnectedError("the client has gone away, and what it asked for was stopped")


_load_later(__name__)
