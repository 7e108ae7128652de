"""Python in the graph: coroutine functions, plain functions and async iterators as nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, overload

from aioflow.arguments import check_callable, check_number, check_whole
from aioflow.errors import DTypeError, InvalidArgumentError, UnavailableError
from aioflow.graph import dtypes
from aioflow.graph.default_graph import default_graph, graph_of
from aioflow.graph.dtypes import DTypeLike
from aioflow.graph.gradient_registry import not_differentiable
from aioflow.graph.graph import Tensor
from aioflow.graph.opdef import ShapeContext, define_op
from aioflow.graph.shapes import Dims, ShapeLike, dims_of
from aioflow.graph.traits import Effect, python_function
from aioflow.ops.apply import TensorLike, convert_to_tensor, make_list, make_op
from aioflow.ops.function.python_functions import PythonFunction, RetryPolicy, keep_function

__all__ = ["from_async_iterator", "numpy_function", "py_coroutine", "py_func"]

_Callable = TypeVar("_Callable")
GradientFunction = Callable[..., object]


def _given_shapes(ctx: ShapeContext) -> list[Dims]:
    return list(ctx.attrs["shapes"])


for _name, _effect in (("PyFunc", Effect.CHANGES), ("PyFuncStateless", Effect.NONE)):
    define_op(
        _name,
        "input: list:Tin",
        "output: list:Tout",
        ["token: string", "Tin: list(type)", "Tout: list(type)"],
        traits=python_function(effect=_effect),
    )
for _name, _effect in (("AioflowPyCoroutine", Effect.CHANGES), ("AioflowPyCoroutineStateless", Effect.NONE)):
    define_op(
        _name,
        "input: list:Tin",
        "output: list:Tout",
        ["token: string", "Tin: list(type)", "Tout: list(type)", "shapes: list(shape)"],
        shape=_given_shapes,
        traits=python_function(effect=_effect),
    )
define_op(
    "AioflowAsyncIteratorNext",
    "",
    "components: list:output_types",
    ["token: string", "output_types: list(type) >= 1", "output_shapes: list(shape)", "prefetch: int >= 0"],
    shape=lambda ctx: list(ctx.attrs["output_shapes"]),
    traits=python_function(effect=Effect.CHANGES, tells_step=True, takes_away=True),
)
not_differentiable(
    "PyFunc", "PyFuncStateless", "AioflowPyCoroutine", "AioflowPyCoroutineStateless", "AioflowAsyncIteratorNext"
)

# Errors that are retried by default: the peer is not available, or did not answer in time.
_PASSING: Final = (UnavailableError, ConnectionError, TimeoutError)


def exponential_backoff(attempt: int) -> float:
    """Return the delay after a failed attempt: 0.1 s after the first, doubling each time, at most 10 s."""
    return float(min(10.0, 0.1 * 2.0 ** min(attempt - 1, 10)))


@overload
def py_coroutine(
    fn: Callable[..., Awaitable[object]],
    inputs: Sequence[TensorLike],
    Tout: DTypeLike,
    *,
    timeout: float | None = None,
    retries: int = 0,
    retry_on: Sequence[type[Exception]] = _PASSING,
    backoff: Callable[[int], float] = exponential_backoff,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    shapes: ShapeLike | None = None,
    stateful: bool = True,
    gradient: GradientFunction | None = None,
    name: str | None = None,
) -> Tensor: ...


@overload
def py_coroutine(
    fn: Callable[..., Awaitable[object]],
    inputs: Sequence[TensorLike],
    Tout: list[Any] | tuple[object, ...],
    *,
    timeout: float | None = None,
    retries: int = 0,
    retry_on: Sequence[type[Exception]] = _PASSING,
    backoff: Callable[[int], float] = exponential_backoff,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    shapes: Sequence[ShapeLike | None] | None = None,
    stateful: bool = True,
    gradient: GradientFunction | None = None,
    name: str | None = None,
) -> Any: ...


def py_coroutine(
    fn: Callable[..., Awaitable[object]],
    inputs: Sequence[TensorLike],
    Tout: object,
    *,
    timeout: float | None = None,
    retries: int = 0,
    retry_on: Sequence[type[Exception]] = _PASSING,
    backoff: Callable[[int], float] = exponential_backoff,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    shapes: object = None,
    stateful: bool = True,
    gradient: GradientFunction | None = None,
    name: str | None = None,
) -> object:
    """Make `await fn(*inputs)` a node: a query to a database, a call to a service, an async lock.

    All such nodes of a step that do not wait for one another are in flight at once. They run on the event loop of the
    step, with the context variables of the caller of `session.run`. They are cancelled when the step is stopped.

    Args:
        fn: A coroutine function. Its arguments are NumPy values, arrays being read-only views. It returns one value, or
            a list or tuple with one per output; None if there are no outputs.
        inputs: Tensors.
        Tout: The dtype of the output, or a list of dtypes.
        timeout: Timeout of one attempt, in seconds.
        retries: Number of further attempts after an error of `retry_on`. An attempt that timed out is a TimeoutError.
        retry_on: The exceptions to retry.
        backoff: A function from the number of failed attempts (1, 2, …) to the delay, in seconds.
        sleep: The coroutine function that waits for the delay.
        shapes: Static shape of the output, or a list of them; values are checked against it.
        stateful: Whether a call may have an effect, or return different results for the same inputs.
        gradient: `gradient(op, *grads)` builds the gradient: one per input. Without it, no gradient flows back.
        name: Name of the node.

    Returns:
        A tensor; a list of tensors if `Tout` is a list; an operation if the list is empty.

    Raises (the step):
        DeadlineExceededError: the last attempt timed out.
        UnknownError: `fn` raised something other than an `OpError`; it is the `__cause__`.
        InvalidArgumentError, DTypeError: the returned value fits neither `Tout` nor `shapes`.
        NotFoundError: the node runs in another process than the one in which it was made.
    """
    check_whole(retries, "the retries of a coroutine", 0)
    if timeout is not None:
        check_number(timeout, "the time limit of a coroutine", "a number of seconds, or None", above=0.0)
    policy = None
    if timeout is not None or retries:
        policy = RetryPolicy(timeout, retries, tuple(retry_on), backoff, sleep)
    types = _types(Tout)
    op_type = "AioflowPyCoroutine" if stateful else "AioflowPyCoroutineStateless"
    function = PythonFunction(_callable(fn), policy)
    return _call_node(op_type, function, inputs, Tout, gradient, name, shapes=_shapes(shapes, types, Tout))


@overload
def py_func(
    func: Callable[..., object],
    inp: Sequence[TensorLike],
    Tout: DTypeLike,
    stateful: bool = True,
    name: str | None = None,
    *,
    gradient: GradientFunction | None = None,
) -> Tensor: ...


@overload
def py_func(
    func: Callable[..., object],
    inp: Sequence[TensorLike],
    Tout: list[Any] | tuple[object, ...],
    stateful: bool = True,
    name: str | None = None,
    *,
    gradient: GradientFunction | None = None,
) -> Any: ...


def py_func(
    func: Callable[..., object],
    inp: Sequence[TensorLike],
    Tout: object,
    stateful: bool = True,
    name: str | None = None,
    *,
    gradient: GradientFunction | None = None,
) -> object:
    """Make `func(*inp)` a node: a plain function, which runs in a thread and may block there.

    A step that is stopped waits for a call that has begun.

    Args:
        func: A function. Its arguments are NumPy values, arrays being read-only views. It returns one value, or a list
            or tuple with one per output; None if there are no outputs. It sees the context variables of the caller of
            `session.run`.
        inp: Tensors.
        Tout: The dtype of the output, or a list of dtypes.
        stateful: Whether a call may have an effect, or return different results for the same inputs.
        name: Name of the node.
        gradient: `gradient(op, *grads)` builds the gradient: one per input. Without it, no gradient flows back.

    Returns:
        A tensor of unknown shape; a list of tensors if `Tout` is a list; an operation if the list is empty.

    Raises (the step):
        InvalidArgumentError: `func` raised ValueError or TypeError, or returned something that does not fit `Tout`.
        OutOfRangeError: `func` raised StopIteration.
        ResourceExhaustedError: `func` raised MemoryError.
        UnimplementedError: `func` raised NotImplementedError.
        UnknownError: `func` raised another exception that is not an `OpError`. In each case the exception is the
            `__cause__`.
        NotFoundError: the node runs in another process than the one in which it was made.
    """
    op_type = "PyFunc" if stateful else "PyFuncStateless"
    return _call_node(op_type, PythonFunction(_callable(func)), inp, Tout, gradient, name)


@overload
def numpy_function(
    func: Callable[..., object],
    inp: Sequence[TensorLike],
    Tout: DTypeLike,
    stateful: bool = True,
    name: str | None = None,
) -> Tensor: ...


@overload
def numpy_function(
    func: Callable[..., object],
    inp: Sequence[TensorLike],
    Tout: list[Any] | tuple[object, ...],
    stateful: bool = True,
    name: str | None = None,
) -> Any: ...


def numpy_function(
    func: Callable[..., object], inp: Sequence[TensorLike], Tout: Any, stateful: bool = True, name: str | None = None
) -> object:
    """Make a node like `py_func`, under TensorFlow's later name."""
    return py_func(func, inp, Tout, stateful, name)


@overload
def from_async_iterator(
    iterable_or_factory: AsyncIterable[object] | Callable[[], AsyncIterable[object]],
    Tout: DTypeLike,
    shapes: ShapeLike | None = None,
    prefetch: int = 2,
    name: str | None = None,
) -> Tensor: ...


@overload
def from_async_iterator(
    iterable_or_factory: AsyncIterable[object] | Callable[[], AsyncIterable[object]],
    Tout: list[Any] | tuple[object, ...],
    shapes: Sequence[ShapeLike | None] | None = None,
    prefetch: int = 2,
    name: str | None = None,
) -> list[Tensor]: ...


def from_async_iterator(
    iterable_or_factory: AsyncIterable[object] | Callable[[], AsyncIterable[object]],
    Tout: object,
    shapes: object = None,
    prefetch: int = 2,
    name: str | None = None,
) -> object:
    """Return tensors that yield the next element of an async iterator at each step.

    Each session reads independently. It starts with its first such step, and closes the iterator when the session is
    closed. Steps get elements in the order of their requests. If a step is cancelled while it waits for an element, the
    next step gets that element.

    Args:
        iterable_or_factory: An async iterable, or a function without arguments that returns one. Only one session can
            read an iterator, such as an async generator; from any other iterable each session gets an iterator of its
            own.
        Tout: The dtype of an element, or a list of dtypes if an element is a list or tuple of values.
        shapes: Static shape of the element, or a list of them; elements are checked against it.
        prefetch: Number of elements to read ahead of the steps.
        name: Name of the node.

    Raises (the step):
        OutOfRangeError: the iterator has ended.
        UnknownError: the iterator raised something other than an `OpError` instead of this step's element.
        InvalidArgumentError, DTypeError: the element does not fit.
        FailedPreconditionError: another session reads the iterator, or the event loop that read it has ended.
    """
    if not (isinstance(iterable_or_factory, AsyncIterable) or callable(iterable_or_factory)):
        raise DTypeError(
            "not an async iterator",
            expected="an async iterable, or a function that returns one",
            actual=type(iterable_or_factory).__name__,
        )
    types = _types(Tout)
    graph = default_graph()
    token = keep_function(graph, PythonFunction(iterable_or_factory))
    with graph.as_default():
        outputs = make_list(
            "AioflowAsyncIteratorNext",
            token=token,
            output_types=types,
            output_shapes=_shapes(shapes, types, Tout),
            prefetch=prefetch,
            name=name or "AsyncIterator",
        )
    return outputs if isinstance(Tout, list | tuple) else outputs[0]


def _call_node(
    op_type: str,
    function: PythonFunction,
    inputs: Sequence[TensorLike],
    Tout: object,
    gradient: GradientFunction | None,
    name: str | None,
    **attrs: object,
) -> object:
    if not isinstance(inputs, list | tuple):
        raise DTypeError("the inputs are not a sequence", expected="a list of tensors", actual=type(inputs).__name__)
    graph = graph_of(inputs)
    with graph.as_default():
        tensors = [convert_to_tensor(value) for value in inputs]
        token = keep_function(graph, function)
        op = make_op(op_type, tensors, token=token, Tout=_types(Tout), name=name, **attrs)
    if gradient is not None:
        op.gradient_function = gradient
    if not op.outputs:
        return op
    return list(op.outputs) if isinstance(Tout, list | tuple) else op.outputs[0]


def _callable(function: _Callable) -> _Callable:
    check_callable(function, "the function")
    return function


def _types(Tout: Any) -> tuple[dtypes.DType, ...]:
    return tuple(dtypes.as_dtype(t) for t in (Tout if isinstance(Tout, list | tuple) else [Tout]))


def _shapes(shapes: Any, types: Sequence[dtypes.DType], Tout: object) -> tuple[Dims, ...]:
    if shapes is None:
        return (None,) * len(types)
    found = tuple(dims_of(s) for s in shapes) if isinstance(Tout, list | tuple) else (dims_of(shapes),)
    if len(found) != len(types):
        raise InvalidArgumentError("the numbers of shapes and dtypes differ", expected=len(types), actual=len(found))
    return found
