"""Kernels that call the user's Python: a coroutine function on the event loop, a plain function in a thread.

Inputs are passed read-only, because the arrays belong to the step. Results are checked and copied, because the function
may keep its arrays and change them later.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import numpy as np

from aioflow.concurrency.threads import in_thread
from aioflow.errors import (
    CancelledError,
    DeadlineExceededError,
    DTypeError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    ResourceExhaustedError,
    UnimplementedError,
    UnknownError,
)
from aioflow.graph import dtypes
from aioflow.graph.arrays import takes_long, to_array
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import OPS
from aioflow.graph.shapes import Dims, format_dims, is_compatible
from aioflow.kernels.registry import Binding, binder
from aioflow.memory.copying import copied, native
from aioflow.memory.values import Array, Value
from aioflow.ops.function.python_functions import PythonFunction, RetryPolicy, find_function

# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_only(value: Value) -> Value:
    """Return the value as the user's function receives it: a read-only view, or a scalar."""
    if not isinstance(value, np.ndarray):
        return value
    if value.ndim == 0:
        return value[()]
    view = value.view()
    view.flags.writeable = False
    return view


class ResultCheck:
    """The conversion of a function's result to the outputs of its node."""

    def __init__(self, dtypes: Sequence[DType], shapes: Sequence[Dims]) -> None:
        self._specs = list(zip(dtypes, shapes, strict=True))

    def __call__(self, result: Value) -> tuple[Array, ...]:
        """Return one array per output.

        Raises:
            InvalidArgumentError: the number of values, or a shape, differs.
            DTypeError: a dtype differs.
        """
        values = _listed(result)
        if len(values) != len(self._specs):
            raise InvalidArgumentError(
                "the function returned the wrong number of values (a list or tuple has one value per output)",
                expected=len(self._specs),
                actual=len(values),
            )
        return tuple(_output(i, v, *spec) for i, (v, spec) in enumerate(zip(values, self._specs, strict=True)))

    async def wherever(self, result: Value) -> tuple[Array, ...]:
        """Like `__call__`, but in a thread if the conversion takes long enough."""
        values = _listed(result)
        # `__call__` reports a wrong number of values, hence `strict=False`.
        if any(takes_long(value, dtype) for value, (dtype, _) in zip(values, self._specs, strict=False)):
            return await in_thread(self, result, effects=False)
        return self(result)


def _listed(result: Value) -> Sequence[Value]:
    if isinstance(result, list | tuple):
        return result
    return () if result is None else (result,)


def _output(index: int, value: Value, dtype: DType, dims: Dims) -> Array:
    if isinstance(value, np.ndarray | np.generic) and dtype is not dtypes.string:
        # The byte order is no part of the dtype; `native` converts it below.
        if value.dtype.newbyteorder("=") != dtype.np_dtype:
            raise DTypeError(
                f"the function returned output {index} with the wrong dtype",
                expected=dtype.name,
                actual=value.dtype.name,
            )
        array: Any = native(value)
        array = copied(array) if array.ndim else array
    else:
        try:
            array = to_array(value, dtype)
        except InvalidArgumentError as error:
            error.message = f"the function's output {index}: {error.message}"
            raise
        # A view may be of memory that the function keeps.
        array = array if array.base is None else copied(array)
    if not is_compatible(array.shape, dims):
        raise InvalidArgumentError(
            f"the function returned output {index} with the wrong shape",
            expected=format_dims(dims),
            actual=tuple(array.shape),
        )
    found: Array = array[()] if array.ndim == 0 and dtype is not dtypes.string else array
    return found


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────────

# The mapping of TensorFlow's py_func.
_MEANINGS: Final[tuple[tuple[type[BaseException], type[OpError]], ...]] = (
    ((StopIteration), OutOfRangeError),
    ((ValueError), InvalidArgumentError),
    ((TypeError), InvalidArgumentError),
    ((MemoryError), ResourceExhaustedError),
    ((NotImplementedError), UnimplementedError),
)


def call_error(error: BaseException, meanings: Sequence[tuple[type[BaseException], type[OpError]]] = ()) -> OpError:
    """Return the engine's error for an exception of the user's function, with that exception as its cause."""
    if isinstance(error, OpError):
        return error
    kind = next((to for foreign, to in meanings if isinstance(error, foreign)), UnknownError)
    made = kind(f"the function raised {type(error).__name__}: {error}")
    made.__cause__ = error
    return made


# ── coroutine functions ───────────────────────────────────────────────────────────────────────────────────────────────


@binder("AioflowPyCoroutine", device="CPU", is_async=True, fresh=True, retains=True)
@binder("AioflowPyCoroutineStateless", device="CPU", is_async=True, fresh=True, retains=True)
def py_coroutine(binding: Binding) -> Callable[[Sequence[Value]], Awaitable[tuple[Array, ...]]]:
    function = find_function(binding.attrs["token"])
    check = ResultCheck(binding.output_dtypes, binding.output_dims)

    async def run(values: Sequence[Value]) -> tuple[Array, ...]:
        try:
            result = await _tried(function, [read_only(v) for v in values])
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            raise CancelledError("an operation that the function awaited was cancelled") from error
        except Exception as error:
            failure = call_error(error)
            raise failure from failure.__cause__
        return await check.wherever(result)

    return run


def is_cancelled() -> bool:
    """Return True if the current task itself was cancelled.

    Otherwise a CancelledError came from something that the user's code awaited, and the step reports it as an error.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _tried(function: PythonFunction, values: Sequence[Value]) -> Value:
    policy = function.policy
    if policy is None:
        return await _once(function, values)
    for attempt in itertools.count(1):
        try:
            return await _within(policy, function, values)
        except policy.retry_on:
            if attempt > policy.retries:
                raise
        await policy.sleep(policy.backoff(attempt))
    # Not reached, since `count` never ends.
    return None


async def _within(policy: RetryPolicy, function: PythonFunction, values: Sequence[Value]) -> Value:
    try:
        async with asyncio.timeout(policy.timeout) as deadline:
            return await _once(function, values)
    except TimeoutError as error:
        # The function itself raised this TimeoutError.
        if not deadline.expired():
            raise
        raise DeadlineExceededError(
            "the function did not finish in time", expected=f"at most {policy.timeout} s", actual="stopped"
        ) from error


async def _once(function: PythonFunction, values: Sequence[Value]) -> Value:
    result = function.call(*values)
    if not inspect.isawaitable(result):
        raise InvalidArgumentError(
            "py_coroutine requires a coroutine function; use py_func for a plain one",
            expected="an awaitable",
            actual=type(result).__name__,
        )
    found: Value = await result
    return found


# ── plain functions ───────────────────────────────────────────────────────────────────────────────────────────────────


@binder("PyFunc", device="CPU", is_async=True, fresh=True, retains=True)
@binder("PyFuncStateless", device="CPU", is_async=True, fresh=True, retains=True)
def py_func(binding: Binding) -> Callable[[Sequence[Value]], Awaitable[tuple[Array, ...]]]:
    function = find_function(binding.attrs["token"])
    check = ResultCheck(binding.output_dtypes, binding.output_dims)
    # Only a call without effects may be abandoned in its thread.
    effects = OPS.get(binding.op_type).stateful

    async def run(values: Sequence[Value]) -> tuple[Array, ...]:
        result, error = await _tried_in_thread(lambda: function.call(*[read_only(v) for v in values]), effects)
        if error is not None:
            failure = call_error(error, _MEANINGS)
            raise failure from failure.__cause__
        if inspect.iscoroutine(result):
            result.close()
            raise InvalidArgumentError(
                "py_func requires a plain function; use py_coroutine for a coroutine function",
                expected="a value",
                actual="a coroutine",
            )
        return await check.wherever(result)

    return run


async def _tried_in_thread(call: Callable[[], Value], effects: bool) -> tuple[Value, BaseException | None]:
    """Return the result and the exception of a call in a thread, in the context of the caller.

    A running function cannot be stopped. If the task is cancelled, a call that has not begun never runs. A running call
    with effects is awaited, so that no work of a step outlives the step. One without effects is abandoned.
    """

    def work() -> tuple[Value, BaseException | None]:
        try:
            return call(), None
        except BaseException as error:  # a future cannot hold StopIteration or CancelledError as its exception
            return None, error

    return await in_thread(work, effects=effects)
