"""A conformance suite for backends: the runtime's requirements, checked against NumPy through the public protocol.

    from aioflow.testing.check_backend import check_backend
    report = await check_backend(MyBackend)

Each check is a coroutine over a fresh backend, so a failing check does not affect the others.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from aioflow.errors import InternalError, NotFoundError
from aioflow.graph.dtypes import as_dtype
from aioflow.graph.opdef import OPS
from aioflow.graph.signature.attributes import Attrs
from aioflow.kernels.registry import KERNELS, Binding, Converter, KernelBody
from aioflow.kernels.resources import ResourceManager
from aioflow.memory.values import Array, Value
from aioflow.runtime.backend_api import Backend, BackendDevice, Executor
from aioflow.runtime.bind import converter
from aioflow.runtime.executor import work_here
from aioflow.runtime.step import Step, root_cause

__all__ = ["CHECKS", "CheckResult", "check_backend"]

Check: TypeAlias = Callable[[Backend, BackendDevice], Awaitable[None]]

_DTYPES: Final = (
    *(np.bool_, np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64),
    *(np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64),
)


_PATIENCE: Final = 10.0  # seconds until a function ends that was not asked to stop
_LINGER: Final = 0.05  # seconds that a stopped function takes to end


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: The name of the check.
        about: The statement that it checks.
        problem: The reason why the statement is false; None if it is true.
    """

    name: str
    about: str
    problem: str | None


async def check_backend(factory: Callable[[], Backend], *, complete: bool = False) -> list[CheckResult]:
    """Run all checks on the first device of the backend that `factory` creates.

    Args:
        factory: Creates the backend, once for each check.
        complete: Whether to run all checks even if one fails, and report problems in the results instead of raising.

    Returns:
        One result for each of `CHECKS`, in their order.

    Raises:
        InternalError: a check failed; the error has the expected and the actual value. If the backend raised an error,
            it is the cause.
    """
    results: list[CheckResult] = []
    for check in CHECKS:
        name = getattr(check, "__name__", "check")
        about = (inspect.getdoc(check) or "").partition("\n")[0].removeprefix("Check that ")
        problem: str | None = None
        try:
            await _checked(check, factory, about)
        except InternalError as error:
            if not complete:
                raise
            problem = str(error)
        results.append(CheckResult(name, about, problem))
    return results


async def _checked(check: Check, factory: Callable[[], Backend], about: str) -> None:
    """Run one check. Raises InternalError, whatever the backend raises."""
    try:
        # A fresh backend: a check that fails may leave the device in any state.
        device = (backend := factory()).device(0)
        try:
            await check(backend, device)
        except BaseException:
            # Closed so that its threads do not outlive it. The failure of the check is what counts.
            with suppress(Exception):
                device.close()
            raise
        device.close()
    except InternalError:
        raise
    except Exception as error:
        cause = root_cause(error) if isinstance(error, BaseExceptionGroup) else error
        found = f"{type(cause).__name__}: {cause}"
        raise InternalError(f"the backend does not conform: {about}", expected="no error", actual=found) from error


def _expect(what: str, actual: object, expected: object) -> None:
    # No `assert`: the suite must work under `python -O`, and the error shows both values.
    if actual != expected:
        raise InternalError(f"the backend does not conform: {what}", expected=expected, actual=actual)


def _expect_array(what: str, actual: Any, expected: Array) -> None:
    _expect(f"{what}: is a NumPy value", isinstance(actual, np.ndarray | np.generic), True)
    _expect(f"{what}: shape and dtype", (np.shape(actual), actual.dtype), (np.shape(expected), expected.dtype))
    # Bytes, not `==`: NaN must equal NaN, and −0.0 differs from 0.0.
    same = np.asarray(actual).tobytes() == np.ascontiguousarray(expected).tobytes()
    _expect(what, same, True)


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def round_trip(backend: Backend, device: BackendDevice) -> None:
    """Check that arrays of every dtype, also of shape (), with no elements and large ones, survive a round trip."""
    for dtype in _DTYPES:
        value = np.arange(24).reshape(2, 3, 4).astype(dtype)
        # Also views with strides and with another order of memory, a scalar and an empty array.
        for given in (value, value[1, 2, 3], value[:0], value[:, ::2].transpose(2, 0, 1)):
            back = await device.to_host(await device.to_device(np.asarray(given)))
            _expect_array(f"round trip of {np.dtype(dtype)} {np.shape(given)}", np.asarray(back), np.asarray(given))
    # 12 MB, which a backend may copy in another way than small values.
    large = np.arange(3_000_000, dtype=np.float32)
    _expect_array("round trip of 12 MB", await device.to_host(await device.to_device(large)), large)


async def snapshots(backend: Backend, device: BackendDevice) -> None:
    """Check that host values and device values are independent copies.

    Later changes of the original do not reach the device, and changes of a fetched value do not reach the next fetch.
    """
    value = np.arange(1000, dtype=np.float32)
    array = await device.to_device(value)
    # The device must have made its copy by the end of the await.
    value[:] = -1
    fetched = await device.to_host(array)
    _expect_array("copy of a value whose original was overwritten", fetched, np.arange(1000, dtype=np.float32))
    # The host owns what it has fetched.
    fetched[:] = -2
    _expect_array("value that is fetched again", await device.to_host(array), np.arange(1000, dtype=np.float32))


async def seen_by_the_host(backend: Backend, device: BackendDevice) -> None:
    """Check that kernels can read values: all elements with `on_host`, one element also with `bool` and `int`."""
    vector, seven = np.array([3, 1, 2], np.int32), np.array(7, np.int64)
    array, one = await device.to_device(vector), await device.to_device(seven)

    def look() -> tuple[Value, ...]:
        return device.on_host(array), int(one), bool(one), device.on_host(vector), device.on_host(b"text")

    seen, number, condition, same, text = await device.executor.run(Step(), look)
    _expect_array("value read by a kernel", seen, vector)
    _expect("one element as int and bool", (number, condition), (7, True))
    _expect_array("host value read by a kernel", same, vector)
    _expect("bytes read by a kernel", text, b"text")


async def many_at_once(backend: Backend, device: BackendDevice) -> None:
    """Check that many concurrent copies in both directions are not mixed up."""
    values = [np.full((i + 1, 300), i, np.int32) for i in range(64)]
    async with asyncio.TaskGroup() as tg:
        copies = [tg.create_task(_there_and_back(device, value)) for value in values]
    for value, copy in zip(values, copies, strict=True):
        _expect_array(f"copy {value[0, 0]} of many", copy.result(), value)


async def _there_and_back(device: BackendDevice, value: Array) -> Value:
    return await device.to_host(await device.to_device(value))


# ── running ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def runs_in_order(backend: Backend, device: BackendDevice) -> None:
    """Check that a function sees everything computed and copied before it, and a fetch sees the function's result."""
    xp = device.xp
    array = await device.to_device(np.zeros(5000, np.float32))
    for i in range(20):
        # The number is an argument, since a lambda would read the loop's variable late.
        array = await device.executor.run(Step(), lambda a, n: xp.add(a, np.float32(n)), array, i)
    _expect_array(
        "result of a chain of functions", await device.to_host(array), np.full(5000, sum(range(20)), np.float32)
    )


async def errors_come_back(backend: Backend, device: BackendDevice) -> None:
    """Check that a function's error is raised where it is awaited, and that the device can be used afterwards."""

    def fails() -> None:
        raise NotFoundError("on purpose")

    try:
        await device.executor.run(Step(), fails)
    except NotFoundError as error:
        _expect("message of the function's error", error.message, "on purpose")
    else:
        raise InternalError("a function's error was lost", expected="NotFoundError", actual="none")
    _expect("result after an error", await device.executor.run(Step(), lambda: 7), 7)


async def cancellation_waits(backend: Backend, device: BackendDevice) -> None:
    """Check that a cancelled run asks its step to stop, and returns only when a critical section has ended."""
    step, seen, loop = Step(), asyncio.Event(), asyncio.get_running_loop()
    ended: list[bool] = []

    def long() -> None:
        # Outside of a critical section an executor may abandon the thread, after a time of its own.
        work_here(step).begin_critical()
        # From another thread, where setting the event directly would not wake the loop.
        loop.call_soon_threadsafe(seen.set)
        # Without an await or a checkpoint: only the backend's own request can end it. A backend that makes none fails,
        # and does not hang.
        until = time.monotonic() + _PATIENCE
        while not step.requested and time.monotonic() < until:
            pass
        # A run that does not wait for the function returns in this time.
        time.sleep(_LINGER)
        ended.append(step.requested)

    async with asyncio.TaskGroup() as tg:
        task = tg.create_task(device.executor.run(step, long))
        await seen.wait()
        # After the function has begun; before, a cancelled run need not start it.
        task.cancel()
    _expect("the task was cancelled", task.cancelled(), True)
    # An empty list: the function had not ended. [False]: it ended without a request.
    _expect("the step had been asked to stop, and the function had ended", list(ended), [True])


# ── kernels ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_X: Final = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)

# Ops with inputs, attributes, and the result of NumPy.
_KERNELS: Final[tuple[tuple[str, Sequence[Array], Attrs, Array], ...]] = (
    ("AddV2", (_X, _X[0]), {}, _X + _X[0]),
    ("Relu", (_X,), {}, np.maximum(_X, 0)),
    ("MatMul", (_X, _X), {"transpose_a": False, "transpose_b": True}, _X @ _X.T),
    ("Sum", (_X, np.array([1], np.int32)), {"keep_dims": False}, _X.sum(1)),
    ("Softmax", (_X,), {}, np.exp(_X) / np.exp(_X).sum(1, keepdims=True)),
    ("Reshape", (_X, np.array([3, -1], np.int32)), {}, _X.reshape(3, -1)),
    ("Transpose", (_X, np.array([1, 0], np.int32)), {}, _X.T),
    ("Gather", (_X, np.array([3, 0], np.int64)), {"validate_indices": True}, _X[[3, 0]]),
    ("SelectV2", (_X > 0, _X, -_X), {}, np.abs(_X)),
)


async def kernels_follow_their_ops(backend: Backend, device: BackendDevice) -> None:
    """Check that every registered kernel has the inputs and attributes of its op."""
    # Loading compares each kernel with the definition of its op, and raises on a mismatch.
    KERNELS.load()


async def kernels_compute(backend: Backend, device: BackendDevice) -> None:
    """Check that kernels of every family compute NumPy's results."""
    for op, inputs, attrs, expected in _KERNELS:
        body, converters = _bound(device, op, inputs, attrs)
        arrays = [await device.to_device(i) for i in inputs]
        result = await device.to_host(await device.executor.run(Step(), _call, body, converters, arrays))
        # Kernels may sum in another order and with fused operations, so the last bits may differ.
        close = np.shape(result) == np.shape(expected) and bool(np.allclose(result, expected, rtol=1e-5, atol=1e-6))
        _expect(f"result of {op}", close, True)


def _call(body: KernelBody, converters: Sequence[Converter | None], arrays: Sequence[Value]) -> Any:
    return body(*(a if c is None else c(a) for a, c in zip(arrays, converters, strict=True)))


async def takes_host_values(backend: Backend, device: BackendDevice) -> None:
    """Check that shapes are on the host, and that kernels combine host values, constant or not, with device arrays."""
    array, row = await device.to_device(_X), _X[0]
    # A constant operand may select another kernel body than one that is known in the step only.
    for constant in (None, row):
        body, _ = _bound(device, "AddV2", (_X, row), {}, (None, constant))
        made = await device.to_host(await device.executor.run(Step(), body, array, row))
        _expect_array("sum of a device array and a host value", made, _X + row)
    body, _ = _bound(device, "Shape", (_X,), {"out_type": as_dtype(np.int32)})
    shape = await device.executor.run(Step(), body, array)
    _expect_array("shape of a device array", shape, np.array(_X.shape, np.int32))


async def numbers_repeat(backend: Backend, device: BackendDevice) -> None:
    """Check that equal seeds, of any sign, give equal random numbers, and that others give other numbers."""

    def drawn(seed: int, seed2: int) -> Value:
        return device.generator(seed, seed2).random(8)

    found: list[list[float]] = []
    for seeds in ((3, -4), (3, -4), (-4, 3), (0, 0), (0, 0)):
        array: Any = await device.executor.run(Step(), drawn, *seeds)
        found.append((await device.to_host(array)).tolist())
    _expect("numbers of equal seeds", found[1], found[0])
    _expect("different lists of numbers; (0, 0) seeds from the operating system", len(set(map(tuple, found))), 4)
    _expect("numbers in [0, 1)", all(0 <= number < 1 for numbers in found for number in numbers), True)


async def arrays_are_shared(backend: Backend, device: BackendDevice) -> None:
    """Check that other libraries can import an array of the device by DLPack, and other devices can copy it."""
    array = await device.to_device(_X)
    shared = device.share(array)
    missing = [name for name in ("__dlpack__", "__dlpack_device__") if not hasattr(shared, name)]
    _expect("what a shared array lacks", missing, [])
    if (backend.count() or 2) > 1:
        other = backend.device(1)
        try:
            copy = await other.executor.run(Step(), other.copy_from, array, device)
            _expect_array("copy on another device", await other.to_host(copy), _X)
        finally:
            other.close()


def _bound(
    device: BackendDevice, op: str, inputs: Sequence[Array], attrs: Attrs, constants: tuple[Array | None, ...] = ()
) -> tuple[KernelBody, list[Converter | None]]:
    op_def = OPS.get(op)
    given = {arg.type_attr: as_dtype(i.dtype) for arg, i in zip(op_def.inputs, inputs, strict=True) if arg.type_attr}
    every = {**given, **attrs}
    kernel = KERNELS.get(op, device.device_type, every)
    dtypes = tuple(as_dtype(i.dtype) for i in inputs)
    made = tuple(every.get(arg.type_attr or "", dtypes[0]) for arg in op_def.outputs)
    unknown = (None,) * len(inputs)
    shapes = (None,) * len(made)
    known = constants or unknown
    binding = Binding(op, op, every, dtypes, unknown, made, shapes, known, device, ResourceManager(), {})
    return device.bind(kernel, binding)[1], [converter(kernel, arg.name, device) for arg in op_def.inputs]


# ── the device ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def has_all_members(backend: Backend, device: BackendDevice) -> None:
    """Check that the backend, its device and the executor have all members of their protocols."""
    for what, made, protocol in (
        ("the backend", backend, Backend),
        ("its device", device, BackendDevice),
        ("the device's executor", device.executor, Executor),
    ):
        missing = [name for name in dir(protocol) if not name.startswith("_") and not hasattr(made, name)]
        _expect(f"members that {what} lacks", missing, [])


async def describes_itself(backend: Backend, device: BackendDevice) -> None:
    """Check that names, the device count and memory figures are consistent."""
    _expect("the backend has a name and a device type", bool(backend.name and backend.device_type), True)
    count = backend.count()
    _expect("the device count is at least 1", count is None or count >= 1, True)
    _expect("`device(0)` returns the same device every time", backend.device(0) is device, True)
    _expect("the device is of the backend's type", device.device_type, backend.device_type)
    limit, what = backend.describe(0)
    _expect("the device has a description", bool(what), True)
    _expect("the memory limit is positive", limit is None or limit > 0, True)
    stats = device.memory()
    _expect("used memory is at most reserved memory", stats is None or 0 <= stats.used <= stats.reserved, True)


async def closes_twice(backend: Backend, device: BackendDevice) -> None:
    """Check that `close` returns when no call is running, and that a second `close` does nothing."""
    await device.to_host(await device.to_device(np.ones(10)))
    device.close()
    device.close()


CHECKS: Final[tuple[Check, ...]] = (
    has_all_members,
    describes_itself,
    round_trip,
    snapshots,
    seen_by_the_host,
    many_at_once,
    runs_in_order,
    errors_come_back,
    cancellation_waits,
    kernels_follow_their_ops,
    kernels_compute,
    takes_host_values,
    numbers_repeat,
    arrays_are_shared,
    closes_twice,
)
