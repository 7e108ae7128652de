"""Python functions as nodes: coroutines, plain functions in threads, their errors, limits and lifetimes."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import aioflow as af
from aioflow.ops.function.python_functions import find_function
from aioflow.testing.evaluate import evaluate
from tests.support.waiting import until_collected

_WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


async def double(x: Any) -> Any:
    await asyncio.sleep(0)
    return x * x.dtype.type(2)


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_py_coroutine_runs_between_other_nodes() -> None:
    x = af.placeholder("float32", [None])
    y = af.reduce_sum(af.py_coroutine(double, [x + 1.0], "float32", shapes=[None], name="ask"))
    async with af.Session() as session:
        assert await session.run(y, {x: [1.0, 2.0]}) == 10
        assert await session.run(y, {x: [3.0]}) == 8


async def test_outputs_follow_tout() -> None:
    async def three() -> Any:
        return np.int32(1), [2.5, 3.5], "text"

    async def nothing() -> None:
        return None

    a, b, c = af.py_coroutine(three, [], ["int32", "float64", "string"], shapes=[[], [2], []])
    op = af.py_coroutine(nothing, [], [])
    assert isinstance(op, af.Operation)
    assert [t.shape.as_list() for t in (a, b, c)] == [[], [2], []]
    async with af.Session() as session:
        va, vb, vc, none = await session.run([a, b, c, op])
    assert (va, vb.tolist(), vc, none) == (1, [2.5, 3.5], b"text", None)
    assert (va.dtype, vb.dtype) == (np.int32, np.float64)


async def test_inputs_are_read_only_copies_of_the_feeds() -> None:
    kept: list[Any] = []

    async def keep(x: Any, s: Any, t: Any) -> Any:
        kept.extend((x, s, t))
        with pytest.raises(ValueError, match="read-only"):
            x[0] = 5
        return x

    x = af.placeholder("float32", [2])
    s, t = af.placeholder("float32", []), af.placeholder("string", [])
    y = af.py_coroutine(keep, [x, s, t], "float32")
    fed = np.array([1, 2], np.float32)
    async with af.Session() as session:
        result = await session.run(y, {x: fed, s: 3, t: "a"})
    result[:] = 0
    fed[:] = 9
    assert kept[0].tolist() == [1, 2]
    assert isinstance(kept[1], np.float32)
    assert kept[1:] == [3, b"a"]


async def test_results_are_copied_from_arrays_that_the_function_keeps() -> None:
    mine = np.zeros(4, np.float32)

    async def give() -> Any:
        return mine

    async def change(_: Any) -> Any:
        mine[:] = 7
        return np.float32(0)

    y = af.py_coroutine(give, [], "float32")
    z = af.py_coroutine(change, [y], "float32")
    async with af.Session() as session:
        with_zeros, _ = await session.run([y, z])
    assert with_zeros.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("result", "error", "expected", "actual"),
    [
        (np.zeros(2, np.float64), af.errors.DTypeError, "float32", "float64"),
        (np.int64(1), af.errors.DTypeError, "float32", "int64"),
        ("text", af.errors.DTypeError, None, None),
        (np.zeros(3, np.float32), af.errors.InvalidArgumentError, "(2,)", (3,)),
        ((1.0, 2.0), af.errors.InvalidArgumentError, 1, 2),
        (None, af.errors.InvalidArgumentError, 1, 0),
        ([[1.0], [2.0, 3.0]], af.errors.InvalidArgumentError, 1, 2),
    ],
)
@pytest.mark.parametrize("threaded", [False, True])
async def test_results_must_match_tout_and_shapes(
    result: Any, error: type[af.OpError], expected: Any, actual: Any, threaded: bool
) -> None:
    async def answer() -> Any:
        return result

    if threaded:
        if actual == (3,):
            pytest.skip("py_func has no shapes")
        y = af.py_func(lambda: result, [], "float32", name="node")
    else:
        y = af.py_coroutine(answer, [], "float32", shapes=[2], name="node")
    async with af.Session() as session:
        with pytest.raises(error) as caught:
            await session.run(y)
    assert caught.value.node == "node"
    if expected is not None:
        assert (caught.value.expected, caught.value.actual) == (expected, actual)


def test_wrong_requests_are_refused_when_building() -> None:
    with pytest.raises(af.errors.DTypeError):
        af.py_coroutine(None, [], "float32")  # type: ignore[call-overload]
    with pytest.raises(af.errors.DTypeError):
        af.py_func(len, 3, "float32")  # type: ignore[call-overload]
    with pytest.raises(af.errors.InvalidArgumentError):
        af.py_coroutine(double, [1.0], ["float32", "int32"], shapes=[[]])
    for wrong in ({"retries": -1}, {"timeout": 0.0}):
        with pytest.raises(af.errors.InvalidArgumentError):
            af.py_coroutine(double, [1.0], "float32", **wrong)


# ── concurrency and cancellation ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_thousand_coroutines_run_concurrently() -> None:
    flying, all_there = 0, asyncio.Event()

    async def ask(v: Any) -> Any:
        nonlocal flying
        flying += 1
        if flying == 1000:
            all_there.set()
        await all_there.wait()  # blocks forever if the nodes run one after another
        return v

    x = af.placeholder("float32", [])
    total = af.add_n([af.py_coroutine(ask, [x], "float32", shapes=[]) for _ in range(1000)])
    async with af.Session() as session:
        assert await session.run(total, {x: 1.0}, timeout=30) == 1000
    assert flying == 1000


async def test_a_cancelled_step_cancels_its_coroutines() -> None:
    begun, ended = asyncio.Event(), []

    async def wait() -> Any:
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            ended.append(error)
            raise

    y = af.py_coroutine(wait, [], "float32")
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        task = tg.create_task(session.run(y))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    (error,) = ended
    # Code that follows the chain of causes would loop forever if the error were its own cause.
    assert error.__cause__ is None


@pytest.mark.parametrize("threaded", [False, True])
async def test_cancellation_inside_the_function_is_an_error(threaded: bool) -> None:
    async def gone() -> Any:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    def raising() -> Any:
        raise asyncio.CancelledError

    y = af.py_func(raising, [], "float32") if threaded else af.py_coroutine(gone, [], "float32")
    async with af.Session() as session:
        with pytest.raises((af.errors.CancelledError, af.errors.UnknownError)) as caught:
            await asyncio.wait_for(session.run(y + 1.0), 5)
    assert caught.value.node == y.op.name


# ── errors, limits and retries ───────────────────────────────────────────────────────────────────────────────────────


async def test_errors_of_coroutines_name_the_node() -> None:
    async def broken() -> Any:
        raise KeyError("lost")

    async def typed() -> Any:
        raise af.errors.PermissionDeniedError("no entry")

    async with af.Session() as session:
        with pytest.raises(af.errors.UnknownError, match="lost") as caught:
            await session.run(af.py_coroutine(broken, [], "float32", name="broken"))
        assert (caught.value.node, type(caught.value.__cause__)) == ("broken", KeyError)
        assert caught.value.source is not None
        assert caught.value.source.filename == __file__
        with pytest.raises(af.errors.PermissionDeniedError) as denied:
            await session.run(af.py_coroutine(typed, [], "float32", name="typed"))
        assert denied.value.node == "typed"
        with pytest.raises(af.errors.InvalidArgumentError, match="py_func"):
            await session.run(af.py_coroutine(lambda: 1.0, [], "float32"))  # type: ignore[arg-type, return-value]


async def test_py_func_refuses_a_coroutine_function() -> None:
    y = af.py_func(double, [np.float32(1.0)], "float32")
    async with af.Session() as session:
        with pytest.raises(af.errors.InvalidArgumentError, match="py_coroutine"):
            await session.run(y)


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (ValueError, af.errors.InvalidArgumentError),
        (TypeError, af.errors.InvalidArgumentError),
        (StopIteration, af.errors.OutOfRangeError),
        (MemoryError, af.errors.ResourceExhaustedError),
        (NotImplementedError, af.errors.UnimplementedError),
        (OSError, af.errors.UnknownError),
        (SystemExit, af.errors.UnknownError),
    ],
)
async def test_exceptions_of_py_func_map_to_typed_errors(raised: type[BaseException], error: type[af.OpError]) -> None:
    def fail() -> Any:
        raise raised("boom")

    async with af.Session() as session:
        with pytest.raises(error, match="boom") as caught:
            await session.run(af.py_func(fail, [], "float32"))
    assert isinstance(caught.value.__cause__, raised)


async def test_timeout_error_names_the_node() -> None:
    async def slow() -> Any:
        await asyncio.Event().wait()

    y = af.py_coroutine(slow, [], "float32", timeout=0.01, name="slow")
    async with af.Session() as session:
        with pytest.raises(af.errors.DeadlineExceededError) as caught:
            await session.run(y)
    assert (caught.value.node, caught.value.expected) == ("slow", "at most 0.01 s")


async def test_py_coroutine_is_repeated_after_failures() -> None:
    calls: list[int] = []
    waits: list[float] = []

    async def flaky() -> Any:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("away")
        if len(calls) == 3:
            await asyncio.Event().wait()
        return np.float32(len(calls))

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    def node(retries: int, **options: Any) -> af.Tensor:
        found: af.Tensor = af.py_coroutine(flaky, [], "float32", timeout=0.01, retries=retries, sleep=sleep, **options)
        return found

    async with af.Session() as session:
        assert await session.run(node(3)) == 4
        assert waits == [0.1, 0.2, 0.4]
        calls.clear()
        with pytest.raises(af.errors.UnknownError, match="away"):
            await session.run(node(1, backoff=lambda attempt: attempt * 10.0))
        assert (len(calls), waits[3:]) == (2, [10.0])
        calls.clear()
        with pytest.raises(af.errors.UnknownError, match="away"):
            await session.run(node(5, retry_on=[TimeoutError]))
        assert len(calls) == 1


# ── context, threads ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_functions_see_context_variables_of_the_caller() -> None:
    async def who(_: Any) -> Any:
        return _WHO.get()

    x = af.placeholder("float32", [])
    y = [af.py_coroutine(who, [x], "string"), af.py_func(lambda _: _WHO.get(), [x], "string")]
    async with af.Session() as session, asyncio.TaskGroup() as tg:

        async def request(name: str) -> Any:
            _WHO.set(name)
            return await session.run(y, {x: 0.0})

        tasks = [tg.create_task(request(name)) for name in ("anna", "bob")]
        assert [await t for t in tasks] == [[b"anna", b"anna"], [b"bob", b"bob"]]
        _WHO.set("carol")
        assert session.run_sync(y, {x: 0.0}) == [b"carol", b"carol"]


async def test_py_func_runs_in_a_thread_beside_the_loop() -> None:
    begun, release = threading.Event(), threading.Event()
    threads: list[int] = []

    def block(x: Any) -> Any:
        threads.append(threading.get_ident())
        begun.set()
        release.wait(5)
        return x

    x = af.placeholder("float32", [3])
    y = af.py_func(block, [x], "float32")
    assert y.shape.rank is None
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        task = tg.create_task(session.run(y, {x: [1, 2, 3]}))
        assert await asyncio.to_thread(begun.wait, 5)
        release.set()
        assert (await task).tolist() == [1, 2, 3]
    assert threads != [threading.get_ident()]


async def test_a_cancelled_step_waits_for_the_thread() -> None:
    begun, release, log = threading.Event(), threading.Event(), []

    def block() -> Any:
        begun.set()
        release.wait(5)
        log.append("function")
        return 1.0

    y = af.py_func(block, [], "float32")
    async with af.Session() as session, asyncio.TaskGroup() as tg:
        task = tg.create_task(session.run(y))
        assert await asyncio.to_thread(begun.wait, 5)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        log.append("step")
    assert log == ["function", "step"]


async def test_py_coroutine_runs_inside_control_flow() -> None:
    asked: list[float] = []

    async def grow(v: Any) -> Any:
        asked.append(float(v))
        await asyncio.sleep(0)
        return v + np.float32(1)

    def ask(v: Any) -> af.Tensor:
        found: af.Tensor = af.py_coroutine(grow, [v], "float32", shapes=[])
        return found

    _, total = af.while_loop(lambda i, v: i < 5, lambda i, v: (i + 1, ask(v)), [af.constant(0), af.constant(0.0)])
    wanted = af.placeholder("bool", [])
    chosen = af.cond(wanted, lambda: ask(af.constant(10.0)), lambda: af.constant(-1.0))
    async with af.Session() as session:
        assert await session.run(total) == 5
        assert asked == [0, 1, 2, 3, 4]
        assert await session.run(chosen, {wanted: False}) == -1
        assert len(asked) == 5
        handle = await session.partial_run_setup([chosen], [wanted])
        assert await session.partial_run(handle, chosen, {wanted: True}) == 11


# ── gradients, lifetimes ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_gradient_argument_sets_the_gradient() -> None:
    async def square(x: Any) -> Any:
        return x * x

    def gradient(op: af.Operation, grad: af.Tensor) -> af.Tensor:
        return grad * 2.0 * op.inputs[0]

    x = af.placeholder("float64", [])
    y = af.py_coroutine(square, [x], "float64", shapes=[], gradient=gradient)
    z = af.py_func(lambda v: v * v, [x], "float64", gradient=gradient)
    (dx,) = af.gradients(y * y, [x])
    (dz,) = af.gradients(z, [x])
    assert af.gradients(af.py_func(lambda v: v, [x], "float64"), [x]) == [None]
    async with af.Session() as session:
        assert await session.run([dx, dz], {x: 3.0}) == [4 * 27, 6]


def test_stateless_functions_use_separate_ops() -> None:
    assert af.py_func(lambda: 1.0, [], "float32", stateful=False).op.type == "PyFuncStateless"
    assert af.numpy_function(lambda: 1.0, [], "float32").op.type == "PyFunc"
    y = af.py_coroutine(double, [1.0], "float32", stateful=False)
    assert y.op.type == "AioflowPyCoroutineStateless"
    assert not y.op.op_def.stateful
    assert evaluate([y]) == [2]


@pytest.mark.parametrize("stateful", [True, False])
async def test_node_without_outputs_runs_its_function(stateful: bool) -> None:
    calls: list[float] = []

    def record(value: float) -> Any:
        calls.append(value)

    op = af.py_func(record, [af.constant(1.5)], [], stateful=stateful)
    assert isinstance(op, af.Operation)
    async with af.Session() as session:
        await session.run(op)
    assert calls == [1.5]


def test_functions_are_freed_with_their_graph() -> None:
    class Callable:
        def __call__(self) -> Any:
            return 1.0

    function = Callable()
    alive = weakref.ref(function)
    with af.Graph().as_default():
        y = af.py_func(function, [], "float32")
        assert evaluate([y]) == [1]
        token = y.op.attrs["token"]
    assert find_function(token).call is function
    del function, y
    until_collected(alive)
    with pytest.raises(af.errors.NotFoundError, match=token):
        find_function(token)


async def test_unknown_function_token_is_not_found() -> None:
    with af.Graph().as_default() as graph:
        y = af.raw_ops.PyFunc(input=[], token="pyfunc_elsewhere_0", Tout=["float32"], name="lost")[0]
    async with af.Session(graph=graph) as session:
        with pytest.raises(af.errors.NotFoundError, match="pyfunc_elsewhere_0") as caught:
            await session.run(y)
    assert caught.value.node == "lost"


async def test_graph_with_functions_can_be_exported_and_imported() -> None:
    with af.Graph().as_default() as graph:
        af.py_coroutine(double, [1.0], "float32", shapes=[], name="ask")
    definition = graph.as_graph_def()
    with af.Graph().as_default() as copy:
        (y,) = af.import_graph_def(definition, return_elements=["ask:0"], name="")
    async with af.Session(graph=copy) as session:
        assert await session.run(y) == 2
